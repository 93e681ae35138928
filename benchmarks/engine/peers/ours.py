"""Contender op-dbus, behind the same requests as its peers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from child import At, Facts

PACKAGES = ("op-dbus", "onnxruntime-gpu", "onnxruntime", "openvino", "tokenizers", "numpy")


def load(folder: Path, scratch: Path, threads: int, options: dict[str, str]) -> tuple[At, Facts]:
    """Open an embedder as a program does; it stays open until the process ends.

    It batches by length and token budget, whatever the batch size.
    """
    from opdbus import Embedder

    embedder = Embedder(
        options["level"],
        precision=options["precision"],
        model=folder,
        state_dir=scratch,
        threads=threads,
    ).open()
    facts = {"precision": embedder.precision, "settings": embedder.provider}
    return lambda _: embedder.embed, {"threads": str(threads), **facts}
