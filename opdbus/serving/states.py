"""States of a level's engine, and the table of their transitions; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from opdbus.engine.embedder import Embedder
from opdbus.errors import Internal, OpDbusError


class State(Enum):
    """State of a level: callers wait, get vectors, get those of a later provider, or an error."""

    LOADING = "loading"
    READY = "ready"
    DEGRADED = "degraded"
    FAILED = "failed"
    CLOSED = "closed"


class Event(Enum):
    """Events in the lifecycle of a level's engine."""

    PROVEN = "an engine was opened and proven on the first provider asked for"
    FELL_BACK = "an engine was opened and proven on a later provider of the chain"
    REFUSED = "no provider could be opened and proven"
    LOST = "the engine that served stopped working"
    CLOSED = "the level was switched, unloaded or stopped"


_OPEN: Final = frozenset(State) - {State.CLOSED}

# event: the states in which it can occur, and the state after it
TRANSITIONS: Final[Mapping[Event, tuple[frozenset[State], State]]] = {
    Event.PROVEN: (_OPEN, State.READY),
    Event.FELL_BACK: (_OPEN, State.DEGRADED),
    Event.REFUSED: (frozenset({State.LOADING, State.FAILED}), State.FAILED),
    Event.LOST: (frozenset({State.READY, State.DEGRADED}), State.LOADING),
    Event.CLOSED: (_OPEN, State.CLOSED),
}


@dataclass(frozen=True, slots=True)
class Phase:
    """State of a level with its engine or error.

    `embedder` is set in READY and DEGRADED, `error` in FAILED and CLOSED; callers get one of them.
    `reason` explains the last transition.
    """

    state: State
    reason: str = ""
    embedder: Embedder | None = None
    error: OpDbusError | None = None

    def after(
        self,
        event: Event,
        reason: str,
        embedder: Embedder | None = None,
        error: OpDbusError | None = None,
    ) -> Phase:
        """Return the phase after an event; raises Internal if the table does not allow it."""
        allowed, state = TRANSITIONS[event]
        if self.state not in allowed:
            raise Internal(f"{event.name} cannot happen to an engine that is {self.state.value}")
        return Phase(state, reason, embedder, error)
