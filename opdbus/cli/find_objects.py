"""Commands that find objects: ask, search, similar, fields and list."""

from __future__ import annotations

import io
import json
import math
import re
import shlex
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from datetime import UTC, datetime
from functools import partial, wraps
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

import click

from opdbus.cli import completing, modules, output
from opdbus.cli.daemon_calls import (
    ask,
    fields_of,
    note_unknown_fields,
    note_unmet_conditions,
    path_of,
    without_empty,
)
from opdbus.cli.output import field_in_words, format_json, width_of
from opdbus.cli.root import (
    COUNT,
    MAX_ROWS,
    NUMBER,
    as_json,
    kind,
    level_names,
    plugin,
    root,
    where_option,
)
from opdbus.cli.status import STARTING
from opdbus.errors import InvalidArgs
from opdbus.language import routes
from opdbus.platform import name_lists
from opdbus.platform.lines import split_lines
from opdbus.state.object import FILE

if TYPE_CHECKING:
    from opdbus.client import Client

    T = TypeVar("T")
    Row: TypeAlias = dict[str, Any]
    Hits: TypeAlias = list[list[Any]]

_KEYS: Final = ("path", "plugin", "kind", "name")
# key around a value that is declared and not observed, and variants for a missing object
DECLARED: Final = "declared"
# mark in a list of an object that is declared, and of which nothing is observed
_ONLY: Final = "only"
# key of the first hit: the answer to a question of yes or no
_VERDICT: Final = "verdict"
_MARKS: Final = frozenset({DECLARED, "declared absent", "declared missing"})
# key in click's context: the arguments of the command that `op-dbus ask` chose
ROUTED_ARGUMENTS: Final = "opdbus.asked"
# never shortened, so that they can be copied
_UNSHORTENED: Final = frozenset({"object", "path", "name"})
# longest command that is printed to be pasted if there is no terminal
_LONGEST_COMMAND: Final = 500
_HEADINGS: Final = ("score", "object", "text")
# Number of fields to show that are observed otherwise than declared.
_MOST_DECLARED: Final = 2
# exit code of a search without hits
NO_HITS: Final = 12
# number of further hits to count, as far as the daemon returns them
_AHEAD: Final = 100
# number of observers to name
_MOST_NAMES: Final = 3

_quiet_option = click.option("-q", "--quiet", is_flag=True, help="Print names only, one a line.")
_columns_option = click.option(
    "--columns",
    metavar="A,B,...",
    help="Print these: object, plugin, kind, name, or fields, such as active_state.",
)
limit_option = click.option(
    "-n", "--limit", type=COUNT, metavar="N", default=10, help="How many at most. [10]"
)
where_filter = where_option("Only objects with such a field: active_state=failed, used_percent>90.")
offset_option = click.option(
    "--offset", type=NUMBER, metavar="N", default=0, help="Skip so many of the first. [0]"
)


class RowFormat(NamedTuple):
    """Output format of rows: names alone, selected columns, or JSON."""

    is_quiet: bool
    columns: tuple[str, ...]
    is_json: bool

    @property
    def is_for_people(self) -> bool:
        """True if remarks are printed beside the rows."""
        return not (self.is_quiet or self.is_json)

    async def fill(self, client: Client, rows: Sequence[Row]) -> Sequence[Row]:
        """Return rows with their columns, read from the row or else from the object's fields.

        Objects that are only declared are marked. Names alone are without those that are absent.
        Hits are not marked, since their text has it already.
        """
        paths, marks = [row["path"] for row in rows], [""] * len(rows)
        if rows and (self.is_quiet or self.columns or "snippet" not in rows[0]):
            names = (name for (name,) in await client.values(paths, ["name"], marked=True))
            keys = (next(iter(name)) if isinstance(name, dict) else "" for name in names)
            # `absent`, `missing`, `only`, or nothing for an observed object
            keys = (next(iter(name)) if isinstance(name, dict) else "" for name in names)
            marks = [key and (key.removeprefix(DECLARED).strip() or _ONLY) for key in keys]
        if self.is_quiet:
            return [row for row, mark in zip(rows, marks, strict=True) if mark in {"", _ONLY}]
        shown = rows
        if self.columns and rows:
            known = [{**row, "object": name_of_row(row)} for row in rows]
            for row in known:
                # for objects in a list, `text` is a field, if anything
                row.update({"text": row["snippet"]} if "snippet" in row else {})
            fields = [name for name in self.columns if name not in known[0]]
            found = await client.values(paths, fields, marked=True) if fields else [[]] * len(rows)
            for row, values in zip(known, found, strict=True):
                row.update(zip(fields, values, strict=True))
            shown = [{name: row[name] for name in self.columns} for row in known]
        return [
            {**row, DECLARED: mark} if mark and not _is_marked(row, mark) else row
            for row, mark in zip(shown, marks, strict=True)
        ]

    def print(
        self, rows: Sequence[Row], usual: Callable[[Sequence[Row]], None] | None = None
    ) -> None:
        """Print rows for people: the columns if given, else by `usual`."""
        if self.is_quiet:
            for row in rows:
                print(output.escape_hidden(name_of_row(row)))
        elif self.columns:
            empty = [name for name in self.columns if all(row[name] is None for row in rows)]
            names = dict.fromkeys((*self.columns, *chain.from_iterable(rows)))
            # print no table of empty columns; the note below gives the reason
            if not rows or len(empty) < len(self.columns):
                cells = [[_format_cell(name, row.get(name)) for name in names] for row in rows]
                output.print_table([*names], cells)
            note_unknown_fields(empty if rows else [])
        elif usual:
            usual(rows)


