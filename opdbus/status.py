"""What the daemon is at, as one sentence for `systemctl status`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opdbus.engine.embedder import Embedder
    from opdbus.engine.engines import Engines
    from opdbus.index.declared import Declared
    from opdbus.index.memory import Memory


def sentence(state: str, waiting: int, memory: Memory, engines: Engines, declared: Declared) -> str:
    """Say what is done in this state of the daemon, with what, and what is wrong with it.

    So many texts wait for their vectors; counting them here would take too long.
    """
    faults = "".join(f"; {fault}" for fault in _faults(memory, engines, declared))
    return _work(state, waiting, memory, engines) + faults


def _work(state: str, waiting: int, memory: Memory, engines: Engines) -> str:
    level, count = engines.config.vector_level, len(memory.catalogue)
    engine = memory.ready
    if state == "failed":
        return f"Failed: {count:,} objects, lexical search only"
    if state == "loading" and (level == "none" or engine):
        return f"Reading the state file, {count:,} objects known"
    if level == "none":
        return f"{state.title()}: {count:,} objects, lexical search only"
    if engine is None:
        return "Loading the model"
    if memory.stale.is_set():
        return f"Looking for objects without vectors among {count:,}"
    if waiting:
        return f"Vectorizing {max(0, count - waiting):,} of {count:,} objects"
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
