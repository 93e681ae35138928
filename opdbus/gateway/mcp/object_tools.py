"""Tools about objects: show, list and similar."""

import asyncio
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final

from mcp.types import CallToolResult
from pydantic import Field

from opdbus.gateway.daemon_link import DaemonLink
from opdbus.gateway.mcp import change_rows
from opdbus.gateway.mcp.tool_answers import (
    Result,
    Row,
    json_text,
    make_note,
    make_page,
    make_row,
)
from opdbus.gateway.mcp.tool_arguments import (
    describe_unknown_fields,
    find_object,
    object_name,
    read_offset,
)
from opdbus.platform import timestamps
from opdbus.state import conditions
from opdbus.wording.change_lines import describe_origin

# Fields of a question: the daemon's limit.
MOST_FIELDS: Final = 64
# Rows of a page.
Limit = Annotated[int, Field(ge=1, le=100)]
# An object's name; also a short one.
Name = Annotated[str, Field(description="plugin/kind/name, or short: sshd")]
Conditions = Annotated[
    str, Field(description="conditions: active_state=failed, used_percent>90, name~ssh")
]
# Fields of an object that follow from others or change nothing.
_UNSHOWN: Final = frozenset(
    "Plugin Kind Name Observed Declared Text Fingerprint VectorKey Distance".split()
)
# Begin of a word in a property's name.
_CAPITAL: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")
# Rows of a page: an answer has room for fewer.
_MOST_ROWS: Final = 2000
# Declared fields of a hit that nothing observes, at most.
_MOST_FIELDS: Final = 3


class ObjectTools:
    """Questions about objects, each a tool: its docstring is its description."""

    def __init__(self, link: DaemonLink) -> None:
        self._link = link

    async def show(self, object: Name, at: str = "", cursor: str = "") -> Result:  # noqa: A002 -- the argument's name
        """Show all fields of an object, observed and declared; `at` a time: 03:10, yesterday."""
        client, offset = await self._link.client(), read_offset(cursor)
        path, note = await find_object(client, object, past=bool(at))
        if at:
            found = await client.object_at(path, timestamps.moment_here(at))
            shown = {key.capitalize(): found.get(key) for key in ("source", "observed", "declared")}
        else:
            shown = await client.show(path)
        return await asyncio.to_thread(_shown_page, path, shown, note, offset)

    async def list(
        self,
        where: Conditions = "",
        plugin: str = "",
        kind: str = "",
        fields: Annotated[list[str], Field(max_length=MOST_FIELDS)] = [],  # noqa: B006 -- never changed
        limit: Limit = 20,
        cursor: str = "",
    ) -> Result:
        """List and count objects that meet conditions, with `fields` of each."""
        client, offset = await self._link.client(), read_offset(cursor)
        wanted = {"where": where, "plugin": plugin, "kind": kind}
        wanted = {key: value for key, value in wanted.items() if value}
        total, found = await client.page(wanted, offset, limit)
        columns = [one.field for one in conditions.parse(where)] if where else []
        columns = [*dict.fromkeys((*columns, *fields))]
        own = {"plugin", "kind", "name"}
        columns = [name for name in columns if name not in own]
        objects = [path for path, *_ in found]
        values = await client.values(objects, columns, marked=True) if columns else []
        note = (
            f"{total:,} {'object' if total == 1 else 'objects'}"
            if total
            else "no object meets that"
        )
        if columns and not found:
            unknown = await describe_unknown_fields(client, columns)
            note = make_note(f"{note}; no object has these fields:", unknown) if unknown else note
        rows = _listed_rows(found, columns, values)
        return await asyncio.to_thread(make_page, rows, note, offset, limit, total)

    async def similar(self, object: Name, limit: Limit = 8, cursor: str = "") -> Result:  # noqa: A002 -- as above
        """Find the objects most like one, with what they have in common and what differs."""
        client, offset = await self._link.client(), read_offset(cursor)
        path, note = await find_object(client, object)
        options = {"offset": offset, "explain": True}
        rows = hit_rows(await client.similar(path, limit + 1, options))
        return make_page(rows, note or make_note("like:", [object_name(path)]), offset, limit)


def _shown_page(path: str, shown: Mapping[str, Any], note: str, offset: int) -> CallToolResult:
    """Return an object's own properties, and its fields beside their declared values."""
    name = object_name(path)
    own = dict(_readable({k: value for k, value in shown.items() if k not in _UNSHOWN and value}))
    said = [f"{key} {_said(value)}" for key, value in own.items()]
    sides = [dict(_leaves(_read_side(shown[side]))) for side in ("Observed", "Declared")]
    fields = [*dict.fromkeys((*sides[0], *sides[1]))]
    head = [make_row("; ".join((name, *said)), object=name, **own)] if not offset else []
    page = fields[max(0, offset - 1) :][:_MOST_ROWS]
    rows = [*head, *_field_rows(page, *sides)]
    return make_page(rows, note, offset, len(rows), 1 + len(fields))


def _read_side(side: Any) -> dict[str, Any]:  # noqa: ANN401 -- JSON, or its text
    found: dict[str, Any] = json.loads(side) if isinstance(side, str) and side else side or {}
    return found


