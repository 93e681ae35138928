"""Who brought a change about, and why a unit failed, from what op-dbus-journal.service published.

Rows of history stay as they were recorded. What explains them is looked up when they are read: the
journal may be read after a change was recorded, and what it said can be forgotten.
"""

import math
import os
import pwd
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Final, NamedTuple, TypeAlias

from opdbus.history import acts, jobs
from opdbus.history.acts import Act, Failure
from opdbus.history.row_filter import Filter, Row
from opdbus.index.changes import history_reader
from opdbus.index.changes.connections import UNIT
from opdbus.index.database.store import Entry
from opdbus.index.state_store.state_store import StateStore
from opdbus.state.object import Identity, ObjectId

_SECOND: Final = 1_000_000
# What is published about a change is recorded so long before or after it.
_BEFORE: Final = 150 * _SECOND
_AFTER: Final = 600 * _SECOND
# A failure is recorded as a change so long after the unit failed, and this much too early.
_FAILURE_LATE: Final = 60 * _SECOND
_FAILURE_EARLY: Final = 5 * _SECOND
# A change in a session as root may be recorded so long after its end.
_SLACK: Final = _SECOND // 2
# A shorter session did what its command says, or nothing that can be told from what came by itself.
_SHORTEST: Final = _SECOND
# Rows with a longer pause between them are looked up apart.
_PAUSE: Final = 3600 * _SECOND
# Units that come and go with any session.
_OF_SESSIONS: Final = re.compile(r"(?:user|session|run-user)[-@.].*|.*\.(?:scope|slice)")
_READER: Final = ObjectId(*acts.READER_KIND, acts.PUBLISHER)
_MOST_ROWS: Final = 2000
# Rows of a user in which the sessions before a time are looked for.
_MOST_EARLIER: Final = 50


# the user, the time and the command
_Key: TypeAlias = tuple[str, int, str]


class Attribution(NamedTuple):
    """The command that explains a change, else the sessions as root meanwhile; and a failure."""

    by: Act | None = None
    meanwhile: Sequence[Act] = ()
    failure: Failure | None = None


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
        timely = (act for act in self.commands if acts.is_timely(act, row))
        every = chain(_present(self.sessions, row), timely)
        return [*{_key(act): act for act in every}.values()]

    def fitting(self, row: Row) -> list[Act]:
        """Return those that may have brought a change about."""
        return [act for act in self.near(row) if acts.explains(act, row)]


async def attribute(memory: StateStore, rows: Sequence[Row]) -> Mapping[int, Attribution]:
    """Return what is known of the changes in rows, by their numbers."""
    entries = _entries(memory)
    if not entries:
        return {}
    users = {e.identity.object_id for e in entries if e.identity[1:3] == acts.USER}
    failed = {e.identity.name for e in entries if e.identity[1:3] == acts.FAILURE}
    about = [row for row in rows if _is_failure(row) or _may_be_explained(row)]
    found: dict[int, Attribution] = {}
    for window in _windows(about):
        named = {row.identity.name for row in window if row.identity[1:3] == UNIT} & failed
        object_ids = {*users, _READER, *(ObjectId(*acts.FAILURE, name) for name in named)}
        span = Filter(
            since=window[0].at - _BEFORE, before=window[-1].at + _AFTER, object_ids=object_ids
        )
        noted = await history_reader.first_rows(memory, span, _MOST_ROWS)
        noted = [row for row in reversed(noted) if _is_ours(row)]
        sessions = _sessions(noted, await _earlier(memory, users, span.since))
        candidates = _Candidates(_commands(noted), sessions)
        by = await _commands_of_changes(memory, window, candidates)
        found |= _explain(window, by, sessions, _failures(noted))
    return found


async def _commands_of_changes(
    memory: StateStore, rows: Sequence[Row], candidates: _Candidates
) -> Mapping[int, Act]:
    """Return the commands that explain changes, by the numbers of these.

    Earlier changes of the objects count: one of them may be the one that a command explains.
    """
    fitting = [(row, found) for row in rows if (found := candidates.fitting(row))]
    if not fitting:
        return {}
    object_ids = {row.identity.object_id for row, _ in fitting}
    since = min(act.at for _, found in fitting for act in found) - acts.MOST_EARLY
    span = Filter(since=since, before=rows[-1].at + 1, object_ids=object_ids, is_oldest_first=True)
    of_object: dict[Identity, list[Row]] = {}
    for row in await history_reader.first_rows(memory, span, _MOST_ROWS):
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
    for row in filter(acts.is_of_host, rows):
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
    if entry is None or entry.owner not in _believed():
        return None
    content = (await memory.content([entry])).get(entry.id)
    fields = memory.merge_properties([entry], {entry.id: content}) if content else {}
    return acts.failure_of(fields.get("failed"))


