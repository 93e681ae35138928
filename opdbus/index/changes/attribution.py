"""Attribution of changes to commands and of failures to log lines, as the journal has them.

Rows of history stay as they were recorded. What explains them is looked up when they are read: the
journal may be read after a change was recorded, and what it said can be forgotten.
"""

import asyncio
import math
import os
import pwd
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Final, NamedTuple, TypeAlias

from opdbus.history import acts, jobs
from opdbus.history.acts import Act, Failure
from opdbus.history.row_filter import Filter, Row
from opdbus.index.changes import history_reader
from opdbus.index.database.store import Entry
from opdbus.index.state_store.state_store import StateStore
from opdbus.state.object import UNIT, Identity, ObjectId

_SECOND: Final = 1_000_000
# A command or failure is recorded so long before or after the change that it explains.
_BEFORE: Final = 150 * _SECOND
_AFTER: Final = 600 * _SECOND
# A failure is recorded as a change so long after the unit failed, and this much too early.
_FAILURE_LATE: Final = 60 * _SECOND
_FAILURE_EARLY: Final = 5 * _SECOND
# A change in a session as root may be recorded so long after its end.
_SLACK: Final = _SECOND // 2
# Files, accounts and others are read so long after they changed; of units, systemd tells.
_READ_LATE: Final = _SECOND // 2
# A shorter session did what its command says, or nothing that can be told from what came by itself.
_SHORTEST: Final = _SECOND
# Rows of at most this time are looked up together, and the newest in so many groups.
_TOGETHER: Final = 24 * 3600 * _SECOND
_MOST_GROUPS: Final = 100
# Units that come and go with any session.
_OF_SESSIONS: Final = re.compile(r"(?:user|session|run-user)[-@.].*|.*\.(?:scope|slice)")
_SIGNALS: Final = re.compile(r"\bSIG[A-Z0-9+-]+")
_READER: Final = ObjectId(*acts.READER_KIND, acts.PUBLISHER)
# Limits of the rows that are read for one group, and of a user's rows that are searched for earlier
# sessions.
_MOST_ROWS: Final = 2000
_MOST_ROWS_OF_OBJECTS: Final = 20_000
_MOST_BYTES: Final = 8 << 20
_MOST_EARLIER: Final = 50
# Sessions that are named in one change.
_MOST_SESSIONS: Final = 3


# the user, the time and the command
_Key: TypeAlias = tuple[str, int, str]


class Attribution(NamedTuple):
    """The command that explains a change, else the sessions as root meanwhile; and a failure.

    `meanwhile` has the sessions that began last, `others` is the number of those before them.
    """

    by: Act | None = None
    meanwhile: Sequence[Act] = ()
    others: int = 0
    failure: Failure | None = None

    @property
    def size(self) -> int:
        """Its characters in a reply."""
        failure = (self.failure.why, *self.failure.lines) if self.failure else ()
        return sum(len(str(one)) for one in (self.by or "", *self.meanwhile, *failure))


class _Session(NamedTuple):
    """A session as root in a run of the host, until a time in microseconds since 1970."""

    act: Act
    boot: str
    until: float = math.inf


class _Candidates(NamedTuple):
    """The commands and sessions of a time that may explain changes."""

    commands: Sequence[Act]
    sessions: Sequence[_Session]

    def near(self, row: Row) -> list[Act]:
        """Return the commands shortly before a change, and in sessions that were open."""
        every = chain(_present(self.sessions, row), acts.timely(self.commands, row))
        return [*{_key(act): act for act in every}.values()]

    def fitting(self, row: Row) -> list[Act]:
        """Return those that may have brought a change about."""
        return [act for act in self.near(row) if acts.explains(act, row)]

    def fitting_any(self, rows: Iterable[Row]) -> list[tuple[Row, list[Act]]]:
        """Return the changes that commands may have brought about, with these."""
        return [(row, found) for row in rows if (found := self.fitting(row))]


