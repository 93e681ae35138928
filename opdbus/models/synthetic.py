"""Models with random weights in the shape of a level's model, for measuring speed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from opdbus.models.level_table import TOKENIZER, WEIGHTS
from opdbus.models.shape import BUCKETS, FAMILIES, Family
from opdbus.models.weights import RELATIVE

if TYPE_CHECKING:
    from opdbus.models.level_table import Level
    from opdbus.models.weights import Weights

    Shapes = dict[str, tuple[int, ...]]

_MINILM: Final = {
    "model_type": "bert",
    "hidden_size": 384,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
    "max_position_embeddings": 512,
    "vocab_size": 30522,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
}
# Contents of the models' config.json, by level.
CONFIGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "low": {**_MINILM, "num_hidden_layers": 3},
    "medium": {**_MINILM, "num_hidden_layers": 6},
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
_MODULES: Final = [
    {"idx": idx, "name": str(idx), "path": path, "type": f"sentence_transformers.models.{kind}"}
    for idx, (path, kind) in enumerate(
        [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    )
]
# Without this, transformers would tokenize as the model's own family does.
_WORDPIECE: Final = {
    "tokenizer_class": "BertTokenizer",
    "do_lower_case": True,
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
    "model_input_names": ["input_ids", "attention_mask"],
}


def write_model(level: Level, parent: Path, tokenizer: Path, seed: int = 0) -> Path:
    """Write a level's model with random weights to `parent`/random-NAME, and return that folder.

    Its vectors have no meaning. `tokenizer` is BERT's tokenizer.json with a vocabulary no larger
    than the model's. sentence-transformers opens the folder too.
    """
    from safetensors.numpy import save_file

    config = CONFIGS[level.name]
    folder = parent / f"random-{level.folder}"
    (folder / "1_Pooling").mkdir(parents=True, exist_ok=True)
    pooling = {
        "word_embedding_dimension": config["hidden_size"],
        "pooling_mode_mean_tokens": True,
    }
    _write(folder / "config.json", {"_name_or_path": f"{folder.name} (random weights)", **config})
    _write(folder / "modules.json", _MODULES)
    _write(folder / "1_Pooling" / "config.json", pooling)
    _write(folder / "tokenizer_config.json", _WORDPIECE)
    _write(folder / "sentence_bert_config.json", {"max_seq_length": level.max_tokens})
    shutil.copyfile(tokenizer, folder / TOKENIZER)
    # transformers opens no file without this note
    note = {"format": "pt"}
    save_file(dict(weights(config, np.random.default_rng(seed))), folder / WEIGHTS, note)
    return folder


def weights(
    config: Mapping[str, Any],
    random: np.random.Generator | np.random.RandomState,
    scale: float = 0.02,
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


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