def _entries(memory: StateStore) -> list[Entry]:
    """Return what the publisher published; anybody may use its name of a source."""
    if not memory.catalogue.sources[acts.SOURCE]:
        return []
    believed = _believed()
    return [e for e in memory.catalogue.of_source(acts.SOURCE) if e.owner in believed]


def _believed() -> Collection[int]:
    """Return the users that are believed: root, our own, and that of the publisher."""
    found = {0, os.geteuid()}
    with suppress(KeyError):
        found.add(pwd.getpwnam(acts.PUBLISHER).pw_uid)
    return found


def _is_ours(row: Row) -> bool:
    # at worst the reader's rows say too often that nothing was known any more
    return row.identity.object_id == _READER or is_believed(row)


def is_believed(row: Row) -> bool:
    """Return whether the journal's reader, or root, published what a row has of the journal."""
    if row.identity.object_id == _READER and row.change_type == "gone":
        return True  # with its connection: the cause names nobody
    uid = row.cause.rpartition(" uid ")[2]
    is_of_source = row.identity.source in {acts.SOURCE, acts.READER}
    return is_of_source and uid.isdecimal() and int(uid) in _believed()


def _is_failure(row: Row) -> bool:
    """Return whether a unit failed, or its process did, with a change or as an event."""
    if row.identity[1:3] != UNIT:
        return False
    after = {path[0]: now[0] for path, _, now in row.fields if path and now}
    cause = jobs.alone(row.cause)
    is_of_cause = cause.startswith("exit:") or cause.endswith((", failed", ":failed"))
    return after.get("active_state") == "failed" or bool(after.get("result")) or is_of_cause


def _may_be_explained(row: Row) -> bool:
    is_of_run = row.cause.startswith(("apt:", "dpkg:", "rpm:"))
    return acts.may_be_of_user(row) or (is_of_run and row.identity.plugin == "packages")


def _windows(rows: Iterable[Row]) -> Iterator[Sequence[Row]]:
    """Yield rows, the oldest first, in groups that are looked up together."""
    group: list[Row] = []
    for row in sorted(rows, key=lambda row: row.at):
        if group and row.at - group[-1].at > _PAUSE:
            yield group
            group = []
        group.append(row)
    if group:
        yield group


async def _earlier(memory: StateStore, users: Collection[ObjectId], before: int) -> list[_Session]:
    """Return the sessions that had begun before a time and not ended, as far as that was read."""
    found: list[_Session] = []
    read = await history_reader.first_rows(memory, Filter(object_ids=[_READER], before=before), 1)
    since = read[0].seq if read else 0
    for user in users:
        span = Filter(object_ids=[user], before=before, after_seq=since)
        for row in await history_reader.first_rows(memory, span, _MOST_EARLIER):
            if _is_ours(row) and (values := acts.values_of(row, "as_root")):
                sessions = acts.acts_of(user.name, values[1], row.seq)
                found += [_Session(act, row.boot) for act in sessions]
                break
    return found


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
    failures: Mapping[str, Sequence[Failure]],
) -> dict[int, Attribution]:
    found = {}
    for row in rows:
        of_unit = failures.get(row.identity.name, ()) if _is_failure(row) else ()
        near = [f for f in of_unit if -_FAILURE_EARLY <= row.at - f.at <= _FAILURE_LATE]
        failure = max(near, key=lambda one: one.at, default=None)
        is_other = jobs.alone(row.cause).startswith("exit")
        is_other = is_other or bool(_OF_SESSIONS.fullmatch(row.identity.name))
        is_open = row.seq not in by and acts.may_be_of_user(row) and not is_other
        meanwhile = _present(sessions, row) if is_open else ()
        known = Attribution(by.get(row.seq), meanwhile, failure)
        if known != Attribution():
            found[row.seq] = known
    return found


def _present(sessions: Iterable[_Session], row: Row) -> Sequence[Act]:
    """Return the sessions as root that were open when an object changed."""
    return tuple(
        s.act
        for s in sessions
        if s.boot == row.boot
        and s.act.at <= row.at <= s.until + _SLACK
        and s.until - s.act.at >= _SHORTEST
    )


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
