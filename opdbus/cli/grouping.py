"""Changes of one cause or sort put together, so that they can be read. Pure."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple, TypeAlias

from opdbus.cli.telling import Change, Told, is_declaration, noun, plural, tell

MAX_NAMES: Final = 3
# More changes of one sort and cause, one after the other, are one line.
_ALIKE: Final = 3
# Causes that say when something was seen, and not by whom, are another one after so long.
_APART: Final = 60_000_000

_Item: TypeAlias = tuple[Change, Told]


class Line(NamedTuple):
    """A line for people: when, what happened, and why; it may stand for several changes."""

    at: int
    text: str
    cause: str


def lines(changes: Sequence[Change], *, is_cut: bool = False) -> Iterator[Line]:
    """Tell changes in their order; several of one sort and cause are one line.

    They are put together where they are in a row, or in a row of changes of one known cause. Where
    older changes were cut off, a line that counts the oldest one says that there may be more.
    """
    last = None
    oldest = changes[0] if is_cut and changes else None
    for line in _lines([(change, tell(change)) for change in changes], oldest):
        # a port is open for two families of addresses, and one line
        if line != last:
            yield line
        last = line


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
    for cause, run in groupby(told, key=lambda item: item[0]["cause"]):
        if cause == "first":
            yield list(run)
        elif cause:
            yield from _alike(list(run))
        else:
            yield from (list(alike) for _, alike in groupby(run, key=_sort))


def _listed(found: Sequence[_Item], least: str) -> Line:
    """Tell of a first listing: how many there are of each sort."""
    counts = Counter((change["plugin"], change["kind"]) for change, _ in found)
    sorts = [f"{n:,} {noun(s) if n == 1 else plural(noun(s))}" for s, n in counts.most_common()]
    change, told = found[-1]
    return Line(change["at"], f"{told.verb} {least}{', '.join(sorts)}", change["cause"])


def _single(item: _Item) -> Line:
    change, told = item
    more = f" ({change['folded'] + 1} times)" if change["folded"] else ""
    return Line(change["at"], f"{told}{more}", change["cause"])


def by_cause(changes: Iterable[Change]) -> list[tuple[str, list[Change]]]:
    """Group changes by cause, in the order in which the groups end; those without one are last.

    What names no job, run or program as its cause is one group only while it goes on.
    """
    groups: dict[tuple[str, str], list[Change]] = {}
    ended: list[tuple[str, list[Change]]] = []
    for change in changes:
        cause = change["cause"]
        group = groups.pop((cause, change["boot"]), [])
        if group and ":" not in cause and change["at"] - group[-1]["at"] > _APART:
            ended.append((cause, group))
            group = []
        group.append(change)
        groups[cause, change["boot"]] = group
    found = [*ended, *((cause, group) for (cause, _), group in groups.items())]
    return sorted(found, key=lambda item: (not item[0], item[1][-1]["seq"]))


def _sort(item: _Item) -> tuple[object, ...]:
    change, told = item
    return change["plugin"], change["kind"], told.verb, is_declaration(change)


def _alike(items: Sequence[_Item]) -> Iterator[Sequence[_Item]]:
    """Yield what is alike: many together, where the last of them is, and few as they come."""
    counts = Counter(map(_sort, items))
    many = {sort for sort, count in counts.items() if count > _ALIKE}
    gathered: dict[tuple[object, ...], list[_Item]] = {sort: [] for sort in many}
    for item in items:
        if (sort := _sort(item)) not in many:
            yield [item]
            continue
        gathered[sort].append(item)
        if len(gathered[sort]) == counts[sort]:
            yield gathered[sort]


def _counted(alike: Sequence[_Item], least: str) -> Line:
    change, told = alike[-1]
    names = list(dict.fromkeys(item["name"] for item, _ in alike))
    more = len(names) - MAX_NAMES
    listed = ", ".join(names[:MAX_NAMES]) + (f" and {more:,} more" if more > 0 else "")
    if len(names) == 1:
        text = f"{told.subject} {told.verb} {least}{len(alike):,} times"
    else:
        verb = re.sub("^is ", "are ", told.verb)
        called = plural(noun((change["plugin"], change["kind"])))
        of = "declarations of " if told.subject.startswith("declaration of ") else ""
        text = f"{of}{least}{len(names):,} {called} {verb}: {listed}"
    return Line(change["at"], text, change["cause"])
