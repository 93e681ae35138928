"""The seam between the engine and the model runtimes: what a session takes and gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Placement:
    """Where and how one session runs: up to `lanes` runs at a time share `threads`."""

    device: int = 0
    precision: str = "fp32"
    threads: int = 1
    lanes: int = 1
    # bytes of the accelerator's memory, None for all that is free
    memory_limit: int | None = None
    # where a provider may keep what it compiled
    cache: Path | None = None
    # most tokens a row: the graph has no positions past them
    longest: int = 512

    def on(self, device: int) -> Placement:
        """Give the same placement on another device."""
        return replace(self, device=device)


@dataclass(frozen=True, slots=True)
class Ran:
    """Where the nodes of a model ran, and in which precision its matrix products were computed.

    `products` is empty where a provider fuses the whole model into one node.
    """

    nodes: Mapping[str, int]
    products: Mapping[str, int]


class Session(Protocol):
    """A model opened by a runtime."""

    def run(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Embed ids (rows, tokens) into vectors (rows, dimension); safe to call from threads.

        Raises ProviderError.
        """

    def finish_profile(self) -> Ran:
        """Stop recording, and give what ran since the session was opened; raises ProviderError."""

    def renew(self) -> bool:
        """Open the model again if its runtime cannot stop recording; return whether it did so."""


def first_line(error: Exception) -> str:
    """Give the one line of a runtime's message that says what happened."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    if lines[0].startswith("Exception from "):
        # OpenVINO's message begins with places in its source, the outermost first
        return lines[-1]
    return lines[0].rpartition(" : ")[2] if lines[0].startswith("[ONNXRuntimeError]") else lines[0]
