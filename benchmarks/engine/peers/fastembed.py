"""Contender fastembed, with the model as an ONNX file that torch exported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from child import At, Embed, Facts

PACKAGES = ("fastembed", "onnxruntime", "tokenizers")
_NAME = "op-dbus/measured"


def load(folder: Path, _: Path, threads: int, options: dict[str, str]) -> tuple[At, Facts]:
    """Load the exported model; texts are batched in their order."""
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    TextEmbedding.add_custom_model(
        model=_NAME,
        pooling=PoolingType.MEAN,
        normalization=True,
        sources=ModelSource(hf=_NAME),
        dim=config["hidden_size"],
        model_file="model.onnx",
    )
    model = TextEmbedding(_NAME, specific_model_path=options["exported"], threads=threads)

    def at(batch: int) -> Embed:
        return lambda texts: list(model.embed(texts, batch_size=batch))

    return at, {"precision": "float32", "threads": str(threads), "settings": "onnxruntime CPU"}
