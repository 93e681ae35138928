"""What is counted as drift is stored, so that a crossing is told once, and is a row of history."""

import json
from collections.abc import Iterator, Sequence
from typing import Final

import structlog

from opdbus.drift.field import DECLARED, Field, Severity
from opdbus.drift.pairs import Pairs
from opdbus.drift.rule_table import Sort
from opdbus.drift.transition_filter import Drifted, DriftTransition
from opdbus.errors import StoreError
from opdbus.history import change
from opdbus.history.change import NOT_FOLLOWED, STATE_FILE, Change, FieldChange, What, Why
from opdbus.history.change_sentence import of_change
from opdbus.index.database.store import Entry, Store
from opdbus.index.state_store.state_store import StateStore
from opdbus.state.object import FILE, PUBLISHED, Identity, ObjectId

log = structlog.get_logger()

_CLAIMS: Final = "exclusive"
_SINCE: Final = "declared since"


class Records:
    """Reads and writes what is counted."""

    def __init__(self, memory: StateStore, pairs: Pairs) -> None:
        # the sorts that the file claims whole; None until that is known
        self.claims: frozenset[Sort] | None = None
        # when something was declared for the first time: that was no change of a declaration
        self.declared_since = 0
        self._memory = memory
        self._pairs = pairs
        # what could not be written
        self._unsaved: dict[ObjectId, Drifted | None] = {}
        # things of which programs told: these may withdraw what they said
        self._told: set[ObjectId] = set()

    async def read(self) -> dict[ObjectId, Drifted]:
        """Return what was counted when the database was written: of the fields, no values."""
        rows, claims, since = await self._memory.archive.read(
            lambda store: (list(store.drifts()), store.fact(_CLAIMS), store.fact(_SINCE))
        )
        self.declared_since = int(since or 0)
        if self.claims is None:
            self.claims = frozenset((plugin, kind) for plugin, kind in json.loads(claims or "[]"))
        return {thing: _read(what, since, text) for thing, what, since, text in rows}

    async def declare(self, at: int) -> None:
        """Note when something was declared, if it is the first time."""
        if not self.declared_since:
            self.declared_since = at
            await self.write([])

    async def write(self, crossings: Sequence[DriftTransition]) -> None:
        """Write crossings; what cannot be written now is written later, without its history."""
        changes = [one for crossing in crossings for one in self._changes(crossing)]
        states = {crossing.thing: crossing.after for crossing in crossings}
        self._unsaved |= states
        try:
            await self._save(changes)
        except StoreError as error:
            log.warning("drift not stored", reason=str(error))
            self._memory.archive.when_writable(self._save)

    async def _save(self, changes: Sequence[Change] = ()) -> None:
        states, claims = dict(self._unsaved), json.dumps(sorted(self.claims or ()))
        since = str(self.declared_since)
        rows = [(thing, *_row(state)) for thing, state in states.items() if state]
        gone = [thing for thing, state in states.items() if not state]

        def work(store: Store) -> None:
            store.put_drifts(rows, gone)
            store.set_fact(_CLAIMS, claims)
            store.set_fact(_SINCE, since)

        await self._memory.record(changes, work)
        for thing, state in states.items():
            if self._unsaved.get(thing) is state:
                del self._unsaved[thing]

    def _changes(self, crossing: DriftTransition) -> Iterator[Change]:
        """Yield the rows of history that a crossing makes: at most one for each class."""
        publisher = self._publisher(crossing.thing)
        for what, cause, fields in _told(crossing):
            identity = publisher.identity if publisher else Identity(FILE, *crossing.thing)
            is_kept = all(one.is_known for one in fields)
            if publisher.transient if publisher else crossing.thing in self._told:
                is_kept = False
            changed = [row for one in fields for row in _moved(what, crossing, one)]
            rows = changed if is_kept else change.without_values(changed)
            yield of_change(Change(identity, what, Why(cause), rows), "")
        if crossing.after is None:
            self._told.discard(crossing.thing)

    def _publisher(self, thing: ObjectId) -> Entry | None:
        """Return the entry of a program that tells of a thing, if what it says is compared."""
        sides = map(self._pairs.sides, self._pairs.observed(thing))
        entries = [entry for side in sides for entry in side.observed]
        found = next((e for e in entries if e.identity.source.startswith(PUBLISHED)), None)
        if found:
            self._told.add(thing)
        return found


def _told(crossing: DriftTransition) -> Iterator[tuple[What, str, Sequence[Field]]]:
    """Yield what is told of a crossing: what happened, why, and to which fields."""
    if crossing.after and crossing.began:
        yield crossing.after.what, _began_by(crossing), crossing.began
    if crossing.healed:
        yield "healed", crossing.ended_by, crossing.healed
    if crossing.dropped:
        yield "undeclared", STATE_FILE, crossing.dropped


def _began_by(crossing: DriftTransition) -> str:
    before, after = crossing.before, crossing.after
    if after and after.what == "intended":
        return STATE_FILE
    known = {one.path for one in before.fields} if before and before.what == "intended" else set()
    has_waited = known.issuperset(one.path for one in crossing.began)
    return NOT_FOLLOWED if has_waited and crossing.began_by == STATE_FILE else crossing.began_by


def _moved(what: What, crossing: DriftTransition, field: Field) -> Iterator[FieldChange]:
    """Yield what was observed of a field before and after, and the value that is declared of it.

    The declared value is no value before: it has a row of its own, below `declared`.
    """
    declared, other = (DECLARED, *field.path), crossing.observed.get(field.path, ())
    if what == "undeclared":
        yield FieldChange(declared, [field.declared], [])
    elif what == "healed":
        yield FieldChange(field.path, [field.observed], other)
    else:
        yield FieldChange(field.path, other, [field.observed])
        yield FieldChange(declared, [], [field.declared])


def _row(state: Drifted) -> tuple[str, float, str]:
    fields = [[list(one.path), one.severity.word] for one in state.fields]
    return state.what, state.since, json.dumps(fields)


def _read(what: str, since: float, text: str) -> Drifted:
    fields = [
        Field(tuple(path), None, None, Severity[word.upper()], is_known=False)
        for path, word in json.loads(text)
    ]
    return Drifted("intended" if what == "intended" else "drift", since, fields)
