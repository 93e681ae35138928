"""op-dbus itself, behind the same requests as its peers."""

from __future__ import annotations

import asyncio
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
    """Open the engine as a program does."""
    from opdbus import config
    from opdbus.engine.embedder import open_embedder
    from opdbus.models import folder as folders
    from opdbus.models.catalogue import LEVELS

    settings = config.load(
        {
            "HOME": str(scratch),
            "OP_DBUS_STATE_DIR": str(scratch),
            "OP_DBUS_MODEL": str(folder),
            "OP_DBUS_VECTOR_LEVEL": options["level"],
            "OP_DBUS_PRECISION": options["precision"],
            "OP_DBUS_THREADS": str(threads),
        }
    )
    model = folders.load(LEVELS[options["level"]], settings)
    # never closed, but kept: the process ends with its work
    runner, opened = asyncio.Runner(), open_embedder(model, settings)
    embedder = runner.run(opened.__aenter__())
    proven = embedder.proven
    facts = {"precision": proven.placement.precision, "settings": proven.provider.name}

    def embed(texts: Sequence[str], _kept: object = opened) -> Any:  # noqa: ANN401 -- an array
        return runner.run(embedder.embed(texts)).vectors

    return embed, facts
