"""Shape and family of a model from its folder's JSON files, with checks that it can be built."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from opdbus.errors import ModelError
from opdbus.models.level_table import LIMIT
from opdbus.platform.regular_files import read_regular

# MPNet's constants, which config.json cannot change: the id of its padding token, ...
PADDING: Final = 1
# ... and the number of buckets for distances between tokens.
BUCKETS: Final = 32


@dataclass(frozen=True, slots=True)
class Family:
    """Tensor names within `encoder.layer.N.`, and the kind of positions."""

    query: str
    key: str
    value: str
    mixed: str
    mixed_norm: str
    token_types: bool
    # positions start after the padding token's, and attention is biased by distance
    relative: bool

    @property
    def first_position(self) -> int:
        """The row of the position embeddings for a text's first token."""
        return PADDING + 1 if self.relative else 0


FAMILIES: Final = {
    "bert": Family(
        query="attention.self.query",
        key="attention.self.key",
        value="attention.self.value",
        mixed="attention.output.dense",
        mixed_norm="attention.output.LayerNorm",
        token_types=True,
        relative=False,
    ),
    "mpnet": Family(
        query="attention.attn.q",
        key="attention.attn.k",
        value="attention.attn.v",
        mixed="attention.attn.o",
        mixed_norm="attention.LayerNorm",
        token_types=False,
        relative=True,
    ),
}

# Token limit of a text unless the folder gives another.
_DEFAULT_MAX_TOKENS: Final = 512


@dataclass(frozen=True, slots=True)
class Shape:
    """Dimensions and constants of a model's architecture."""

    layers: int
    hidden: int
    heads: int
    epsilon: float
    max_tokens: int
    family: str = "bert"


def read_shape(folder: Path, limit: int | None) -> tuple[Shape, int]:
    """Return the shape of a folder's model and the size of its vocabulary.

    `limit` is the largest number of tokens in a text; None takes it from the folder. Raises
    ModelError.
    """
    path = folder / "config.json"
    config = _read_object(path)
    _require_supported(folder, config)
    layers, hidden, heads, words = (
        _require_integer(path, key, config.get(key))
        for key in ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")
    )
    epsilon = config.get("layer_norm_eps", 1e-12)
    if hidden % heads:
        raise ModelError(f"{path}: {heads} attention heads do not divide hidden_size {hidden}")
    if not isinstance(epsilon, float):
        raise ModelError(f"{path} gives {epsilon!r} for layer_norm_eps: it must be a small number")
    max_tokens = min(limit or _stated_limit(folder), _positions(path, config))
    return Shape(layers, hidden, heads, epsilon, max_tokens, config["model_type"]), words


def _stated_limit(folder: Path) -> int:
    path, key = folder / LIMIT, "max_seq_length"
    stated = _read_object(path).get(key) if path.is_file() else None
    return _require_integer(path, key, stated or _DEFAULT_MAX_TOKENS)


def _positions(path: Path, config: dict[str, Any]) -> int:
    """Return the number of tokens that have position embeddings."""
    key = "max_position_embeddings"
    rows = _require_integer(path, key, config.get(key, _DEFAULT_MAX_TOKENS))
    first = FAMILIES[config["model_type"]].first_position
    if rows <= first:
        raise ModelError(f"{path} gives {rows} for {key}: at least {first + 1}")
    return rows - first


def _require_supported(folder: Path, config: dict[str, Any]) -> None:
    _require_family(folder, config)
    pooling = _read_object(folder / "1_Pooling" / "config.json")
    modes = pooling.get("pooling_mode") or [
        key for key, on in pooling.items() if key.startswith("pooling_mode_") and on is True
    ]
    if modes not in ("mean", ["mean"], ["pooling_mode_mean_tokens"]):
        raise ModelError(f"{folder} pools by {modes}: only the mean of all tokens can be built")
    kinds = _read_modules(folder / "modules.json")
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise ModelError(
            f"{folder / 'modules.json'} lists {', '.join(kinds) or 'no modules'}: only Transformer,"
            " Pooling and Normalize can be built, in this order"
        )


def _require_family(folder: Path, config: dict[str, Any]) -> None:
    kind = config.get("model_type")
    if kind not in tuple(FAMILIES):
        known = " or ".join(map(repr, FAMILIES))
        raise ModelError(f"{folder} holds a model of type {kind!r}: only {known} can be built")
    if config.get("hidden_act", "gelu") != "gelu":
        raise ModelError(f"{folder} uses the activation {config['hidden_act']!r}, not 'gelu'")
    if FAMILIES[kind].relative:
        buckets = config.get("relative_attention_num_buckets", BUCKETS)
        if buckets != BUCKETS:
            raise ModelError(f"{folder} sorts distances in {buckets!r} buckets, not {BUCKETS}")
    elif config.get("position_embedding_type", "absolute") != "absolute":
        raise ModelError(f"{folder} uses relative positions, which a BERT graph does not have")


def _read_modules(path: Path) -> list[str]:
    """Return the class names of the modules that a text passes through."""
    modules = _read_json(path)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise ModelError(f"cannot read {path}: it holds no list of modules")
    return [str(module.get("type", "")).rpartition(".")[2] for module in modules]


def _read_json(path: Path) -> Any:  # noqa: ANN401 -- any JSON
    try:
        return json.loads(read_regular(path, follow=True))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"cannot read {path}: {error}") from None


def _read_object(path: Path) -> dict[str, Any]:
    found = _read_json(path)
    if not isinstance(found, dict):
        raise ModelError(f"cannot read {path}: it holds no JSON object")
    return found


def _require_integer(path: Path, key: str, value: object) -> int:
    if isinstance(value, int) and value > 0:
        return value
    raise ModelError(f"{path} gives {value!r} for {key}: it must be a whole number above 0")
