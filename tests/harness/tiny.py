"""A tiny real model: two layers, hidden size 32, a vocabulary of common words, random weights."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from harness.random_weights import draw_weights
from opdbus.models.level_table import LEVELS
from opdbus.models.shape import Shape

# in the order of the families' own vocabularies
SPECIAL = {
    "bert": ("[PAD]", "[UNK]", "[CLS]", "[SEP]"),
    "mpnet": ("[CLS]", "[PAD]", "[SEP]", "[UNK]"),
}
WORDS = (
    "network name server mail disk user web time login backup unit service host interface file"
    " address port bridge package session container mount rule timer socket a b c d e 0 1 2 3"
).split()
LETTERS = [f"##{chr(code)}" for code in range(ord("a"), ord("z") + 1)]
HIDDEN, LAYERS, HEADS, WIDE, POSITIONS = 32, 2, 4, 64, 64


def write_tiny_model(
    folder: Path, seed: int = 0, max_tokens: int = 48, family: str = "bert"
) -> Path:
    """Write a whole model folder, as Hugging Face lays it out, and give it back."""
    (folder / "1_Pooling").mkdir(parents=True)
    more = [*WORDS, *LETTERS, *(chr(c) for c in range(ord("f"), ord("z") + 1))]
    vocabulary = [*SPECIAL[family], *more]
    config = configuration(len(vocabulary), family)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": max_tokens}))
    kinds = ("Transformer", "Pooling", "Normalize")
    modules = [{"type": f"sentence_transformers.models.{kind}"} for kind in kinds]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling" / "config.json").write_text(
        json.dumps({"pooling_mode_mean_tokens": True})
    )
    _tokenizer(vocabulary).save(str(folder / "tokenizer.json"))
    save_file(weights(len(vocabulary), seed, family), folder / "model.safetensors")
    return folder


def configuration(words: int, family: str) -> dict[str, Any]:
    """Give what config.json says."""
    own = {
        "bert": {"type_vocab_size": 2, "layer_norm_eps": 1e-12},
        "mpnet": {"relative_attention_num_buckets": 32, "layer_norm_eps": 1e-5},
    }
    return {
        "model_type": family,
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": WIDE,
        "max_position_embeddings": POSITIONS,
        "vocab_size": words,
        "hidden_act": "gelu",
        **own[family],
    }


def shape_of(family: str) -> Shape:
    """Give the shape of a tiny model."""
    return Shape(LAYERS, HIDDEN, HEADS, 1e-12, max_tokens=48, family=family)


def weights(words: int, seed: int = 0, family: str = "bert") -> dict[str, np.ndarray]:
    """Make random weights under the family's names."""
    config, random = configuration(words, family), np.random.default_rng(seed)
    return dict(draw_weights(config, random, 0.2))


def _tokenizer(vocabulary: list[str]) -> Tokenizer:
    ids = {word: number for number, word in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=100))  # noqa: S106
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])]
    )
    return tokenizer


def write_low_model(folder: Path) -> Path:
    """Write a tiny model that says it is as wide as the low one."""
    write_tiny_model(folder)
    rewrite(folder / "config.json", hidden_size=LEVELS["low"].dimension)
    return folder


def rewrite(path: Path, **change: object) -> None:
    """Change keys of a JSON object."""
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
