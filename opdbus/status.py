"""What the daemon is at, as one sentence for `systemctl status`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opdbus.engine.embedder import Embedder
    from opdbus.engine.engines import Engines
    from opdbus.index.declared import Declared
    from opdbus.index.memory import Memory


def sentence(state: str, memory: Memory, engines: Engines, declared: Declared) -> str:
    """Say what is done in this state of the daemon, with what, and what is wrong with it."""
    faults = "".join(f"; {fault}" for fault in _faults(memory, engines, declared))
    return _work(state, memory, engines) + faults


def _work(state: str, memory: Memory, engines: Engines) -> str:
    level, count = engines.config.vector_level, len(memory.catalogue)
    engine = memory.ready
    if state == "failed":
        return f"Failed: {count:,} objects, lexical search only"
    if level == "none":
        return f"{state.title()}: {count:,} objects, lexical search only"
    if engine is None:
        return "Loading the model"
    if waiting := memory.waiting():
        return f"Vectorizing {count - waiting:,} of {count:,} objects"
    return f"{state.title()}: {count:,} objects, {level} on {_engine(engine.embedder)}"


def _engine(embedder: Embedder) -> str:
    proven = embedder.proven
    return f"{proven.provider.name} {proven.proof.precision}"


def _faults(memory: Memory, engines: Engines, declared: Declared) -> Iterable[str]:
    """Give why the state is not `ready`, the most important first."""
    if engines.fault:
        yield str(engines.fault)
    if engine := memory.ready:
        for fallback in engine.embedder.proven.fallbacks:
            yield f"{fallback.provider}: {fallback.reason}"
    if fault := declared.last_error or memory.last_fault:
        yield fault