def row_format_options(command: Callable[..., T]) -> Callable[..., T]:
    """Add the options for the output format to a command, which gets them as its `form`."""

    @wraps(command)
    def run(*, quiet: bool, columns: str | None, json_: bool, **given: Any) -> T:
        return command(form=_parse_format(quiet=quiet, columns=columns, json_=json_), **given)

    return _quiet_option(_columns_option(as_json(run)))


def _parse_format(*, quiet: bool, columns: str | None, json_: bool) -> RowFormat:
    """Parse the output format; raises InvalidArgs."""
    names = tuple(name.strip() for name in columns.split(",")) if columns is not None else ()
    if not all(names):
        raise InvalidArgs(f"--columns {columns!r} lacks a name: give names with commas between")
    if quiet and (json_ or names):
        raise InvalidArgs("-q prints names alone: leave out --columns and --json")
    return RowFormat(quiet, names, json_)


def _is_marked(row: Row, mark: str) -> bool:
    """Return whether a value of an object that is only declared says so itself."""
    return mark == _ONLY and any(map(_has_mark, row.values()))


def _has_mark(value: Any) -> bool:
    return isinstance(value, dict) and bool(value) and value.keys() <= _MARKS


def _format_cell(name: str, value: Any) -> str:
    if _has_mark(value):
        return " ".join(f"{mark} {_format_cell(name, inner)}" for mark, inner in value.items())
    # a score has three significant decimals, as in the list of hits
    is_score = name == "score" and isinstance(value, float)
    said = f"{value:.3f}" if is_score else name_lists.format_value(value)
    return said if name in _UNSHORTENED else output.shorten_hashes(said)


def name_of_row(row: Row) -> str:
    """Return the PLUGIN/KIND/NAME of an object."""
    return "/".join((row["plugin"], row["kind"], row["name"]))


def note_more(count: str, offset: int) -> None:
    """Print on stderr the number of further rows, and the command for the next page."""
    asked = click.get_current_context().meta.get(ROUTED_ARGUMENTS, sys.argv[1:])
    at = asked.index("--") if "--" in asked else len(asked)
    words, given = [], iter(asked[:at])
    for word in given:
        if word == "--offset":
            next(given, None)
        elif not word.startswith("--offset="):
            words.append(word)
    command = shlex.join(["op-dbus", *words, "--offset", str(offset), *asked[at:]])
    said = f"{count} more: {command}"
    room = output.terminal_width(sys.stderr) or _LONGEST_COMMAND
    # a wrapped command could not be pasted
    output.print_note(said if width_of(said) <= room else f"{count} more: add --offset {offset}")


def print_answer(hits: Sequence[Row], *, is_explained: bool, has_weak: bool) -> None:
    """Print the verdict on a question of yes or no, if there is one, and the hits."""
    if verdict := hits[0].get(_VERDICT):
        print(output.add_style(output.escape_hidden(verdict), "bold"))
    # the hit of a verdict may be weak
    if shown := [hit for hit in hits if has_weak or not (verdict and hit["weak"])]:
        print_hits(shown, is_explained=is_explained)