async def attribute(memory: StateStore, rows: Sequence[Row]) -> Mapping[int, Attribution]:
    """Return what is known of the changes in rows, by their numbers."""
    believed = believed_users()
    entries = _entries(memory, believed)
    if not entries:
        return {}
    users = {e.identity.object_id for e in entries if e.identity[1:3] == acts.USER}
    failed = {e.identity.name for e in entries if e.identity[1:3] == acts.FAILURE}
    groups = await asyncio.to_thread(_groups, rows)
    found: dict[int, Attribution] = {}
    for _ in range(_MOST_GROUPS):
        if not groups:
            break
        group = groups.pop()
        named = {row.identity.name for row in group if row.identity[1:3] == UNIT} & failed
        object_ids = {*users, _READER, *(ObjectId(*acts.FAILURE, name) for name in named)}
        early = acts.MOST_LATE_REBOOT if any(map(acts.is_reboot, group)) else _BEFORE
        span = Filter(
            since=group[0].at - early, before=group[-1].at + _AFTER, object_ids=object_ids
        )
        noted, oldest = await _read(memory, span, _MOST_ROWS, partial(_is_ours, believed))
        before = Filter(before=span.since)
        if oldest:
            # the rest of the group is looked up again, with what was published before
            rest = bisect_left(group, oldest.at + _BEFORE, key=lambda row: row.at)
            groups += [group[:rest]] if 0 < rest < len(group) else []
            group, before = group[rest:], Filter(before_seq=oldest.seq)
        earlier = await _earlier(memory, users, before, believed)
        candidates = await asyncio.to_thread(_candidates, noted[::-1], earlier)
        by = await _commands_of_changes(memory, group, candidates)
        found |= await asyncio.to_thread(_explain, group, by, candidates.sessions, noted)
    return found


async def _read(
    memory: StateStore, wanted: Filter, limit: int, is_wanted: Callable[[Row], bool]
) -> tuple[list[Row], Row | None]:
    """Return the first rows that pass, at most `_MOST_BYTES`; and the last if there are more."""
    found: list[Row] = []
    size = 0
    async with aclosing(history_reader.row_parts(memory, wanted)) as read:
        async for part in read:
            for row in filter(is_wanted, part.rows):
                size += row.size
                if found and (len(found) == limit or size > _MOST_BYTES):
                    return found, found[-1]
                found.append(row)
    return found, None


async def _commands_of_changes(
    memory: StateStore, rows: Sequence[Row], candidates: _Candidates
) -> Mapping[int, Act]:
    """Return the commands that explain changes, by the numbers of these.

    Earlier changes of the objects count: one of them may be the one that a command explains.
    """
    fitting = await asyncio.to_thread(candidates.fitting_any, rows)
    if not fitting:
        return {}
    object_ids = {row.identity.object_id for row, _ in fitting}
    begun = min(act.at for _, found in fitting for act in found) - acts.MOST_EARLY
    since = max(begun, rows[0].at - _TOGETHER)
    span = Filter(since=since, before=rows[-1].at + 1, object_ids=object_ids)
    read, _ = await _read(memory, span, _MOST_ROWS_OF_OBJECTS, acts.is_of_host)
    return await asyncio.to_thread(_match_all, read[::-1], candidates)


def _match_all(rows: Iterable[Row], candidates: _Candidates) -> dict[int, Act]:
    """Return the commands that explain the changes of objects, which come the oldest first."""
    of_object: dict[Identity, list[Row]] = {}
    for row in rows:
        of_object.setdefault(row.identity, []).append(row)
    explained: dict[int, Act] = {}
    for changes in of_object.values():
        explained |= _match(changes, candidates)
    return explained


def _match(rows: Iterable[Row], candidates: _Candidates) -> dict[int, Act]:
    """Return the commands that explain the changes of an object, which come the oldest first.

    A command explains one change, which rows of one job or package run are, and none after another
    change of what it changes.
    """
    found: dict[int, Act] = {}
    of_work: dict[str, Act] = {}
    over: set[tuple[_Key, str]] = set()
    for row in rows:
        work, parts = acts.work_of(row), acts.aspects(row)
        fitting = candidates.fitting(row)
        left = [a for a in fitting if over.isdisjoint((_key(a), part) for part in parts)]
        by = of_work.get(work)
        if by is None or by not in fitting:
            by = max(left, key=lambda act: (act.at <= row.at, act.at), default=None)
        if by:
            found[row.seq] = by
            of_work |= {work: by} if work else {}
        done = [act for act in left if act == by or act.at <= row.at]
        done += [act for act in candidates.near(row) if act not in fitting and acts.ends(act, row)]
        over.update((_key(act), part) for act in done for part in parts)
    return found


