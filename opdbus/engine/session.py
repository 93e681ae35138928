"""Interface between the engine and the model runtimes."""

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
    """Device, precision and threads of one session: up to `lanes` parallel runs share `threads`."""

    device: int = 0
    precision: str = "fp32"
    threads: int = 1
    lanes: int = 1
    # bytes of the accelerator's memory; None for all free memory
    memory_limit: int | None = None
    # folder in which a provider may cache compiled graphs
    cache: Path | None = None
    # largest number of tokens in a row: the graph has no further positions
    longest: int = 512

    def on(self, device: int) -> Placement:
        """Return the same placement on another device."""
        return replace(self, device=device)


@dataclass(frozen=True, slots=True)
class Ran:
    """Number of nodes by runtime name, and number of matrix products by precision.

    `products` is empty if a provider fuses the whole model into one node.
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
        """Stop recording and return the nodes and products so far; raises ProviderError."""

    def renew(self) -> bool:
        """Reopen the model if its runtime cannot stop recording; return true if it did so."""


def first_line(error: Exception) -> str:
    """Return the line of a runtime's message that names the cause."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    if lines[0].startswith("Exception from "):
        # OpenVINO's message begins with places in its source, the outermost first
        return lines[-1]
    return lines[0].rpartition(" : ")[2] if lines[0].startswith("[ONNXRuntimeError]") else lines[0]
