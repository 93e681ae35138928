"""Stores the drift state, so that each transition is reported once, and writes it to history."""

import json
from collections.abc import Iterator, Sequence
from typing import Final

import structlog

from opdbus.drift import rule_table
from opdbus.drift.field import DECLARED, Field, Severity
from opdbus.drift.pairs import Pairs
from opdbus.drift.transition_filter import DriftState, DriftTransition
from opdbus.errors import StoreError
from opdbus.history import change
from opdbus.history.change import NOT_FOLLOWED, STATE_FILE, Cause, Change, ChangeType, FieldChange
from opdbus.history.change_sentence import of_change
from opdbus.index.database.store import Store
from opdbus.index.state_store.state_store import StateStore
from opdbus.state.object import FILE, PUBLISHED, Identity, KindId, ObjectId

log = structlog.get_logger()

_CLAIMS: Final = "exclusive"
_SINCE: Final = "declared since"


class Records:
    """Stored drift states; transitions also become rows of history."""

    def __init__(self, memory: StateStore, pairs: Pairs) -> None:
        # the kinds that the file claims to declare completely; None until that is known
        self.claims: frozenset[KindId] | None = None
        # when each kind was first claimed, in seconds since 1970; not of claims before the start
        self._claimed_at: dict[KindId, float] = {}
        # when the state file first declared an object: that makes no drift transition `undeclared`
        self.declared_since = 0
        self._memory = memory
        self._pairs = pairs
        # states that could not be written, to be written later
        self._unsaved: dict[ObjectId, DriftState | None] = {}
        # objects that publishers reported: they may withdraw values, so history keeps none
        self._published: set[ObjectId] = set()

    async def read(self) -> dict[ObjectId, DriftState]:
        """Return the stored drift states; their fields have paths and severities, but no values."""
        rows, claims, declared_since = await self._memory.archive.read(
            lambda store: (list(store.drifts()), store.fact(_CLAIMS), store.fact(_SINCE))
        )
        self.declared_since = int(declared_since or 0)
        if self.claims is None:
            self.claims = frozenset((plugin, kind) for plugin, kind in json.loads(claims or "[]"))
            self._pairs.claims = self.claims
        found = {}
        for object_id, what, since, text in rows:
            fields = [
                Field(tuple(path), None, None, Severity[word.upper()], is_known=False)
                for path, word in json.loads(text)
            ]
            found[object_id] = DriftState(
                "intended" if what == "intended" else "drift", since, fields
            )
        return found

    def claim(self, claims: frozenset[KindId], at: float) -> frozenset[KindId]:
        """Take the kinds that the file claims; return those that it did or did not claim before."""
        others = claims ^ (self.claims or frozenset())
        if self.claims is not None:
            known = self._claimed_at | dict.fromkeys(others, at)
            self._claimed_at = {kind_id: known[kind_id] for kind_id in claims & known.keys()}
        self.claims = self._pairs.claims = claims
        return others

    def claimed_at(self, object_id: ObjectId) -> float:
        """Return when the file began to claim an object's kind; 0 if that was before the start."""
        kind_ids = rule_table.declared_of(object_id[:2])
        return max((self._claimed_at.get(kind_id, 0.0) for kind_id in kind_ids), default=0.0)

    async def declare(self, at: int) -> None:
        """Record the time of the first declaration, if none is recorded."""
        if not self.declared_since:
            self.declared_since = at
            await self.write([])

    async def write(self, transitions: Sequence[DriftTransition]) -> None:
        """Write drift transitions; if that fails, write the states later, without history."""
        changes = [one for transition in transitions for one in self._changes(transition)]
        states = {transition.object_id: transition.after for transition in transitions}
        self._unsaved |= states
        try:
            await self._save(changes)
        except StoreError as error:
            log.warning("drift not stored", reason=str(error))
            self._memory.archive.when_writable(self._save)

    async def _save(self, changes: Sequence[Change] = ()) -> None:
        states, claims, since = dict(self._unsaved), self.claims or (), str(self.declared_since)
        rows = []
        for object_id, state in states.items():
            if state:
                fields = [[list(one.path), one.severity.word] for one in state.fields]
                rows.append((object_id, state.what, state.since, json.dumps(fields)))
        gone = [object_id for object_id, state in states.items() if not state]

        def work(store: Store) -> None:
            store.put_drifts(rows, gone)
            store.set_fact(_CLAIMS, json.dumps(sorted(claims)))
            store.set_fact(_SINCE, since)

        await self._memory.record(changes, work)
        for object_id, state in states.items():
            if self._unsaved.get(object_id) is state:
                del self._unsaved[object_id]

    def _changes(self, transition: DriftTransition) -> Iterator[Change]:
        """Yield the history rows of a transition: at most one for each class of change."""
        sides = map(self._pairs.sides, self._pairs.observed(transition.object_id))
        entries = (entry for side in sides for entry in side.observed)
        # the publisher that reports the observed object, if it is compared
        publisher = next((e for e in entries if e.identity.source.startswith(PUBLISHED)), None)
        if publisher:
            self._published.add(transition.object_id)
        for what, cause, fields in _history_rows(transition):
            identity = publisher.identity if publisher else Identity(FILE, *transition.object_id)
            is_kept = all(one.is_known for one in fields)
            if publisher.transient if publisher else transition.object_id in self._published:
                is_kept = False
            changed = [row for one in fields for row in _field_changes(what, transition, one)]
            rows = changed if is_kept else change.without_values(changed)
            worst = max(one.severity for one in fields).word
            rows.append(change.severity_field(worst))
            yield of_change(Change(identity, what, Cause(cause), rows), "")
        if transition.after is None:
            self._published.discard(transition.object_id)


def _history_rows(transition: DriftTransition) -> Iterator[tuple[ChangeType, str, Sequence[Field]]]:
    """Yield what happened in a transition, its cause, and the affected fields."""
    before, after = transition.before, transition.after
    if after and transition.began:
        cause = transition.began_by
        if after.what == "intended":
            cause = STATE_FILE
        elif cause == STATE_FILE and before and before.what == "intended":
            # the host has not followed the file in time
            known = {one.path for one in before.fields}
            is_known = known.issuperset(one.path for one in transition.began)
            cause = NOT_FOLLOWED if is_known else cause
        yield after.what, cause, transition.began
    if transition.healed:
        yield "healed", transition.ended_by, transition.healed
    if transition.dropped:
        yield "undeclared", STATE_FILE, transition.dropped


def _field_changes(
    what: ChangeType, transition: DriftTransition, field: Field
) -> Iterator[FieldChange]:
    """Yield the observed value of a field before and after, and its declared value.

    The declared value is not the value before: it has a row of its own, below `declared`.
    """
    declared, other = (DECLARED, *field.path), transition.observed.get(field.path, ())
    if what == "undeclared":
        yield FieldChange(declared, [field.declared], [])
    elif what == "healed":
        yield FieldChange(field.path, [field.observed], other)
    else:
        yield FieldChange(field.path, other, [field.observed])
        yield FieldChange(declared, [], [field.declared])
