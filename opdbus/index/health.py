"""The daemon's state and faults, and a status line of both for `systemctl status`."""

from opdbus.errors import blame
from opdbus.index.state_store.state_file_loader import StateFileLoader
from opdbus.index.vectors.object_vectors import ObjectVectors
from opdbus.serving.states import State


class Health:
    """Combined state of the served model, the objects' vectors, the database and the state file."""

    def __init__(self, vectors: ObjectVectors, declared: StateFileLoader) -> None:
        self._vectors = vectors
        self._store = vectors.memory
        self._serving = vectors.serving
        self._declared = declared

    @property
    def state(self) -> str:
        """The daemon's state, a value of `State`; degraded also while `last_error` is set."""
        state = self._serving.phase.state
        if state in {State.READY, State.DEGRADED}:
            if not self._declared.attempted:
                state = State.LOADING
            elif self.last_error:
                state = State.DEGRADED
            elif not self._store.is_settled:
                state = State.LOADING
        return str(state.value)

    @property
    def last_error(self) -> str:
        """The first fault of the state file, the database and the vectors; empty if none."""
        return self._declared.last_error or self._store.archive.fault or self._vectors.fault

    def sentence(self) -> str:
        """Return the status line: the current work or state, and then the faults."""
        # the reasons why the state is not `ready`, the most important one first
        faults, phase = [], self._serving.phase
        if phase.state is State.FAILED:
            faults.append(str(phase.error))
        if phase.embedder:
            fallbacks = phase.embedder.proven.fallbacks
            faults += [blame(fallback.provider, fallback.reason) for fallback in fallbacks]
        if self.last_error:
            # any user may read a unit's status: leave out the names from the state file
            faults.append(self.last_error.partition(" ($")[0])
        return "; ".join([self._work(), *faults])

    def _work(self) -> str:
        level, count = self._serving.config.vector_level, len(self._store.catalogue)
        state, embedder = self.state, self._serving.phase.embedder
        if state == "failed":
            return f"Failed: {count:,} objects, search without the model"
        if not self._declared.attempted and (embedder or level == "none"):
            return f"Reading the state file, {count:,} objects known"
        if checking := self._store.eraser.sentence():
            return checking
        if not self._store.is_settled and (embedder or level == "none"):
            return f"Reading the words of {count:,} objects"
        if level == "none":
            return f"{state.title()}: {count:,} objects, lexical search only"
        if embedder is None:
            return "Loading the model"
        if self._store.stale.is_set():
            return f"Looking for objects without vectors among {count:,}"
        if waiting := self._vectors.missing_object_count():
            return f"Vectorizing {count - waiting:,} of {count:,} objects"
        precision = embedder.proven.proof.precision
        return f"{state.title()}: {count:,} objects, {level} on {embedder.provider} {precision}"