def print_hits(hits: Sequence[Row], *, is_explained: bool) -> None:
    """Print hits: one line each; on a terminal or with reasons, a block each."""
    corrected = (tuple(pair) for hit in hits for pair in _reasons_of(hit)["corrected"])
    for asked, meant in dict.fromkeys(corrected):
        output.print_note(f"{asked} was looked for as {meant}")
    shown = [(f"{hit['score']:.3f}", name_of_row(hit), _hit_lines(hit)) for hit in hits]
    if not is_explained and not output.terminal_width(sys.stdout):
        cells = [(score, name, "; ".join(lines)) for score, name, lines in shown]
        output.print_table(_HEADINGS, cells)
        return
    print(output.add_style("  ".join(_HEADINGS[:2]), "bold"))
    for hit, (score, name, lines) in zip(hits, shown, strict=True):
        output.print_labelled(score, len(score), name, "" if hit["weak"] else "bold")
        indent = " " * len(score)
        for line in lines[:1] if is_explained else lines:
            output.print_labelled(indent, len(indent), line)
        if is_explained:
            output.print_pairs({f"{indent}  {n}": text for n, text in _score_parts(hit) if text})


def _hit_lines(hit: Row) -> list[str]:
    """Return the text of a hit, and one matching field or meaning that the text does not show."""
    why, seen = _reasons_of(hit), set[str]()
    for name, value, words in why["fields"]:
        # match a whole word; `no`, as in check-no-failures, means something else in a name
        is_shown = re.search(rf"(?<!\w){re.escape(value)}(?!\w)", hit["snippet"])
        if name in _KEYS[1:] or (is_shown and value not in {"no", "yes"}):
            seen.update(words)
    is_declared = "declared " if hit.get("source") == FILE else ""
    fields = [field for field in why["fields"] if not seen.issuperset(field[2])]
    more = [is_declared + _field_text(*field[:2]) for field in fields]
    more += [gloss for gloss in why["glosses"] if not why["fields"] and gloss not in hit["snippet"]]
    lines = [f"(weak) {hit['snippet']}" if hit["weak"] else str(hit["snippet"]), *more[:1]]
    # declared values of an object that is observed otherwise
    for name in list(hit.get("observed", {}))[:_MOST_DECLARED]:
        value = name_lists.format_value(hit["declared"].get(name))
        lines.append(f"declared {_field_text(name, value)}")
    return [*lines, *_describe_similarity(hit.get("alike", {}))]


def _describe_similarity(why: Mapping[str, Any]) -> Iterator[str]:
    """Yield a hit's common and differing fields, compared with the object it is similar to."""
    if not why:
        return
    fields = [f"{field_in_words(field)} {format_json(value)}" for field, value in why["fields"]]
    if both := [part for part in (", ".join(why["words"]), ", ".join(fields)) if part]:
        yield f"both: {'; '.join(both)}"
    if why["differs"]:
        other = (
            f"{field_in_words(f)} {format_json(there)}, not {format_json(own)}"
            for f, own, there in why["differs"]
        )
        yield f"but: {'; '.join(other)}"


def _field_text(name: str, value: str) -> str:
    # values that are only declared have this prefix
    own = name.removeprefix("declared.")
    marked = name if own == name else f"declared {own}"
    return f"{marked}: {' '.join(value.split())}"


def _score_parts(hit: Row) -> Iterator[tuple[str, str]]:
    """Yield the parts of a hit's score, each with a label; absent parts are empty."""
    why, cosine, stage = _reasons_of(hit), hit["vector"], hit["stage"]
    is_compared = stage and not math.isnan(cosine)
    yield "meaning", f"{cosine:.3f}, the cosine at level {stage}" if is_compared else ""
    missing = f"; not here: {', '.join(why['missing'])}" if why["missing"] else ""
    yield "words", f"{hit['lexical']:.3f}, the share of the question's{missing}"
    yield "values", f"{hit['values']:+.3f} for {', '.join(why['values'])}" if why["values"] else ""
    reasons = "its kind, name and term overlap"
    yield "raised", f"{why['raised']:+.3f} for {reasons}" if why["raised"] else ""
    yield "in all", f"{why['total']:.3f}, by which it is ranked"
    fields = why["fields"]
    matched = (f"{_field_text(name, value)} ({', '.join(words)})" for name, value, words in fields)
    yield "matched", output.join_lines(matched)
    yield "glosses", output.join_lines(why["glosses"])
    yield "conditions", ", ".join(why["conditions"])


def _reasons_of(hit: Row) -> Mapping[str, Any]:
    return hit.get("why") or {"fields": (), "glosses": (), "corrected": ()}


