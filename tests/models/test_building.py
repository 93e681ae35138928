"""Graphs built once from a model's weights, and weights that cannot be built."""

import asyncio
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from harness.running import run_program
from harness.tiny import write_tiny_model
from safetensors.numpy import load_file, save_file

from opdbus.engine.proof import Probe
from opdbus.errors import ModelError
from opdbus.models import build, folder, weights
from opdbus.models.folder import Model
from opdbus.models.level_table import Level

OWN = Level("medium", "someone/tiny", 32, 20)
SOON = 120.0  # seconds: a limit for what should take few, not a measurement

# weights


def test_half_precision_weights(tiny: Path) -> None:
    """Read weights in fp16, bf16 and fp64 as float32, rounded as their types round."""
    full = load_file(tiny / "model.safetensors")
    for kind in (np.float16, ml_dtypes.bfloat16, np.float64):
        rounded = {name: value.astype(kind) for name, value in full.items()}
        save_file(rounded, tiny / "other.safetensors")
        found = weights.read_weights(tiny / "other.safetensors")
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
    found = weights.read_weights(path / "p.safetensors")
    assert found.keys() == full.keys()
    assert all((found[name] == value).all() for name, value in full.items())


# building


def ensured(model: Model, cache: Path) -> build.Built:
    """Build a model's graph in the usual way."""
    return asyncio.run(asyncio.wait_for(build.ensure(model, cache), SOON))


def parts(cache: Path) -> list[str]:
    """List what lies in the cache besides its lock."""
    return sorted(path.name for path in cache.iterdir() if path.name != build.LOCK)


def test_built_once(tiny: Path, tmp_path: Path) -> None:
    """Build a graph the first time only, and again for other weights or another shape."""
    model, cache = folder.read_model(tiny, OWN), tmp_path / "graphs"
    first = ensured(model, cache)
    assert parts(cache) == [first.folder.name]
    made = first.graph.stat().st_mtime_ns
    assert ensured(replace(model, name="moved"), cache) == first
    assert first.graph.stat().st_mtime_ns == made
    other = write_tiny_model(tmp_path / "other", seed=1)
    second = ensured(folder.read_model(other, OWN), cache)
    third = ensured(replace(model, shape=replace(model.shape, heads=8)), cache)
    assert len({first.folder, second.folder, third.folder}) == 3
    vectors = [Probe.read(built.proof).vectors for built in (first, second, third)]
    assert not np.allclose(vectors[0], vectors[1])
    assert not np.allclose(vectors[0], vectors[2])


def test_weights_lie_beside_the_graph(tiny: Path, tmp_path: Path) -> None:
    """Keep the weights out of the graph's file, so that they can be mapped."""
    built = ensured(folder.read_model(tiny, OWN), tmp_path / "graphs")
    assert sorted(path.name for path in built.folder.iterdir()) == sorted(
        [build.GRAPH, build.DATA, build.PROOF, folder.RECORD_NAME]
    )
    assert (built.folder / build.DATA).stat().st_size > 50_000


_ENSURE = """
import asyncio, sys
from pathlib import Path
from opdbus.models import build, folder
from opdbus.models.level_table import LEVELS, Level
model = folder.read_model(Path(sys.argv[1]), LEVELS["medium"])
asyncio.run(build.ensure(model, Path(sys.argv[2])))
print(sorted({"onnx", "numpy", "safetensors"} & set(sys.modules)))
"""


def test_a_child_does_the_work(tiny: Path, tmp_path: Path) -> None:
    """Load no onnx and no weights into the process that asks, nor modules from its folder."""
    (tmp_path / "numpy.py").write_text("raise SystemExit('a stranger in the current folder')")
    answer = run_program(
        [sys.executable, "-P", "-c", _ENSURE, tiny, tmp_path / "graphs"], cwd=tmp_path
    )
    assert (answer.stdout, answer.stderr) == ("[]\n", "")


def test_two_at_a_time(tiny: Path, tmp_path: Path) -> None:
    """Give both of two callers that ask at once the same whole graph."""
    model, cache = folder.read_model(tiny, OWN), tmp_path / "graphs"

    async def both() -> list[build.Built]:
        return await asyncio.gather(build.ensure(model, cache), build.ensure(model, cache))

    first, second = asyncio.run(asyncio.wait_for(both(), SOON))
    assert first == second
    assert parts(cache) == [first.folder.name]
    assert len(Probe.read(first.proof).rows) == len(build.PROBE_LENGTHS)


def test_the_second_does_not_build_again(tiny: Path, tmp_path: Path) -> None:
    """Find the graph that another process built while this one waited for the lock."""
    shape = folder.read_model(tiny, OWN).shape

    def never(*_: object) -> None:
        raise AssertionError("built twice")

    build.write_graph(tiny / "model.safetensors", tmp_path / "graphs" / "g", shape)
    build.write_graph(tiny / "model.safetensors", tmp_path / "graphs" / "g", shape, never)


