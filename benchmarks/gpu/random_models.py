"""Models with random weights in the shape of a level's, made of the files of the medium model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import save_file

from opdbus.models.level_table import LIMIT, WEIGHTS
from opdbus.models.shape import BUCKETS, FAMILIES
from opdbus.models.weights import RELATIVE, read_weights

if TYPE_CHECKING:
    from pathlib import Path

    from opdbus.models.level_table import Level

    Shapes = Mapping[str, tuple[int, ...]]

_POOLING = "1_Pooling/config.json"
_FIRST_LAYER = "encoder.layer.0."
_SIZES = ("hidden_size", "intermediate_size", "vocab_size", "max_position_embeddings")
# Values of the config.json of a level that differ from those of the medium level.
_DIFFERENT: dict[str, dict[str, Any]] = {
    "low": {"num_hidden_layers": 3},
    "high": {
        "model_type": "mpnet",
        "num_hidden_layers": 12,
        "hidden_size": 768,
        "intermediate_size": 3072,
        "max_position_embeddings": 514,
        "vocab_size": 30527,
        "relative_attention_num_buckets": BUCKETS,
        "layer_norm_eps": 1e-5,
        "pad_token_id": 1,
    },
}


def write_random_model(level: Level, medium: Path, folder: Path) -> None:
    """Write a folder that sentence-transformers opens, too; its vectors have no meaning."""
    own = json.loads((medium / "config.json").read_text())
    config = {**own, "_name_or_path": f"{folder.name} (random weights)", **_DIFFERENT[level.name]}
    pooling = json.loads((medium / _POOLING).read_text())
    shutil.copytree(medium, folder, ignore=shutil.ignore_patterns(WEIGHTS), dirs_exist_ok=True)
    for name, content in (
        ("config.json", config),
        (_POOLING, {**pooling, "word_embedding_dimension": config["hidden_size"]}),
        (LIMIT, {"max_seq_length": level.max_tokens}),
    ):
        (folder / name).write_text(json.dumps(content))
    known = {name: each.shape for name, each in read_weights(medium / WEIGHTS).items()}
    random, drawn = np.random.default_rng(0), {}
    for name, shape in _scale(known, own, config):
        norm = name.endswith("LayerNorm.weight")
        drawn[name] = (norm + random.normal(0, 0.02, shape)).astype(np.float32)
    # transformers opens no file without this note
    save_file(drawn, folder / WEIGHTS, {"format": "pt"})


def _scale(
    known: Shapes, own: Mapping[str, Any], config: Mapping[str, Any]
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield each tensor of a level's model with its shape, from those of the medium model."""
    bert, family = FAMILIES[own["model_type"]], FAMILIES[config["model_type"]]
    names = {f"{getattr(bert, f.name)}.": f"{getattr(family, f.name)}." for f in fields(bert)}
    sizes = {own[key]: config[key] for key in _SIZES}
    for name, shape in known.items():
        scaled = tuple(sizes.get(size, size) for size in shape)
        if name.startswith(_FIRST_LAYER):
            part = name.removeprefix(_FIRST_LAYER)
            for before, after in names.items():
                if part.startswith(before):
                    part = part.replace(before, after)
                    break
            for number in range(config["num_hidden_layers"]):
                yield f"encoder.layer.{number}.{part}", scaled
        elif name.startswith("embeddings.") and (family.token_types or "token_type" not in name):
            yield name, scaled
    if family.relative:
        yield RELATIVE, (BUCKETS, config["num_attention_heads"])