@root.command(name="ask")
@click.argument("question", nargs=-1, required=True)
@click.option("-n", "--limit", type=COUNT, metavar="N", help="How many objects or changes at most.")
@as_json
@click.pass_context
def ask_question(
    context: click.Context, question: tuple[str, ...], limit: int | None, json_: bool
) -> Any:
    """Send QUESTION to search, changes, drift or status.

    The first line says which command that is; what follows, and the exit code, are its own. A
    question about what happened, and when or why, is one for changes; whether all is as it should
    be, one for drift; what op-dbus itself does or knows, one for the status; any other is one for
    search.
    """
    text = " ".join(question)
    if not text.strip():
        raise InvalidArgs("the question is empty: ask in words")
    route = find_route(text)
    if limit and route.name in {routes.OBJECTS, "changes"}:
        route = route._replace(options={**route.options, "limit": str(limit)})
    arguments = route.arguments(text)
    context.meta[ROUTED_ARGUMENTS] = arguments
    if not json_:
        line = f"{route.name}: {output.escape_hidden(route.command(text))}"
        if route.name != "status":
            # who may not read is refused before the heading
            ask(lambda client: client.changes({}, 1))
        print(output.add_style(line, "bold"))
        return _run_command(context, arguments)
    with redirect_stdout(io.StringIO()) as printed:
        code = _run_command(context, [arguments[0], "--json", *arguments[1:]])
    is_lines = route.name == "changes"
    texts = split_lines(printed.getvalue()) if is_lines else [printed.getvalue()]
    values = [json.loads(each) for each in texts]
    answer = values if is_lines else values[0]
    output.print_json({"route": route.name, "command": route.command(text), "answer": answer})
    return code


def find_route(question: str) -> routes.Route:
    """Return the route of a question that is asked now."""
    return routes.find_route(question, datetime.now(UTC).astimezone().replace(tzinfo=None))


def _run_command(context: click.Context, arguments: list[str]) -> Any:
    """Run another command and return its exit code."""
    modules(arguments[0])
    command = root.commands[arguments[0]]
    with command.make_context(arguments[0], arguments[1:], parent=context) as inner:
        return command.invoke(inner)


@root.command()
@click.argument("query", nargs=-1, required=True)
@limit_option
@plugin
@kind
@where_filter
@click.option(
    "--mode",
    type=click.Choice(["hybrid", "vector", "lexical"]),
    default="hybrid",
    help="By words and meaning, or by one of them. [hybrid]",
)
@offset_option
@click.option(
    "--rerank",
    metavar="LEVEL",
    help="Put the best in the order of another level.",
    shell_complete=level_names,
)
@click.option("--all", is_flag=True, help="List weak hits as well, marked so.")
@click.option("--explain", is_flag=True, help="Say why each was found, and what ranked it.")
@row_format_options
def search(query: tuple[str, ...], limit: int, form: RowFormat, **options: Any) -> int:
    """Find the objects that answer QUERY.

    QUERY is a question in plain words, or words of the objects. It may have conditions in it, such
    as state:failed or kind:unit. A question of yes or no about named objects is answered so in the
    first line, where that is certain. The exit code is 12 if nothing here is about that.
    """
    if options["explain"] and (form.is_quiet or form.columns):
        raise InvalidArgs("--explain is about whole hits: leave out -q and --columns")
    asked, question = without_empty(**options), " ".join(query)
    if form.is_for_people and not form.columns:
        # to show the fields that matched
        asked["explain"] = True

    async def found(client: Client, most: int, offset: int, **more: bool) -> Hits:
        return await client.search(question, most, asked | {"offset": offset} | more)

    is_answered = _print_answer(form, found, limit, options)
    if form.is_for_people and (route := find_route(question)).name != routes.OBJECTS:
        output.print_note(f"that is a question for `{route.command(question)}`")
    if is_answered:
        return 0
    if form.is_for_people and not _is_past_the_last(found, options["offset"]):
        note_unmet_conditions(options["where"], question)
        weak = [] if options["all"] else ask(lambda client: found(client, 1, 0, all=True))
        hint = "; --all lists what comes nearest" if weak else ""
        verdict = _parse_hit(*weak[0]).get(_VERDICT) if weak else None
        output.print_note(f"{verdict or 'nothing here is about that'}{hint}")
        _note_starting_observers()
    return NO_HITS


@root.command()
@click.argument("object", shell_complete=completing.complete_objects)
@limit_option
@plugin
@kind
@where_filter
@offset_option
@row_format_options
def similar(object: str, limit: int, form: RowFormat, **options: Any) -> int:
    """Find the objects most like OBJECT.

    OBJECT is PLUGIN/KIND/NAME, as `list` prints it, a D-Bus path, or a short name. The exit
    code is 12 if nothing is found.
    """
    # include reasons if the output has room for them
    asked = without_empty(**options, explain=not (form.is_quiet or form.columns))

    path = ask(lambda client: path_of(client, object))

    async def found(client: Client, most: int, offset: int, **more: bool) -> Hits:
        return await client.similar(path, most, asked | {"offset": offset} | more)

    if _print_answer(form, found, limit, options):
        return 0
    if form.is_for_people and not _is_past_the_last(found, options["offset"]):
        note_unmet_conditions(options["where"])
        output.print_note("nothing here is like that")
    return NO_HITS


