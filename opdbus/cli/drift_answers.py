"""Answers to whether an object, or one field of it, is as declared: `is the mtu of lan0`."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from opdbus.cli.daemon_calls import id_of_path, name_of_path
from opdbus.platform import name_lists
from opdbus.state.object import FILE, SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from opdbus.client import Client

    # A row of DriftReport: see drifting.Row.
    Row: TypeAlias = Sequence[Any]

_MOST_NAMES: Final = 3
# Names of a row of Unobserved among which a field is looked for.
_MOST_UNOBSERVED: Final = 1000
# A name that a condition can have as its field.
_FIELD: Final = re.compile(r"[\w.-]+")
# Fields whose drift is that of the whole object: it is missing, or should be.
_OF_ALL: Final = ("presence", "ensure")
# Words for all fields of an object: `the state of nginx`.
_WHOLE: Final = frozenset("state status configuration config setup settings".split())
_UNOBSERVED: Final = "is declared, and nothing observes it: it is not compared"


class Answer(NamedTuple):
    """The answer for one subject: `drifts` is None if it is not compared, `rows` are its drift.

    `why` follows the subject where that is not certain.
    """

    subject: str
    drifts: bool | None
    why: str = ""
    rows: Sequence[Row] = ()

    def text(self, *, is_negated: bool) -> str:
        """Return the answer to `is it as declared`, or if negated to `is it other`."""
        if self.why:
            return f"{self.subject} {self.why}"
        word = "yes" if self.drifts is is_negated else "no"
        state = "other than declared" if self.drifts else "as declared"
        return f"{word}: {self.subject} is {state}"


async def find_answers(
    names: Sequence[str], rows: Sequence[Row], client: Client
) -> dict[str, Answer]:
    """Return answers by path, of the first name that is declared; else of one that is not.

    A name may also be that of a declared setting, such as the host's name. Words before or after
    an object's name may be that of one of its fields.
    """
    undeclared: dict[str, Answer] = {}
    for name in names:
        found, _ = await client.resolve(name)
        shown = {path: await client.show(path) for path, *_ in found}
        if declared := {path: one for path, one in shown.items() if one["Declared"]}:
            # the longest name has all words
            wanted = [word for word in names[0].split() if word != name] if name != names[0] else []
            return {
                p: await _of_object(p, one, wanted, rows, client) for p, one in declared.items()
            }
        if settings := await _of_setting(name, rows, client):
            return settings
        if shown and not undeclared:
            listed = name_lists.join_first([*map(name_of_path, shown)], _MOST_NAMES)
            text = f"is declared of {name}: {listed}"
            undeclared = dict.fromkeys([*shown][:1], Answer("nothing", None, text))
    return undeclared


async def _of_object(
    path: str, shown: Mapping[str, Any], wanted: Sequence[str], rows: Sequence[Row], client: Client
) -> Answer:
    """Return the answer about an object, or about the field that the other words name."""
    names = {id_of_path(path)["name"]}
    names |= {name.rpartition(".")[0] for name in names}
    own = [row for row in rows if id_of_path(row[0])["name"] in names]
    called = name_of_path(path)
    for side in ("Declared", "Observed"):
        if field := _find_field(json.loads(shown[side] or "{}"), wanted):
            if side == "Declared":
                return await _of_field(path, shown, field, own, client)
            return Answer(f"{field} of {called}", None, "is not declared")
    if "of" in wanted and _WHOLE.isdisjoint(wanted):
        return Answer("nothing", None, f"is declared of {' '.join(wanted)} {called}")
    drift = shown.get("Drift", "")
    # daemons of other versions omit it
    if not drift:
        return Answer(called, None, _UNOBSERVED)
    # an object may be declared under another name
    return Answer(called, drift != "none", "", (own or rows) if drift != "none" else ())


async def _of_field(
    path: str, shown: Mapping[str, Any], field: str, rows: Sequence[Row], client: Client
) -> Answer:
    """Return the answer about a declared field of an object, with rows of that field alone."""
    subject = f"{field} of {name_of_path(path)}"
    own = []
    for row in rows:
        fields = [one for one in row[5] if one[0] in _OF_ALL or _is_called(one[0], _plain(field))]
        own += [[*row[:5], fields]] if fields else []
    if own:
        return Answer(subject, drifts=True, rows=own)
    if not shown.get("Drift"):
        return Answer(subject, None, _UNOBSERVED)
    labels = {field, f"{field} of {id_of_path(path)['name']}"}
    for *_, names, why in await client.unobserved(_MOST_UNOBSERVED):
        if not labels.isdisjoint(names):
            return Answer(subject, None, f"is declared, and not compared: {why}")
    sides = (_leaves(json.loads(shown[side] or "{}")) for side in ("Declared", "Observed"))
    declared, observed = (str(dict(leaves).get(field)) for leaves in sides)
    is_equal = declared == observed
    # values that look different may mean the same, or never be compared
    why = "" if is_equal else "is not observed to be other than declared"
    return Answer(subject, drifts=False, why=why)


async def _of_setting(name: str, rows: Sequence[Row], client: Client) -> dict[str, Answer]:
    """Return an answer for each declared object of settings that has a field of this name."""
    words = name.split()
    answers: dict[str, Answer] = {}
    # `time zone` is `timezone` or `time_zone`
    for field in dict.fromkeys(("".join(words), "_".join(words))):
        if not _FIELD.fullmatch(field):
            continue
        # as a condition, since the daemon refuses a kind that no object has
        wanted = {"source": FILE, "where": f'kind={SETTINGS}, {field}!=""'}
        _, found = await client.page(wanted, 0, _MOST_NAMES)
        for path, *_ in found:
            own = [row for row in rows if row[0] == path]
            answer = await _of_field(path, await client.show(path), field, own, client)
            is_sure = answer.drifts is False and await _is_observed(path, field, client)
            answers[path] = answer._replace(why="") if is_sure else answer
    return answers


async def _is_observed(path: str, field: str, client: Client) -> bool:
    """Return whether an object of the same plugin has a setting, or one of that kind its name."""
    plugin = id_of_path(path)["plugin"]
    wanted = {"plugin": plugin, "where": f'kind!={SETTINGS}, {field}!=""'}
    having = [one for one, *_ in (await client.page(wanted, 0, 1))[1]]
    found, _ = await client.resolve(field)
    having += [one for one, *kind_id, _ in found if plugin in kind_id]
    return any([(await client.show(one))["Observed"] for one in having])


def _leaves(value: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted paths of the fields of an object, also of those in fields, with values."""
    for key, one in value.items():
        yield f"{path}{key}", one
        if isinstance(one, dict):
            yield from _leaves(one, f"{path}{key}.")


def _find_field(properties: Mapping[str, Any], words: Sequence[str]) -> str:
    """Return the field that most of some successive words name, empty if none do."""
    fields = [field for field, _ in _leaves(properties)]
    for length in range(len(words), 0, -1):
        for start in range(len(words) - length + 1):
            wanted = _plain("".join(words[start : start + length]))
            if field := next((field for field in fields if _is_called(field, wanted)), ""):
                return field
    return ""


def _is_called(field: str, wanted: str) -> bool:
    """Return whether a field has a name, with or without that of the field that it is in."""
    return wanted in {_plain(field), _plain(field.rpartition(".")[2])}


def _plain(name: str) -> str:
    return re.sub(r"[\W_]", "", name.lower())
