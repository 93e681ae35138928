"""Changes that belong together, though causes differ: runs of a timer, a login, a logout."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from opdbus.history import jobs
from opdbus.platform import name_lists
from opdbus.state.object import UNIT
from opdbus.wording import change_words
from opdbus.wording.change_words import Change, ChangeWords, FieldValues, plural

Item: TypeAlias = tuple[Change, ChangeWords]

_SESSION: Final = ("login1", "session")
_USER: Final = ("login1", "user")
# Units, and the mount, that a user has while logged in, by the user's number.
_OF_USER: Final = re.compile(
    r"(?:user-|user-runtime-dir@|user@|run-user-|/run/user/)(\d{1,10})(?:\.slice|\.service|\.mount)?"
)
_SCOPE: Final = re.compile(r"session-(\w+)\.scope")
# Fields of the steps of a run, and of the states of a user and of a session.
_STEPS: Final = frozenset(("active_state", "sub_state"))
_OF_STATE: Final = frozenset(("state", "session"))
# States of users, and of sessions, that are not logged in any more.
_NOT_IN: Final = ("closing", "lingering")
# Sessions of these classes are no logins, but those of cron and of the user's service manager.
_NO_LOGINS: Final = ("background", "manager")
# Pauses in microseconds after which a login, or a logout, is over: units stay for ten seconds.
_PAUSES: Final = {True: 5_000_000, False: 15_000_000}
# What has no user belongs to the only user who logs in or out within this time.
_MOMENT: Final = 1_000_000
_MAX_SESSIONS: Final = 3


class Episode(NamedTuple):
    """Changes that become one line: their indexes, its place among them, and its text.

    `has_cause` if the cause of the change at its place is that of all.
    """

    place: int
    text: str
    of: Sequence[int]
    has_cause: bool = False


def find_episodes(items: Sequence[Item], user: Callable[[int], str]) -> list[Episode]:
    """Find the episodes of several changes; `user` returns the name of a uid."""
    return [*_find_runs(items), *_find_logins(items, user)]


def _find_runs(items: Sequence[Item]) -> Iterator[Episode]:
    """Yield the runs of each unit that a timer, socket or path started, up to another change of it.

    The line has the place of the last run.
    """
    runs: dict[tuple[str, str], list[int]] = {}
    for index, (change, words) in enumerate(items):
        if (change["plugin"], change["kind"]) != UNIT:
            continue
        key = change["boot"], change["name"]
        if _is_step_of_run(change, words):
            runs.setdefault(key, []).append(index)
        elif key in runs:
            yield from _episode_of_runs(items, runs.pop(key))
    for indexes in runs.values():
        yield from _episode_of_runs(items, indexes)


def _is_step_of_run(change: Change, words: ChangeWords) -> bool:
    """Return whether a unit only ran, or a step of that: no failure, and no other change."""
    if not jobs.is_routine(change["cause"]) or change["what"] not in {"event", "changed"}:
        return False
    is_step = all(path in _STEPS for path, *_ in change["fields"])
    # earlier versions have rows of the timer
    return is_step and (words.verb in {"ran", "is starting"} or change["name"].endswith(".timer"))


def _episode_of_runs(items: Sequence[Item], indexes: Sequence[int]) -> Iterator[Episode]:
    if len(indexes) < 2:
        return
    (first, _), (_, words) = items[indexes[0]], items[indexes[-1]]
    ended = [items[n][0] for n in indexes if items[n][1].verb == "ran"]
    count = sum(each["folded"] + 1 for each in ended)
    since = "" if first["folded"] else f" since {change_words.format_stamp(first['at'])}"
    if not ended:
        text = f"{words.subject} changed {len(indexes):,} times{since}"
    elif count == 1:
        text = f"{words.subject} ran{since}"
    else:
        text = f"{words.subject} ran {count:,} times{since}"
    yield Episode(indexes[-1], text, indexes, has_cause=True)


@dataclass(slots=True)
class _Login:
    """Changes of a user's login or logout, and what they are of."""

    is_begin: bool
    ends_at: int
    indexes: list[int] = field(default_factory=list)
    sessions: list[str] = field(default_factory=list)
    # where the user or a session came or went
    place: int | None = None
    is_of_user: bool = False

    def add(self, index: int, at: int, part: "_Part") -> None:
        """Add a change by its index and time."""
        self.ends_at = at + _PAUSES[self.is_begin]
        self.indexes.append(index)
        if part.session and part.is_login and part.session not in self.sessions:
            self.sessions.append(part.session)
        self.is_of_user |= part.is_user
        if self.place is None and (part.is_user or part.is_session):
            self.place = index