_DIE = """
import os, signal, sys
from pathlib import Path
from opdbus.models import build, folder
from opdbus.models.level_table import LEVELS, Level

def die(weights, part, shape):
    build.fill(weights, part, shape)
    (part / build.DATA).write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)

model, target = Path(sys.argv[1]), Path(sys.argv[2])
shape = folder.read_model(model, LEVELS["medium"]).shape
build.write_graph(model / "model.safetensors", target, shape, die)
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
    built = ensured(folder.read_model(tiny, OWN), cache)
    assert parts(cache) == [built.folder.name]
    assert (built.folder / build.DATA).stat().st_size > 50_000


def _flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.fixture(scope="module")
def graphs(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the graph of the tiny model once for all tests of damage."""
    cache = tmp_path_factory.mktemp("built") / "graphs"
    ensured(folder.read_model(tiny_model, OWN), cache)
    return cache


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *((name, _flipped) for name in (*build.FILES, folder.RECORD_NAME)),
        *((name, Path.unlink) for name in (build.GRAPH, folder.RECORD_NAME)),
        (build.DATA, lambda path: path.write_bytes(b"")),
        (build.PROOF, lambda path: os.truncate(path, path.stat().st_size // 2)),
        (build.GRAPH, lambda path: path.unlink() or path.mkdir()),
    ],
)
def test_a_damaged_graph_is_built_again(
    tiny_model: Path, graphs: Path, tmp_path: Path, name: str, damage: Callable[[Path], object]
) -> None:
    """Use nothing of a folder of which any file is not as it was built, and leave no rest of it."""
    model, cache = folder.read_model(tiny_model, OWN), tmp_path / "graphs"
    shutil.copytree(graphs, cache)
    (kept,) = parts(cache)
    built = ensured(model, cache)
    assert built.folder.name == kept
    before = folder.hash_files(built.folder, build.FILES)
    damage(built.folder / name)
    assert ensured(model, cache) == built
    assert folder.hash_files(built.folder, build.FILES) == before
    assert parts(cache) == [built.folder.name]


def test_a_build_that_fails_leaves_nothing(tiny: Path, tmp_path: Path) -> None:
    """Take the folder away when filling it fails."""

    def fail(_weights: Path, part: Path, _shape: object) -> None:
        (part / "half").write_bytes(b"half")
        raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space"):
        build.write_graph(tiny, tmp_path / "graphs" / "g", folder.read_model(tiny, OWN).shape, fail)
    assert parts(tmp_path / "graphs") == []


def children() -> set[int]:
    """List the processes that this one started."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError):  # a thread that has ended
            found |= set(map(int, (task / "children").read_text().split()))
    return found


def test_a_caller_that_leaves_ends_the_build(tiny: Path, tmp_path: Path) -> None:
    """Kill the child when its caller is cancelled."""
    model, cache = folder.read_model(tiny, OWN), tmp_path / "graphs"
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
        save_file(full | {weights.RELATIVE: np.zeros(shape, np.float32)}, path)

    return change


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (_without(weights.RELATIVE), r"lack the tensor .*encoder\.relative_attention_bias"),
        (_biased(16, 4), "bias of 16 x 4, which is not 32 buckets x 4 attention heads"),
        (_biased(32, 5), "bias of 32 x 5, which is not 32"),
        (_without("encoder.layer.0.attention.attn.o.weight"), r"lack .*attention\.attn\.o\.weight"),
    ],
)
def test_damaged_mpnet_weights(tmp_path: Path, damage: Callable[[Path], None], reason: str) -> None:
    """Say what is wrong with an MPNet's weights, in its own names."""
    model = write_tiny_model(tmp_path / "mine", family="mpnet")
    damage(model / "model.safetensors")
    shape = folder.read_model(model, OWN).shape
    with pytest.raises(ModelError, match=reason):
        build.fill(model / "model.safetensors", tmp_path, shape)


def test_families_are_built_apart(tiny: Path, tmp_path: Path) -> None:
    """Build a graph of its own for each family, and say so where the weights are another's."""
    model, cache = folder.read_model(tiny, OWN), tmp_path / "graphs"
    other = folder.read_model(write_tiny_model(tmp_path / "other", family="mpnet"), OWN)
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
    shape = folder.read_model(tiny, OWN).shape
    damage(tiny / "model.safetensors")
    with pytest.raises(ModelError, match=reason) as caught:
        build.fill(tiny / "model.safetensors", tmp_path, shape)
    assert "\n" not in str(caught.value)


def test_a_child_says_what_is_wrong(tiny: Path, tmp_path: Path) -> None:
    """Name the model in the sentence that the child ended with, and leave nothing of the graph."""
    os.truncate(tiny / "model.safetensors", 9999)
    with pytest.raises(ModelError, match=r"^cannot build the graph of mine in .*: cannot read the"):
        ensured(folder.read_model(tiny, OWN), tmp_path / "graphs")
    assert parts(tmp_path / "graphs") == []


def test_a_cache_that_cannot_be_written(tiny: Path, tmp_path: Path) -> None:
    """Turn a cache that is no folder into a ModelError that names it."""
    (tmp_path / "graphs").write_text("a file")
    with pytest.raises(ModelError, match=f"in {tmp_path / 'graphs'}: "):
        ensured(folder.read_model(tiny, OWN), tmp_path / "graphs")


@pytest.mark.parametrize("closed", ["models", "models/paraphrase-MiniLM-L3-v2"])
def test_a_folder_that_may_not_be_entered(closed: str) -> None:
    """Say so with what to do, where this user may not look into a model folder."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    program = (
        "import os, sys; from opdbus import config; from opdbus.models import folder\n"
        "from opdbus.models.level_table import LEVELS, Level\n"
        "settings = config.load({'HOME': '/nonexistent', 'OP_DBUS_MODEL_DIR': sys.argv[1]})\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try: folder.load_model(LEVELS['low'], settings)\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    # not pytest's folder, which other users cannot enter
    with tempfile.TemporaryDirectory() as home:
        Path(home).chmod(0o755)
        write_tiny_model(Path(home) / "models" / "paraphrase-MiniLM-L3-v2")
        (Path(home) / closed).chmod(0)
        ran = run_program([sys.executable, "-c", program, f"{home}/models"])
    assert ran.stdout.startswith("ModelError cannot look into the model folder "), ran.stderr
    assert "Permission denied; let the user that op-dbus runs as read it" in ran.stdout
