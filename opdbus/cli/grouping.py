"""Grouping of changes by cause or kind into readable lines; pure."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple, TypeAlias

from opdbus.cli import field_values
from opdbus.cli.telling import STATE_FILE, Change, ChangeWords, is_declaration, noun, plural, tell
from opdbus.history import jobs
from opdbus.platform import name_lists

MAX_NAMES: Final = 3
# More than this many consecutive changes of one kind and cause become one line.
_ALIKE: Final = 3
# Changes of different objects belong together only within this time, in microseconds.
_MOMENT: Final = 1_000_000
# Up to this many changes are listed one by one if the query was narrow.
_FEW: Final = 20
# A cause that gives only the occasion, not the actor, starts a new group after this time, in
# microseconds.
_APART: Final = 60_000_000

_RUNS: Final = ("apt:", "dpkg:", "rpm:")

_Item: TypeAlias = tuple[Change, ChangeWords]
_Group: TypeAlias = tuple[object, ...]


class Line(NamedTuple):
    """A line for people: time, text and cause, with the changes that it stands for."""

    at: int
    text: str
    cause: str
    of: Sequence[Change] = ()


def lines(
    changes: Sequence[Change], *, is_cut: bool = False, is_narrow: bool = False
) -> Iterator[Line]:
    """Yield changes as lines in their order; several of one kind and cause become one line.

    Changes are grouped if they are consecutive, also within a run of changes of one known cause.
    Those of different objects are grouped only if they happened within a second of each other. Few
    changes are listed one by one if the query was narrow. If older changes were cut off, a line
    that counts the oldest one begins its count with "at least".
    """
    oldest = changes[0] if is_cut and changes else None
    told = [(change, tell(change)) for change in changes]
    is_each = is_narrow and len(told) <= _FEW
    yield from map(_single, told) if is_each else _lines(told, oldest)


def _lines(told: Iterable[_Item], oldest: Change | None) -> Iterator[Line]:
    for items in _together(told):
        least = "at least " if items[0][0] is oldest else ""
        if len(items) > 1 and items[0][0]["cause"] == "first":
            yield _listed(items, least)
        elif len(items) > _ALIKE:
            yield _counted(items, least)
        else:
            yield from map(_single, items)


def _together(told: Iterable[_Item]) -> Iterator[Sequence[_Item]]:
    """Yield groups of changes that may become one line; a first listing is one group."""
    for cause, run in groupby(told, key=lambda item: jobs.alone(item[0]["cause"])):
        items = list(run)
        if cause == "first":
            yield items
        elif cause:
            yield from _alike(items)
        else:
            of = groupby(zip(_groups(items), items, strict=True), key=lambda pair: pair[0])
            yield from ([item for _, item in alike] for _, alike in of)


def _listed(found: Sequence[_Item], least: str) -> Line:
    """Return the line of a first listing: the number of objects of each kind."""
    change, _ = found[-1]
    sides: dict[bool, Counter[tuple[str, str]]] = {False: Counter(), True: Counter()}
    for one, _ in found:
        sides[is_declaration(one)][one["plugin"], one["kind"]] += 1
    parts = [
        f"{verb} {least}{', '.join(f'{n:,} {plural(noun(s), n)}' for s, n in counts.most_common())}"
        for verb, counts in zip(("found", "declared"), sides.values(), strict=True)
        if counts
    ]
    text = "; ".join(parts)
    return Line(change["at"], text, change["cause"], [change for change, _ in found])


def _single(item: _Item) -> Line:
    change, told = item
    return Line(change["at"], f"{told}{_how_often(change)}", _why(change), [change])


def _why(change: Change) -> str:
    """Return the cause of a change, adjusted to the kind of its object."""
    cause = str(change["cause"])
    # changes of the state file have no other cause
    if (change["plugin"], change["kind"]) == STATE_FILE:
        return ""
    # other programs may have changed accounts, files and units during a package run
    if change["plugin"] == "net" and cause.partition(":")[0] == "exit":
        return f"unit {cause}"
    is_meanwhile = change["kind"] != "package" and cause.startswith(_RUNS)
    return f"during {cause}" if is_meanwhile else cause


def _how_often(change: Change) -> str:
    """Return the number of changes that a row stands for, and the jobs besides the last."""
    others = jobs.others(change["cause"])
    times = change["folded"] + 1 - sum(others.values())
    said = [f"{times} times"] if times > 1 else []
    if others and change["what"] == "changed" and jobs.act(change["cause"]) == "restart":
        # a "changed" row reads as started, so name the restart
        said = [_of(times, "restart")]
    # the text names both if each end was followed by a start
    ended = jobs.ended_by(change["cause"]) if change["what"] == "event" else ""
    besides = [_of(n, word) for word, n in others.items() if (word, n) != (ended, times)]
    said += [f"after {', '.join(besides)}"] if besides else []
    return f" ({', '.join(said)})" if said else ""


def _of(count: int, word: str) -> str:
    return f"{count} {plural(word, count)}"


def by_cause(changes: Iterable[Change]) -> list[tuple[str, list[Change]]]:
    """Group changes by cause, in the order in which the groups end.

    A cause that names no job, run or program forms a new group after a pause. Ends of an object's
    own process, and changes without a known cause, are grouped by unit.
    """
    groups: dict[tuple[str, str, str], list[Change]] = {}
    ended: list[tuple[str, list[Change]]] = []
    for change in changes:
        cause = jobs.alone(change["cause"])
        key = (cause, change["boot"], _whose(cause, change))
        group = groups.pop(key, [])
        is_one = ":" in cause and jobs.act(cause) != "exit"
        if group and not is_one and change["at"] - group[-1]["at"] > _APART:
            ended.append((cause, group))
            group = []
        group.append(change)
        groups[key] = group
    found = [*ended, *((cause, group) for (cause, _, _), group in groups.items())]
    return sorted(found, key=lambda item: item[1][-1]["seq"])


def _whose(cause: str, change: Change) -> str:
    """Return the unit of a change, or its kind, for a cause that names neither."""
    if cause and jobs.act(cause) != "exit":
        return ""
    if change["plugin"] == "systemd":
        return str(change["name"])
    unit = field_values.read(change["fields"])["unit"]
    return unit.after or unit.before or f"{change['plugin']}/{change['kind']}"


def _groups(items: Iterable[_Item]) -> Iterator[_Group]:
    """Yield a group key for each change: its kind and verb, and a number for each run in time."""
    last: dict[_Group, tuple[Change, int]] = {}
    for change, told in items:
        sort = (change["plugin"], change["kind"], told.verb, is_declaration(change))
        before, number = last.get(sort, (change, 0))
        is_apart = change["at"] - before["at"] > _MOMENT
        last[sort] = change, number + (is_apart and change["name"] != before["name"])
        yield *sort, last[sort][1]


def _alike(items: Sequence[_Item]) -> Iterator[Sequence[_Item]]:
    """Yield groups of similar changes: many at the place of the last, few one by one."""
    groups = list(_groups(items))
    counts = Counter(groups)
    gathered: dict[_Group, list[_Item]] = {}
    for group, item in zip(groups, items, strict=True):
        if counts[group] <= _ALIKE:
            yield [item]
            continue
        gathered.setdefault(group, []).append(item)
        if len(gathered[group]) == counts[group]:
            yield gathered[group]


def _counted(alike: Sequence[_Item], least: str) -> Line:
    change, told = alike[-1]
    names = list(dict.fromkeys(item["name"] for item, _ in alike))
    if len(names) == 1:
        text = f"{told.subject} {told.verb} {least}{len(alike):,} times"
    else:
        verb = re.sub("^is ", "are ", told.verb)
        called = plural(noun((change["plugin"], change["kind"])))
        of = "declarations of " if told.subject.startswith("declaration of ") else ""
        text = f"{of}{least}{len(names):,} {called} {verb}: {name_lists.first(names, MAX_NAMES)}"
    return Line(change["at"], text, _why(change), [change for change, _ in alike])