async def last_failure(memory: StateStore, object_id: ObjectId) -> Failure | None:
    """Return the last failure of a unit, of which its last lines are known."""
    identity = Identity(acts.SOURCE, *acts.FAILURE, object_id.name)
    entry = memory.catalogue.get(identity) if object_id[:2] == UNIT else None
    if entry is None or entry.owner not in believed_users():
        return None
    content = (await memory.content([entry])).get(entry.id)
    fields = memory.merge_properties([entry], {entry.id: content}) if content else {}
    return acts.failure_of(fields.get("failed"))


def _entries(memory: StateStore, believed: Collection[int]) -> list[Entry]:
    """Return what the publisher published; anybody may use its name of a source."""
    if not memory.catalogue.sources[acts.SOURCE]:
        return []
    return [e for e in memory.catalogue.of_source(acts.SOURCE) if e.owner in believed]


def believed_users() -> Collection[int]:
    """Return the users that are believed: root, our own, and that of the publisher."""
    found = {0, os.geteuid()}
    with suppress(KeyError):
        found.add(pwd.getpwnam(acts.PUBLISHER).pw_uid)
    return found


def _is_ours(believed: Collection[int], row: Row) -> bool:
    # at worst the reader's rows say too often that nothing was known any more
    return row.identity.object_id == _READER or is_believed(believed, row)


def is_believed(believed: Collection[int], row: Row) -> bool:
    """Return whether the journal's reader, or root, published what a row has of the journal."""
    if row.identity.object_id == _READER and row.change_type == "gone":
        return True  # with its connection: the cause names nobody
    uid = row.cause.rpartition(" uid ")[2]
    is_of_source = row.identity.source in {acts.SOURCE, acts.READER}
    return is_of_source and uid.isdecimal() and int(uid) in believed


def _is_failure(row: Row) -> bool:
    """Return whether a unit failed, or its process did, with a change or as an event."""
    if row.identity[1:3] != UNIT:
        return False
    after = {path[0]: now[0] for path, _, now in row.fields if path and now}
    cause = jobs.alone(row.cause)
    is_fault = cause.startswith("exit:") and cause not in jobs.CLEAN_ENDS
    is_of_cause = is_fault or cause.endswith((", failed", ":failed"))
    return after.get("active_state") == "failed" or bool(after.get("result")) or is_of_cause


def _may_be_explained(row: Row) -> bool:
    is_of_run = row.cause.startswith(("apt:", "dpkg:", "rpm:"))
    is_end = acts.is_reboot(row) or acts.values_of(row, "main_pid") is not None
    return acts.may_be_of_user(row) or is_end or (is_of_run and row.identity.plugin == "packages")


def _groups(rows: Iterable[Row]) -> list[Sequence[Row]]:
    """Return rows that may be explained, the oldest first, in groups to look up together."""
    groups: list[list[Row]] = []
    for row in sorted(rows, key=lambda row: row.at):
        if not (_is_failure(row) or _may_be_explained(row)):
            continue
        if not groups or row.at - groups[-1][0].at > _TOGETHER:
            groups.append([])
        groups[-1].append(row)
    return [*groups]


async def _earlier(
    memory: StateStore, users: Collection[ObjectId], before: Filter, believed: Collection[int]
) -> list[_Session]:
    """Return the sessions that had begun before a time and not ended, as far as that was read."""
    found: list[_Session] = []
    is_ours = partial(_is_ours, believed)
    read, _ = await _read(memory, replace(before, object_ids=[_READER]), 1, is_ours)
    since = read[0].seq if read else 0
    for user in users:
        span = replace(before, object_ids=[user], after_seq=since)
        for row in (await _read(memory, span, _MOST_EARLIER, is_ours))[0]:
            if values := acts.values_of(row, "as_root"):
                sessions = acts.acts_of(user.name, values[1], row.seq)
                found += [_Session(act, row.boot) for act in sessions]
                break
    return found


def _candidates(noted: Sequence[Row], earlier: Sequence[_Session]) -> _Candidates:
    """Return the commands and sessions in rows, which come the oldest first, by their time."""
    commands = {_key(act): act for act in reversed(_commands(noted))}
    sessions = [s for s in _sessions(noted, earlier) if s.until - s.act.at >= _SHORTEST]
    return _Candidates(
        sorted(commands.values(), key=lambda act: act.at), sorted(sessions, key=lambda s: s.act.at)
    )


