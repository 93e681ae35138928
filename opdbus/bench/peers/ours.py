"""op-dbus itself, behind the same requests as its peers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from opdbus.bench.peers.child import At, Facts

PACKAGES = ("op-dbus", "onnxruntime-gpu", "onnxruntime", "openvino", "tokenizers", "numpy")


def load(folder: Path, scratch: Path, threads: int, options: dict[str, str]) -> tuple[At, Facts]:
    """Open an embedder; it batches by length and token budget, whatever the batch size."""
    embed, facts = _open(folder, scratch, threads, options)
    return lambda _: embed, {"threads": str(threads), **facts}


def _open(
    folder: Path, scratch: Path, threads: int, options: dict[str, str]
) -> tuple[Callable[[Sequence[str]], Any], Facts]:
    """Open the engine as a program does; it is never closed: the process ends with its work."""
    from opdbus import Embedder

    embedder = Embedder(
        options["level"],
        precision=options["precision"],
        model=folder,
        state_dir=scratch,
        threads=threads,
    ).open()
    return embedder.embed, {"precision": embedder.precision, "settings": embedder.provider}
