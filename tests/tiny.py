"""A tiny real model: two layers, hidden size 32, a vocabulary of common words, random weights."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
WORDS = (
    "network name server mail disk user web time login backup unit service host interface file"
    " address port bridge package session container mount rule timer socket a b c d e 0 1 2 3"
).split()
LETTERS = [f"##{chr(code)}" for code in range(ord("a"), ord("z") + 1)]
HIDDEN, LAYERS, HEADS, WIDE, POSITIONS = 32, 2, 4, 64, 64


def write_tiny_model(folder: Path, seed: int = 0, max_tokens: int = 48) -> Path:
    """Write a whole model folder, as Hugging Face lays it out, and give it back."""
    (folder / "1_Pooling").mkdir(parents=True)
    vocabulary = [*SPECIAL, *WORDS, *LETTERS, *(chr(c) for c in range(ord("f"), ord("z") + 1))]
    config = {
        "model_type": "bert",
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": WIDE,
        "max_position_embeddings": POSITIONS,
        "vocab_size": len(vocabulary),
        "type_vocab_size": 2,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": max_tokens}))
    kinds = ("Transformer", "Pooling", "Normalize")
    modules = [{"type": f"sentence_transformers.models.{kind}"} for kind in kinds]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling" / "config.json").write_text(
        json.dumps({"pooling_mode_mean_tokens": True})
    )
    _tokenizer(vocabulary).save(str(folder / "tokenizer.json"))
    save_file(weights(len(vocabulary), seed), folder / "model.safetensors")
    return folder


def weights(words: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Make random weights under BERT's names."""
    random = np.random.default_rng(seed)

    def some(*shape: int) -> np.ndarray:
        return random.normal(0, 0.2, shape).astype(np.float32)

    made = {
        "embeddings.word_embeddings.weight": some(words, HIDDEN),
        "embeddings.position_embeddings.weight": some(POSITIONS, HIDDEN),
        "embeddings.token_type_embeddings.weight": some(2, HIDDEN),
        "embeddings.LayerNorm.weight": 1 + some(HIDDEN),
        "embeddings.LayerNorm.bias": some(HIDDEN),
    }
    for number in range(LAYERS):
        prefix = f"encoder.layer.{number}."
        for name, wide, narrow in (
            ("attention.self.query", HIDDEN, HIDDEN),
            ("attention.self.key", HIDDEN, HIDDEN),
            ("attention.self.value", HIDDEN, HIDDEN),
            ("attention.output.dense", HIDDEN, HIDDEN),
            ("intermediate.dense", WIDE, HIDDEN),
            ("output.dense", HIDDEN, WIDE),
        ):
            made[f"{prefix}{name}.weight"] = some(wide, narrow)
            made[f"{prefix}{name}.bias"] = some(wide)
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            made[f"{prefix}{name}.weight"] = 1 + some(HIDDEN)
            made[f"{prefix}{name}.bias"] = some(HIDDEN)
    return made


def _tokenizer(vocabulary: list[str]) -> Tokenizer:
    ids = {word: number for number, word in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=100))  # noqa: S106
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])]
    )
    return tokenizer