def _commands(noted: Iterable[Row]) -> list[Act]:
    """Return the commands in rows of users."""
    return [
        act
        for row in noted
        if row.identity[1:3] == acts.USER and (values := acts.values_of(row, "ran"))
        for act in acts.acts_of(row.identity.name, values[1], row.seq)
    ]


def _failures(noted: Iterable[Row]) -> Mapping[str, Sequence[Failure]]:
    """Return the failures in rows of units, by unit."""
    found: dict[str, list[Failure]] = {}
    for row in noted:
        if row.identity[1:3] == acts.FAILURE and (values := acts.values_of(row, "failed")):
            failure = acts.failure_of(values[1], row.seq)
            found.setdefault(row.identity.name, []).extend([failure] if failure else [])
    return found


def _explain(
    rows: Sequence[Row],
    by: Mapping[int, Act],
    sessions: Sequence[_Session],
    noted: Iterable[Row],
) -> dict[int, Attribution]:
    failures = _failures(noted)
    found = {}
    for row in rows:
        of_unit = failures.get(row.identity.name, ()) if _is_failure(row) else ()
        near = [failure for failure in of_unit if _is_near(failure, row)]
        failure = max(near, key=lambda one: one.at, default=None)
        is_other = jobs.alone(row.cause).startswith("exit")
        is_other = is_other or bool(_OF_SESSIONS.fullmatch(row.identity.name))
        is_open = row.seq not in by and acts.may_be_of_user(row) and not is_other
        # a command that does one thing only is in `by` if that was it
        present = _present(sessions, row) if is_open else ()
        meanwhile = tuple(act for act in present if act.may_do_anything)
        last, others = meanwhile[-_MOST_SESSIONS:], max(0, len(meanwhile) - _MOST_SESSIONS)
        known = Attribution(by.get(row.seq), last, others, failure)
        if known != Attribution():
            found[row.seq] = known
    return found


def _is_near(failure: Failure, row: Row) -> bool:
    """Return whether a failure came at the time of a row, and not by another signal."""
    changed = acts.values_of(row, "exit_signal")
    of_row = _SIGNALS.findall(f"{row.cause} {changed}")
    is_other = failure.why.startswith("killed by SIG") and not any(s in failure.why for s in of_row)
    return -_FAILURE_EARLY <= row.at - failure.at <= _FAILURE_LATE and not (of_row and is_other)


def _present(sessions: Sequence[_Session], row: Row) -> Sequence[Act]:
    """Return the sessions as root, the oldest first, that were open when an object changed."""
    at = row.at if row.identity[1:3] == UNIT else row.at - _READ_LATE
    begun = sessions[: bisect_right(sessions, at, key=lambda s: s.act.at)]
    return tuple(s.act for s in begun if row.at <= s.until + _SLACK and s.boot == row.boot)


def _sessions(rows: Iterable[Row], earlier: Iterable[_Session]) -> list[_Session]:
    """Return the sessions as root in rows, the oldest first, and those before them.

    A session that ended before it was published is only in `was_root`. Once the journal was not
    read for a while, open sessions are not known any more.
    """
    running = {_key(session.act): session for session in earlier}
    ended: list[_Session] = []
    for row in rows:
        user, of_kind = row.identity.name, row.identity[1:3]
        if of_kind == acts.READER_KIND:
            ended += [session._replace(until=row.at) for session in running.values()]
            running = {}
        if of_kind != acts.USER:
            continue
        if values := acts.values_of(row, "was_root"):
            left = acts.acts_of(user, values[1], row.seq)
            ended += [_Session(act, row.boot, act.until) for act in left]
            for act in left:
                running.pop(_key(act), None)
        if values := acts.values_of(row, "as_root"):
            after = {_key(act): act for act in acts.acts_of(user, values[1], row.seq)}
            over = [key for key in running if key[0] == user and key not in after]
            ended += [running.pop(key)._replace(until=row.at) for key in over]
            running |= {key: _Session(act, row.boot) for key, act in after.items()}
    return [*ended, *running.values()]


def _key(act: Act) -> _Key:
    return act.user, act.at, act.command
