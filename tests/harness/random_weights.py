"""Random weights in the shape of a config.json, and the configurations of two levels' models."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from opdbus.models.shape import BUCKETS, FAMILIES, Family
from opdbus.models.weights import RELATIVE, Weights

Shapes = dict[str, tuple[int, ...]]

CONFIGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "low": {
        "model_type": "bert",
        "hidden_size": 384,
        "num_hidden_layers": 3,
        "num_attention_heads": 12,
        "intermediate_size": 1536,
        "max_position_embeddings": 512,
        "vocab_size": 30522,
        "type_vocab_size": 2,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "pad_token_id": 0,
    },
    "high": {
        "model_type": "mpnet",
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "max_position_embeddings": 514,
        "vocab_size": 30527,
        "relative_attention_num_buckets": BUCKETS,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-5,
        "pad_token_id": 1,
    },
}


def draw_weights(
    config: Mapping[str, Any], random: np.random.Generator | np.random.RandomState, scale: float
) -> Weights:
    """Draw all tensors of a config.json from a normal distribution around 0, or 1 for norms."""
    made = {}
    for name, shape in tensors(config).items():
        drawn = random.normal(0, scale, shape).astype(np.float32)
        made[name] = 1 + drawn if name.endswith("LayerNorm.weight") else drawn
    return made


def tensors(config: Mapping[str, Any]) -> Shapes:
    """Return the shape of every tensor by its name."""
    family = FAMILIES[config["model_type"]]
    hidden, positions = config["hidden_size"], config["max_position_embeddings"]
    made: Shapes = {
        "embeddings.word_embeddings.weight": (config["vocab_size"], hidden),
        "embeddings.position_embeddings.weight": (positions, hidden),
    }
    if family.token_types:
        made["embeddings.token_type_embeddings.weight"] = (config["type_vocab_size"], hidden)
    made |= _norm("embeddings.LayerNorm", hidden)
    for number in range(config["num_hidden_layers"]):
        prefix = f"encoder.layer.{number}."
        made |= _layer(prefix, family, hidden, config["intermediate_size"])
    if family.relative:
        made[RELATIVE] = (BUCKETS, config["num_attention_heads"])
    return made


def _layer(prefix: str, family: Family, hidden: int, wide: int) -> Shapes:
    square = (family.query, family.key, family.value, family.mixed)
    dense = [(name, hidden, hidden) for name in square]
    dense += [("intermediate.dense", wide, hidden), ("output.dense", hidden, wide)]
    made: Shapes = {}
    for name, rows, columns in dense:
        made[f"{prefix}{name}.weight"] = (rows, columns)
        made[f"{prefix}{name}.bias"] = (rows,)
    return (
        made
        | _norm(prefix + family.mixed_norm, hidden)
        | _norm(prefix + "output.LayerNorm", hidden)
    )


def _norm(name: str, hidden: int) -> Shapes:
    return {f"{name}.weight": (hidden,), f"{name}.bias": (hidden,)}
