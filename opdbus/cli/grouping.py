"""Changes of one cause or sort put together, so that they can be read. Pure."""

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
# More changes of one sort and cause, one after the other, are one line.
_ALIKE: Final = 3
# Of different things, only what happened within a moment belongs together.
_MOMENT: Final = 1_000_000
# So many changes are told one by one where a question was about few things.
_FEW: Final = 20
# Causes that say when something was seen, and not by whom, are another one after so long.
_APART: Final = 60_000_000

_RUNS: Final = ("apt:", "dpkg:", "rpm:")

_Item: TypeAlias = tuple[Change, ChangeWords]
_Group: TypeAlias = tuple[object, ...]


class Line(NamedTuple):
    """A line for people: when, what happened, and why; and the changes that it stands for."""

    at: int
    text: str
    cause: str
    of: Sequence[Change] = ()


def lines(
    changes: Sequence[Change], *, is_cut: bool = False, is_narrow: bool = False
) -> Iterator[Line]:
    """Tell changes in their order; several of one sort and cause are one line.

    They are put together where they are in a row, or in a row of changes of one known cause, and
    what happened to different things, where it did within a second of each other. Few are told
    each where the question was a narrow one. Where older changes were cut off, a line that counts
    the oldest one says that there may be more.
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
    """Yield the changes that may be one line; all of a first listing are."""
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
    """Tell of a first listing: how many there are of each sort."""
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
    """Return the cause of a change as it is said of a thing of its sort."""
    cause = str(change["cause"])
    # what is said of the state file is its own doing
    if (change["plugin"], change["kind"]) == STATE_FILE:
        return ""
    # others may have changed accounts, files and units meanwhile
    if change["plugin"] == "net" and cause.partition(":")[0] == "exit":
        return f"unit {cause}"
    is_meanwhile = change["kind"] != "package" and cause.startswith(_RUNS)
    return f"during {cause}" if is_meanwhile else cause


def _how_often(change: Change) -> str:
    """Say for how many changes a row stands, and for what besides the last job."""
    others = jobs.others(change["cause"])
    times = change["folded"] + 1 - sum(others.values())
    said = [f"{times} times"] if times > 1 else []
    if others and change["what"] == "changed" and jobs.act(change["cause"]) == "restart":
        # what changed says started
        said = [_of(times, "restart")]
    # an end that each start followed is in the words for both
    ended = jobs.ended_by(change["cause"]) if change["what"] == "event" else ""
    besides = [_of(n, word) for word, n in others.items() if (word, n) != (ended, times)]
    said += [f"after {', '.join(besides)}"] if besides else []
    return f" ({', '.join(said)})" if said else ""


def _of(count: int, word: str) -> str:
    return f"{count} {plural(word, count)}"


def by_cause(changes: Iterable[Change]) -> list[tuple[str, list[Change]]]:
    """Group changes by cause, in the order in which the groups end.

    What names no job, run or program as its cause is one group only while it goes on; an end of its
    own process, or what has no known cause, is one of each unit.
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
    """Return the unit of a change, or else its sort, where its cause says nothing of either."""
    if cause and jobs.act(cause) != "exit":
        return ""
    if change["plugin"] == "systemd":
        return str(change["name"])
    unit = field_values.read(change["fields"])["unit"]
    return unit.after or unit.before or f"{change['plugin']}/{change['kind']}"


def _groups(items: Iterable[_Item]) -> Iterator[_Group]:
    """Yield what is one for those of one sort that happened to one thing, or within a moment."""
    last: dict[_Group, tuple[Change, int]] = {}
    for change, told in items:
        sort = (change["plugin"], change["kind"], told.verb, is_declaration(change))
        before, number = last.get(sort, (change, 0))
        is_apart = change["at"] - before["at"] > _MOMENT
        last[sort] = change, number + (is_apart and change["name"] != before["name"])
        yield *sort, last[sort][1]


def _alike(items: Sequence[_Item]) -> Iterator[Sequence[_Item]]:
    """Yield what is alike: many together, where the last of them is, and few as they come."""
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