def _note_starting_observers() -> None:
    """Print on stderr the observers that have not read the host yet, if any."""
    observers = ask(lambda client: client.state())["Observers"]
    if names := [name for name, state, *_ in observers if state == STARTING]:
        read = name_lists.join_first(names, _MOST_NAMES)
        output.print_note(f"the host is still being read ({read}): that is the answer so far")


def _is_past_the_last(found: Callable[..., Awaitable[Hits]], offset: int) -> bool:
    """Return whether a page begins past the last hit, and if so print that on stderr."""
    is_past = offset > 0 and bool(ask(lambda client: found(client, 1, 0)))
    if is_past:
        output.print_note(f"there are no more than {offset:,} hits: give a smaller --offset")
    return is_past


def _print_answer(
    form: RowFormat, question: Callable[..., Awaitable[Hits]], limit: int, options: dict[str, Any]
) -> bool:
    """Print the hits of a query and the number of further ones; return true if there are any."""
    offset = options["offset"]
    next_offset = offset + limit

    async def found(client: Client) -> tuple[list[Row], Sequence[Row], int]:
        best = [_parse_hit(*row) for row in await question(client, limit, offset)]
        more: Hits = []
        if form.is_for_people and len(best) == limit and next_offset <= MAX_ROWS:
            # count them, without reasons
            more = await question(client, _AHEAD, next_offset, explain=False)
        return best, await form.fill(client, best), len(more)

    best, shown, more = ask(found)
    if form.is_json:
        output.print_json(shown)
    elif shown:
        modes = {
            "is_explained": options.get("explain", False),
            "has_weak": options.get("all", False),
        }
        form.print(shown, partial(print_answer, **modes))
    else:
        note_unknown_fields(fields_of(options["where"]))
    if not form.is_for_people:
        return bool(shown)
    by_static = sum(hit["stage"] == "static" for hit in best)
    # what decides an answer was compared with nothing
    if 0 < by_static < sum(bool(hit["stage"]) for hit in best):
        output.print_note(f"the last {by_static} have no vectors of the level yet")
    if any(hit.get("so_far") for hit in best):
        _note_starting_observers()
    if more:
        note_more(f"{more}" if more < _AHEAD else f"at least {more}", next_offset)
    return bool(shown)


def _parse_hit(path: str, score: float, details: dict[str, Any]) -> Row:
    """Return a hit as a row, with the declared and observed values that differ."""
    sides = {
        side: {name: json.loads(text) for name, text in details.get(side, {}).items()}
        for side in ("declared", "observed")
    }
    return {"path": path, "score": score, **details, **sides}


@root.command()
@plugin
@kind
@as_json
def fields(json_: bool, **wanted: Any) -> None:
    """List the fields that objects have, for --where."""
    rows = ask(lambda client: client.fields(without_empty(**wanted)))
    if json_:
        output.print_json(dict(rows))
        return
    output.print_table(("field", "objects"), rows)


@root.command(name="list")
@plugin
@kind
@click.option(
    "--source", metavar="NAME", help="Only objects of this source, such as file or publish:NAME."
)
@click.option("--name", metavar="NAME", help="Only objects of this name.")
@where_filter
@click.option("-n", "--limit", type=COUNT, metavar="N", help="How many at most; all, if not given.")
@offset_option
@row_format_options
def list_(limit: int | None, offset: int, form: RowFormat, **wanted: Any) -> None:
    """List the state objects."""
    if form.is_for_people and not form.columns:
        # the names of objects, and the fields in the conditions
        columns = dict.fromkeys((*_KEYS[1:], *fields_of(wanted["where"])))
        form = form._replace(columns=tuple(columns))

    async def found(client: Client) -> tuple[int, Sequence[Row]]:
        total, page = await client.pages(without_empty(**wanted), offset, limit)
        return total, await form.fill(client, output.as_dicts(_KEYS, page))

    total, shown = ask(found)
    if form.is_json:
        output.print_json({"total": total, "objects": shown})
    elif shown:
        form.print(shown)
    elif form.is_for_people:
        past = f"{total:,} such objects, and none of them is on this page"
        output.print_note(f"there are {past}" if total else "nothing to list")
        if not total:
            note_unmet_conditions(wanted["where"])
    if not total:
        note_unknown_fields(fields_of(wanted["where"]))
    more = total - offset - len(shown)
    if form.is_for_people and shown and more:
        note_more(f"{more:,}", offset + len(shown))
