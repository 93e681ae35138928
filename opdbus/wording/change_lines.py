"""Changes grouped into lines: many similar changes of one cause are one line."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple, TypeAlias

from opdbus.history import jobs
from opdbus.platform import name_lists
from opdbus.wording import change_words, episodes
from opdbus.wording.change_words import (
    STATE_FILE,
    Change,
    format_stamp,
    is_declaration,
    noun,
    plural,
)
from opdbus.wording.episodes import Episode, Item

MAX_NAMES: Final = 3
# More than this many consecutive changes of one kind and cause become one line.
_MOST_SINGLE: Final = 3
# Changes of different objects belong together only within this time, in microseconds.
_MOMENT: Final = 1_000_000
# Up to this many changes are listed one by one if the query was narrow.
_FEW_CHANGES: Final = 20
# A cause that gives only the occasion, not the actor, starts a new group after this time, in
# microseconds.
_PAUSE: Final = 60_000_000
_RUNS: Final = ("apt:", "dpkg:", "rpm:")
_Group: TypeAlias = tuple[object, ...]


class ChangeLine(NamedTuple):
    """A line for people: time, text and cause, with the changes that it stands for.

    `more` says who did it and why, as far as the journal does.
    """

    at: int
    text: str
    cause: str
    of: Sequence[Change] = ()
    more: str = ""

    def __str__(self) -> str:
        return f"{self.text}{cause_in_brackets(self.cause)}{self.more}"


def group_into_lines(
    changes: Sequence[Change], *, is_cut: bool = False, is_narrow: bool = False
) -> Iterator[ChangeLine]:
    """Yield changes as lines in their order; several of one kind and cause become one line.

    Changes are grouped if they are consecutive, also within a run of changes of one known cause.
    Those of different objects are grouped only if they happened within a second of each other.
    Runs of a timer are one line, and so are a login and a logout. Few changes are listed one by
    one if the query was narrow. What a user did has the time at which it was done. If older changes
    were cut off, a line that counts the oldest one begins its count with "at least".
    """
    oldest = changes[0] if is_cut and changes else None
    described = [
        (change, change_words.describe_change(change, user_name)) for change in _date_acts(changes)
    ]
    if is_narrow and len(described) <= _FEW_CHANGES:
        yield from map(_line_of_one, described)
        return
    found = episodes.find_episodes(described, user_name)
    places = {episode.place: episode for episode in found}
    left_out = {index for episode in found for index in episode.of}
    single: list[Item] = []
    for index, item in enumerate(described):
        if index in places:
            yield from _lines_of_groups(single, oldest)
            single = []
            yield _line_of_episode(places[index], described)
        elif index not in left_out:
            single.append(item)
    yield from _lines_of_groups(single, oldest)


def _date_acts(changes: Sequence[Change]) -> Sequence[Change]:
    """Return changes with acts of users at their own times, before what was observed after them."""
    found: list[Change] = []
    for change in changes:
        at = change_words.time_of_acts(change)
        place = len(found)
        while at and place and at < found[place - 1]["at"] <= change["at"]:
            place -= 1
        found.insert(place, {**change, "at": at} if at else change)
    return found


def _lines_of_groups(described: Sequence[Item], oldest: Change | None) -> Iterator[ChangeLine]:
    for items in _split_into_groups(described):
        least = "at least " if items[0][0] is oldest else ""
        if len(items) > 1 and items[0][0]["cause"] == "first":
            yield _line_of_listing(items, least)
        elif len(items) > _MOST_SINGLE:
            yield _line_of_many(items, least)
        else:
            yield from map(_line_of_one, items)


def _line_of_episode(episode: Episode, described: Sequence[Item]) -> ChangeLine:
    change, _ = described[episode.place]
    cause = _cause_of_line(change) if episode.has_cause else ""
    return ChangeLine(change["at"], episode.text, cause, [described[n][0] for n in episode.of])


def _split_into_groups(described: Iterable[Item]) -> Iterator[Sequence[Item]]:
    """Yield groups of changes that may become one line; a first listing is one group."""
    for cause, run in groupby(described, key=lambda item: jobs.alone(item[0]["cause"])):
        items = list(run)
        if cause == "first":
            yield items
        elif cause:
            yield from _groups_of_cause(items)
        else:
            of = groupby(zip(_group_keys(items), items, strict=True), key=lambda pair: pair[0])
            yield from ([item for _, item in alike] for _, alike in of)


def _line_of_listing(found: Sequence[Item], least: str) -> ChangeLine:
    """Return the line of a first listing: the number of objects of each kind."""
    change, _ = found[-1]
    sides: dict[bool, Counter[str]] = {False: Counter(), True: Counter()}
    for one, _ in found:
        sides[is_declaration(one)][noun((one["plugin"], one["kind"]))] += 1
    parts = []
    for verb, counts in zip(("found", "declared"), sides.values(), strict=True):
        kinds = [f"{n:,} {plural(kind, n)}" for kind, n in counts.most_common()]
        parts += [f"{verb} {least}{', '.join(kinds)}"] if kinds else []
    changes = [change for change, _ in found]
    return ChangeLine(change["at"], "; ".join(parts), change["cause"], changes)


def _line_of_one(item: Item) -> ChangeLine:
    change, words = item
    text, cause = f"{words}{_repetitions(change)}", _cause_of_line(change)
    if "killed by " in words.detail and cause == "exit":
        cause = ""
    # the journal may say no more than systemd's result
    is_known = f"({change.get('why')})" in f"{text}{cause_in_brackets(cause)}"
    known = {**change, "why": ""} if is_known else change
    return ChangeLine(change["at"], text, cause, [change], _words_of_journal(known))


def _words_of_journal(change: Change) -> str:
    """Return who brought a change about, or who was root meanwhile, and why a unit failed."""
    found = _words_of_authors(change)
    found = f",{found}" if change["what"] == "drift" and change.get("by") else found
    why = name_lists.shorten(change.get("why", ""), change_words.MAX_ACT)
    return found + (f", why: {why}" if why else "")


def _words_of_authors(change: Change) -> str:
    """Return who brought a change about, or who was root meanwhile."""
    found = f" by {change['by']}" if change.get("by") else ""
    for act, since in change.get("as_root", ()):
        user, _, how = act.partition(" with ")
        found += f", while {user} was root since {format_stamp(since)} ({how})"
    if others := change.get("as_root_others"):
        found += f", and {others:,} other {plural('session', others)} as root"
    return found


def describe_origin(change: Change) -> str:
    """Return when a change was, and who made it, else its cause: `since Nov 27 22:27:41 by bob`.

    Of a closed port, it names the unit, and whether that `failed`.
    """
    if unit := change.get("unit"):
        cause = f" with {unit}{', which failed' if change.get('failed') else ''}"
    else:
        cause = "" if change.get("by") else cause_in_brackets(change["cause"])
    return f"since {format_stamp(change['at'])}{cause}{_words_of_authors(change)}"


def _cause_of_line(change: Change) -> str:
    """Return the cause of a change, adjusted to the kind of its object."""
    cause = str(change["cause"])
    # changes of the state file have no other cause
    if (change["plugin"], change["kind"]) == STATE_FILE:
        return ""
    # the journal's reader only says who did what, and a reboot has no other cause
    if change.get("believed") or cause == "boot:reboot":
        return ""
    # other programs may have changed accounts, files and units during a package run
    if change["plugin"] == "net" and cause.partition(":")[0] == "exit":
        return f"unit {cause}"
    is_meanwhile = change["kind"] != "package" and cause.startswith(_RUNS)
    return f"during {cause}" if is_meanwhile else cause


def _repetitions(change: Change) -> str:
    """Return the number of changes that a row stands for, and the jobs besides the last."""
    others = jobs.others(change["cause"])
    times = change["folded"] + 1 - sum(others.values())
    said = [f"{times} times"] if times > 1 else []
    if others and change["what"] == "changed" and jobs.act(change["cause"]) == "restart":
        # a "changed" row reads as started, so name the restart
        said = [f"{times} {plural('restart', times)}"]
    # the text names both if each end was followed by a start, or each start by an end
    told = jobs.ended_by(change["cause"]) if change["what"] == "event" else ""
    if change["what"] == "event" and jobs.ended_after_start(change["cause"]):
        told = "start"
    besides = [f"{n} {plural(w, n)}" for w, n in others.items() if (w, n) != (told, times)]
    said += [f"after {', '.join(besides)}"] if besides else []
    return f" ({', '.join(said)})" if said else ""


def group_by_cause(changes: Iterable[Change]) -> list[tuple[str, list[Change]]]:
    """Group changes by cause, in the order in which the groups end.

    A cause that names no job, run or program forms a new group after a pause. Ends of an object's
    own process, and changes without a known cause, are grouped by unit.
    """
    groups: dict[tuple[str, str, str], list[Change]] = {}
    ended: list[tuple[str, list[Change]]] = []
    for change in changes:
        cause = jobs.alone(change["cause"])
        key = (cause, change["boot"], _unit_or_kind(cause, change))
        group = groups.pop(key, [])
        is_one = ":" in cause and jobs.act(cause) != "exit"
        if group and not is_one and change["at"] - group[-1]["at"] > _PAUSE:
            ended.append((cause, group))
            group = []
        group.append(change)
        groups[key] = group
    found = [*ended, *((cause, group) for (cause, _, _), group in groups.items())]
    return sorted(found, key=lambda item: item[1][-1]["seq"])


def _unit_or_kind(cause: str, change: Change) -> str:
    """Return the unit of a change, or its kind, for a cause that names neither."""
    if cause and jobs.act(cause) != "exit":
        return ""
    if change["plugin"] == "systemd":
        return str(change["name"])
    unit = change_words.read_fields(change["fields"])["unit"]
    return unit.after or unit.before or f"{change['plugin']}/{change['kind']}"


def _group_keys(items: Iterable[Item]) -> Iterator[_Group]:
    """Yield a group key for each change: its kind and verb, and a number for each run in time."""
    last: dict[_Group, tuple[Change, int]] = {}
    for change, words in items:
        group = (change["plugin"], change["kind"], words.verb, is_declaration(change))
        before, number = last.get(group, (change, 0))
        is_apart = change["at"] - before["at"] > _MOMENT
        last[group] = change, number + (is_apart and change["name"] != before["name"])
        yield *group, last[group][1]


def _groups_of_cause(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """Yield groups of similar changes: many at the place of the last, few one by one."""
    groups = list(_group_keys(items))
    counts = Counter(groups)
    gathered: dict[_Group, list[Item]] = {}
    for group, item in zip(groups, items, strict=True):
        if counts[group] <= _MOST_SINGLE:
            yield [item]
            continue
        gathered.setdefault(group, []).append(item)
        if len(gathered[group]) == counts[group]:
            yield gathered[group]


def _line_of_many(alike: Sequence[Item], least: str) -> ChangeLine:
    """Return the line of many similar changes: their number, and the first names."""
    change, words = alike[-1]
    names = list(dict.fromkeys(item["name"] for item, _ in alike))
    if len(names) == 1:
        text = f"{words.subject} {words.verb} {least}{len(alike):,} times"
    else:
        verb = re.sub("^is ", "are ", words.verb)
        called = plural(noun((change["plugin"], change["kind"])))
        of = "declarations of " if words.subject.startswith("declaration of ") else ""
        text = (
            f"{of}{least}{len(names):,} {called} {verb}: {name_lists.join_first(names, MAX_NAMES)}"
        )
    mores = {_words_of_journal(change) for change, _ in alike}
    more = mores.pop() if len(mores) == 1 else ""
    return ChangeLine(
        change["at"], text, _cause_of_line(change), [change for change, _ in alike], more
    )


def cause_in_brackets(cause: str) -> str:
    """Return the cause of a change in brackets; empty if there is none."""
    return f" ({change_words.describe_cause(cause, user_name)})" if cause else ""


def user_name(uid: int) -> str:
    """Return the name of a user, or `uid N` of a user that has none."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return f"uid {uid}"