def _find_logins(items: Sequence[Item], user: Callable[[int], str]) -> Iterator[Episode]:
    """Yield logins and logouts; the line has the place of the first change of user or session."""
    parts = [_Part.of(change) for change, _ in items]
    named = [part for part in parts if part and part.uid]
    names = {part.uid: part.name for part in named if part.name}
    uids = {part.name: part.uid for part in named if part.name}
    uids |= {part.session: part.uid for part in named if part.session}
    others = {part.session for part in parts if part and not part.is_login}
    logins: dict[tuple[str, bool], _Login] = {}
    ended: list[tuple[str, _Login]] = []
    for index, part in enumerate(parts):
        if part is None:
            continue
        at, is_login = items[index][0]["at"], part.session not in others
        uid = part.uid or uids.get(part.session or part.name, "")
        uid = uid or _only_uid_near(items, parts, index)
        login = logins.get((uid, part.is_begin))
        if login is None or at > login.ends_at:
            login = logins[uid, part.is_begin] = _Login(part.is_begin, 0)
            ended.append((uid, login))
        login.add(index, at, part._replace(is_login=is_login))
    for uid, login in ended:
        if uid and len(login.indexes) > 1:
            yield _episode_of_login(login, names.get(uid) or user(int(uid)))


class _Part(NamedTuple):
    """A change that belongs to a login or a logout, as far as it tells of whom."""

    is_begin: bool
    uid: str = ""
    name: str = ""
    session: str = ""
    is_session: bool = False
    is_user: bool = False
    is_login: bool = True

    @classmethod
    def of(cls, change: Change) -> "_Part | None":
        """Return the part that a change is of a login or a logout; None if it is of none."""
        kind_id, name = (change["plugin"], change["kind"]), change["name"]
        if change["what"] not in {"appeared", "gone", "changed", "event"} or change.get("by"):
            return None
        values = change_words.read_fields(change["fields"])
        uid, is_begin = _side(values, "uid"), _is_begin(change, values)
        if is_begin is None:
            return None
        if kind_id == _USER and change["what"] != "changed" and "yes" in values["linger"]:
            return None  # such a user is there without a login
        if kind_id == _USER:
            return cls(is_begin, uid, name, is_user=True)
        if kind_id == _SESSION:
            is_login = not _side(values, "class").startswith(_NO_LOGINS)
            named, session = _side(values, "user"), _session(change, name)
            return cls(is_begin, uid, named, session, is_session=True, is_login=is_login)
        if kind_id not in {UNIT, ("mounts", "mount")}:
            return None
        if scope := _SCOPE.fullmatch(name):
            of_slice = _OF_USER.fullmatch(_side(values, "slice"))
            return cls(
                is_begin, of_slice[1] if of_slice else "", session=_session(change, scope[1])
            )
        of_user = _OF_USER.fullmatch(name)
        return cls(is_begin, of_user[1]) if of_user else None


def _session(change: Change, name: str) -> str:
    """Return the name of a session with the boot: another boot uses it again."""
    return f"{name} {change['boot']}"


def _side(values: FieldValues, path: str) -> str:
    return values[path].after or values[path].before


def _is_begin(change: Change, values: FieldValues) -> bool | None:
    """Return whether an object came or went, or a user began or ended; None for other changes."""
    if change["what"] in {"appeared", "gone"}:
        return bool(change["what"] == "appeared")
    if change["what"] == "event":
        # a unit that came and went between two readings
        return True if jobs.ended_after_start(change["cause"]) else None
    if change["plugin"] == "login1":
        was_out, is_out = (state in _NOT_IN for state in values["state"][:2])
        is_part = was_out != is_out and values.keys() <= _OF_STATE
        return was_out if is_part else None
    state = values["active_state"].after
    if not values.keys() <= _STEPS or state not in {"active", "inactive"}:
        return None
    return state == "active"


def _only_uid_near(items: Sequence[Item], parts: Sequence["_Part | None"], index: int) -> str:
    """Return the user of the changes within a moment of one; empty if there are several."""
    at, found = items[index][0]["at"], set[str]()
    for way in (range(index - 1, -1, -1), range(index + 1, len(items))):
        for other in way:
            if abs(items[other][0]["at"] - at) > _MOMENT:
                break
            if part := parts[other]:
                found.add(part.uid)
    found.discard("")
    return found.pop() if len(found) == 1 else ""


def _episode_of_login(login: _Login, user: str) -> Episode:
    """Return a login or logout as one line."""
    noun = plural("session", len(login.sessions))
    names = [session.partition(" ")[0] for session in login.sessions]
    sessions = name_lists.join_first(names, _MAX_SESSIONS)
    of = f" ({noun} {sessions})" if sessions else ""
    if login.place is None or not (sessions or login.is_of_user):
        text = f"units of user {user} {'started' if login.is_begin else 'ended'}"
    elif login.is_begin:
        text = f"user {user} logged in{of}"
    elif login.is_of_user:
        text = f"user {user} logged out{of}"
    else:
        text = f"{noun} {sessions} of user {user} ended"
    place = login.indexes[0] if login.place is None else login.place
    return Episode(place, text, login.indexes)