def _listed_rows(
    found: Sequence[Sequence[str]], columns: Sequence[str], values: Sequence[Sequence[Any]]
) -> Iterator[Row]:
    """Yield a row for each listed object, with the columns that it has."""
    for number, (_, *parts) in enumerate(found):
        name = "/".join(parts)
        row = dict(zip(columns, values[number] if columns else (), strict=True))
        said = [f"{key}={_said(value)}" for key, value in row.items() if value is not None]
        yield make_row(" ".join((name, *said)), object=name, fields=row)


def status_rows(status: Mapping[str, Any]) -> list[Row]:
    """Return the status as rows: what serves, how much there is, and what is wrong."""
    plain = {key: value for key, value in status.items() if _is_plain(value)}
    rows = [make_row(f"{key}: {value}", name=key, value=value) for key, value in plain.items()]
    for name, state, *rest in status.get("Observers", ()):
        said = [str(one) for one in rest if one]
        rows.append(make_row(f"observer {name}: {state}", observer=name, state=state, more=said))
    for name, count in status.get("Sources", ()):
        rows.append(make_row(f"source {name}: {count} objects", source=name, objects=count))
    return rows


def drift_rows(
    drifts: Sequence[Sequence[Any]], origins: Sequence[Mapping[str, Mapping[str, Any]]] = ()
) -> Iterator[Row]:
    """Yield a row for each object of a drift report, with who made its fields differ."""
    for row, own in zip(drifts, origins or [{}] * len(drifts), strict=True):
        path, what, severity, since, _, fields = row
        parts, sides = [], []
        for field, one, other, _ in fields:
            side = {"field": field, "declared": _parse(one), "observed": _parse(other)}
            text = f"{field} declared {_json_said(one)}, observed {_json_said(other)}"
            if change := own.get(field):
                text += f", {describe_origin(change)}"
                side["since"] = change_rows.format_time(change["at"])
                if "by" in change:
                    side["by"] = change["by"]
            parts.append(text)
            sides.append(side)
        name = object_name(path)
        yield make_row(
            f"{severity} {name}: {'; '.join(parts)}",
            object=name,
            severity=severity,
            since=change_rows.format_time(int(since * 1_000_000)) if since else "",
            **{"class": what, "fields": sides},
        )


def hit_rows(hits: Sequence[Sequence[Any]]) -> Iterator[Row]:
    """Yield a row for each hit of a search, below the verdict if there is one."""
    for path, score, details in hits:
        name, text = object_name(path), str(details["snippet"])
        if verdict := details.get("verdict", ""):
            yield make_row(verdict, verdict=verdict)
            if details.get("weak"):
                continue
        declared = {k: _parse(v) for k, v in details.get("declared", {}).items()}
        # declared values that are observed otherwise
        other = [key for key in details.get("observed", {}) if key in declared][:_MOST_FIELDS]
        parts = [f"declared {key} {_said(declared[key])}" for key in other]
        alike = details.get("why", {}).get("alike", {}) or details.get("alike", {})
        common = [f"{field} {_json_said(value)}" for field, value in alike.get("fields", ())]
        parts += [f"both {', '.join(common)}"] if common else []
        differs = [
            f"{field} {_json_said(there)}, not {_json_said(own)}"
            for field, own, there in alike.get("differs", ())
        ]
        parts += [f"but {', '.join(differs)}"] if differs else []
        said = "; ".join([f"{score:.2f} {name}: {text}", *parts])
        yield make_row(said, object=name, score=round(score, 2))


def _field_rows(
    fields: Sequence[str], observed: Mapping[str, Any], declared: Mapping[str, Any]
) -> Iterator[Row]:
    """Yield a row for each field, with its declared value if that is other or alone."""
    for field in fields:
        seen, wanted = observed.get(field), declared.get(field)
        if field not in observed:
            yield make_row(f"{field}: declared {_said(wanted)}", field=field, declared=wanted)
        elif field in declared and wanted != seen:
            text = f"{field}: {_said(seen)}, declared {_said(wanted)}"
            yield make_row(text, field=field, value=seen, declared=wanted)
        else:
            yield make_row(f"{field}: {_said(seen)}", field=field, value=seen)


def _leaves(value: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted paths and values of all fields; lists are values."""
    for key, one in value.items():
        if isinstance(one, dict) and one:
            yield from _leaves(one, f"{path}{key}.")
        else:
            yield f"{path}{key}", one


def _readable(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield an object's own properties, named as fields are, with times in words."""
    for key, value in values.items():
        name = _CAPITAL.sub("_", key).lower()
        yield name, change_rows.format_time(value * 1_000_000) if key.endswith("At") else value


def _is_plain(value: object) -> bool:
    return isinstance(value, str | int | float) and value not in ("", 0)


def _said(value: object) -> str:
    """Return a value as text; one that is only declared says so."""
    if isinstance(value, dict) and len(value) == 1 and next(iter(value)).startswith("declared"):
        mark, value = next(iter(value.items()))
        return f"{mark} {_said(value)}"
    return value if isinstance(value, str) else json_text(value)


def _json_said(text: str) -> str:
    return _said(_parse(text)) if text else "none"


def _parse(text: str) -> Any:  # noqa: ANN401 -- a value of JSON
    return json.loads(text) if text else None
