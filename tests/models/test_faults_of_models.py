"""Model files that cannot be read, are damaged, or go: one sentence, or a graph built again."""

import asyncio
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness.mounts import mounted
from harness.running import ROOT_PATH, VECTORIZER, Running, calling, state_file

from opdbus.models import build

Make = Callable[..., Running]
Damage = Callable[[Path], object]

# root, but as other users are: it reads what its permissions let it read
MORTAL = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")


@pytest.fixture
def mortal(daemons: Make, tiny_model: Path, tmp_path: Path) -> Iterator[Running]:
    """Make a daemon that permissions bind, with a model folder of its own."""
    if os.geteuid() != 0:
        pytest.skip("only root can make files that it then may not read")
    model = shutil.copytree(tiny_model, tmp_path / "model")
    # the graph that is kept is for this one
    only = {"EXECUTION_PROVIDER": "cpu:onnxruntime"}
    state = state_file(tmp_path / "s.json", {"a": "mail"})
    daemon = daemons(STATE_FILE=state, MODEL=model, **only)
    daemon.starter = MORTAL
    yield daemon
    for path in tmp_path.rglob("*"):
        path.chmod(0o755)


def closed(path: Path) -> None:
    """Let nobody read it."""
    path.chmod(0)


def garbled(path: Path) -> None:
    """Leave its length and nothing else."""
    path.write_bytes(b"\xa5" * path.stat().st_size)


@pytest.mark.parametrize(
    ("name", "damage", "sentence"),
    [
        (".", closed, "cannot look into the model folder .*let the user that op-dbus runs as"),
        ("..", shutil.rmtree, "there is no model folder"),
        ("config.json", closed, "cannot read .*config.json: .*Permission denied"),
        ("model.safetensors", closed, "cannot read .*model.safetensors: Permission denied"),
        ("model.safetensors", garbled, "cannot build the graph .*cannot read the weights"),
        ("tokenizer.json", closed, "cannot read .*tokenizer.json: Permission denied"),
        ("tokenizer.json", garbled, "cannot read the tokenizer .*tokenizer.json"),
    ],
)
def test_a_model_that_cannot_be_had_is_one_sentence(
    mortal: Running, name: str, damage: Damage, sentence: str
) -> None:
    """End with code 3 and one sentence on stderr, whatever is wrong with the model's files."""
    model = Path(mortal.settings["OP_DBUS_MODEL"])
    damage(model if name == ".." else model / name)
    with mortal:
        assert mortal.exit_code() == 3, mortal.log
        assert re.search(f"^op-dbus: .*{sentence}", mortal.log.splitlines()[-1]), mortal.log
        assert "Traceback" not in mortal.log


@pytest.mark.parametrize(
    ("name", "damage"),
    # how files can be damaged is for the tests of building
    [(".", closed), (build.GRAPH, garbled)],
)
def test_a_graph_that_cannot_be_used_is_built_again(
    mortal: Running, name: str, damage: Damage
) -> None:
    """Serve with a graph built anew where the kept one cannot be read, or is not as it was."""
    (graph,) = (mortal.state_dir / "graphs").glob("*-float-*")
    before = {path.name for path in graph.parent.iterdir()}
    damage(graph / name)
    with mortal:
        asyncio.run(_is_ready(mortal))
        assert mortal.stop() == 0
        assert "Traceback" not in mortal.log
    assert {path.name for path in graph.parent.iterdir()} == before | {build.LOCK}


def test_a_cache_that_cannot_be_used_is_one_sentence(mortal: Running) -> None:
    """End with code 3 where graphs can neither be read nor built."""
    closed(mortal.state_dir / "graphs")
    with mortal:
        assert mortal.exit_code() == 3, mortal.log
        assert "cannot build the graph of model in " in mortal.log.splitlines()[-1]
        assert "Traceback" not in mortal.log


def test_a_model_folder_that_goes_is_not_missed(
    daemons: Make, tiny_model: Path, tmp_path: Path
) -> None:
    """Serve on, searches and vectors, while the model's folder and its graph are gone."""
    model = shutil.copytree(tiny_model, tmp_path / "model")
    file = state_file(tmp_path / "s.json", {"a": "mail"})
    with daemons(STATE_FILE=file, MODEL=model) as daemon:
        asyncio.run(_without(daemon, model, file))
        assert daemon.stop() == 0
        assert "Traceback" not in daemon.log


async def _without(daemon: Running, model: Path, file: Path) -> None:
    async with calling(daemon.bus) as caller:
        await caller.vectorized()
        shutil.rmtree(model)
        shutil.rmtree(daemon.state_dir / "graphs")
        vectorize = (ROOT_PATH, f"{VECTORIZER}.Vectorize", "sa{sv}")
        assert len((await caller.call(*vectorize, "never seen before", {}))[0]) == 32
        await caller.ask("Levels", {})
        state_file(file, {"a": "mail", "b": "disk"})
        await caller.signal("Vectorized", lambda body: body[2] > 0)
        await caller.ask("Reload", {})
        switch = (ROOT_PATH, f"{VECTORIZER}.SetProvider", "ssa{sv}", "cpu:onnxruntime", "", {})
        with pytest.raises(Exception, match="there is no model folder"):
            await caller.call(*switch)
        assert await caller.ready() == "ready"


async def _is_ready(daemon: Running) -> None:
    async with calling(daemon.bus) as caller:
        await caller.vectorized()
        await caller.ready()


def test_a_full_disk_while_building_is_one_sentence(
    daemons: Make, tiny_model: Path, tmp_path: Path
) -> None:
    """End with code 3 and what to do, and leave nothing of the graph for a later start."""
    daemon = daemons(STATE_FILE=state_file(tmp_path / "s.json", {"a": "mail"}), MODEL=tiny_model)
    graphs = daemon.state_dir / "graphs"
    shutil.rmtree(graphs)
    with mounted(graphs, "-t", "tmpfs", "-o", "size=64k", "tmpfs"):
        with daemon:
            assert daemon.exit_code() == 3, daemon.log
            last = daemon.log.splitlines()[-1]
            assert "No space left on device; make room on its file system" in last
            assert "Traceback" not in daemon.log
        assert [path.name for path in graphs.iterdir()] == [build.LOCK]
        subprocess.run(["mount", "-o", "remount,size=8m", str(graphs)], check=True)
        daemon.start()
        asyncio.run(_is_ready(daemon))
        assert daemon.stop() == 0
