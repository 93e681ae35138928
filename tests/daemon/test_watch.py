"""The state file is noticed however it is changed, once a change."""

import asyncio
import errno
import os
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

import pytest
from asyncinotify import Inotify

from opdbus.state.watch import SETTLE_SECONDS, Watch, changes

# Far longer than any of it takes; only a failure waits so long.
PATIENCE = 60.0
# Long enough for an event that must not count to have come.
SILENCE = 0.1
QUIET = SILENCE + 6 * SETTLE_SECONDS


async def times_told(path: Path, *actions: Callable[[], object]) -> list[int]:
    """Count how often each action makes `changes` yield, which it also does at the start."""
    told = 0
    changed = asyncio.Event()

    async def watch() -> None:
        nonlocal told
        async with aclosing(changes(path, silence=SILENCE)) as stream:
            async for _ in stream:
                told += 1
                changed.set()

    task = asyncio.create_task(watch())
    async with asyncio.timeout(PATIENCE):
        await changed.wait()
    assert told == 1
    counts = []
    for action in actions:
        before = told
        changed.clear()
        action()
        try:
            async with asyncio.timeout(PATIENCE if action.__name__ != "quietly" else QUIET):
                await changed.wait()
        except TimeoutError:
            pass
        await asyncio.sleep(QUIET)
        counts.append(told - before)
    assert not task.done(), task.exception()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return counts


def quiet(action: Callable[[], object]) -> Callable[[], object]:
    """Mark an action that must go unnoticed, so that nobody waits for it."""

    def quietly() -> None:
        action()

    return quietly


def replaced(path: Path, text: str) -> Callable[[], object]:
    """Replace a file as editors do: write another one and rename it."""

    def act() -> None:
        other = path.with_name(f".{path.name}.swp")
        other.write_text(text)
        other.rename(path)

    return act


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Write a file to be watched."""
    (tmp_path / "state.json").write_text("a")
    return tmp_path / "state.json"


EDITS: dict[str, Callable[[Path], tuple[Callable[[], object], ...]]] = {
    "replaced, as editors do": lambda path: (replaced(path, "b"), replaced(path, "c")),
    "written in place, also to the same size": lambda path: (
        lambda: path.write_text("bb"),
        lambda: path.write_text("cc"),
    ),
    "cut or made longer by its name, which nobody closes": lambda path: (
        lambda: os.truncate(path, 1),
        lambda: os.truncate(path, 9),
    ),
    "gone and back": lambda path: (path.unlink, lambda: path.write_text("a")),
    "not readable, and again": lambda path: (lambda: path.chmod(0), lambda: path.chmod(0o644)),
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_change_is_told_once(path: Path, edit: str) -> None:
    """Tell of each change of the file, however it is made, once."""
    assert asyncio.run(times_told(path, *EDITS[edit](path))) == [1, 1]


def test_a_file_that_stays_open_is_noticed(path: Path) -> None:
    """Tell when the file is written in place by a program that keeps it open."""
    with path.open("r+b", buffering=0) as file:
        told = asyncio.run(times_told(path, lambda: file.write(b"bb"), lambda: file.write(b"c")))
    assert told == [1, 1]


def test_a_file_being_written_is_told_when_it_is_closed(tmp_path: Path) -> None:
    """Tell once of a file that is written in pieces, and not before it is closed."""
    path = tmp_path / "state.json"
    path.write_text("a")
    seen = []

    async def write() -> None:
        with path.open("wb", buffering=0) as file:
            for _ in range(10):
                file.write(b"piece")
                await asyncio.sleep(2 * SETTLE_SECONDS)

    async def work() -> None:
        # a pause of a busy machine is not taken for the end
        stream = changes(path, silence=PATIENCE)
        async with aclosing(stream), asyncio.timeout(PATIENCE):
            await anext(stream)
            writing = asyncio.create_task(write())
            await anext(stream)
            seen.append(path.read_bytes())
            await writing

    asyncio.run(work())
    assert seen == [b"piece" * 10]


def test_retargeted_link_is_noticed(tmp_path: Path) -> None:
    """Tell when the folder behind a link is exchanged, as Kubernetes does it, twice over."""
    for number in (1, 2, 3):
        (tmp_path / f"..{number}").mkdir()
        (tmp_path / f"..{number}" / "state.json").write_text(str(number))
    (tmp_path / "..data").symlink_to("..1")
    path = tmp_path / "state.json"
    path.symlink_to("..data/state.json")

    def point_to(folder: str) -> Callable[[], object]:
        def act() -> None:
            (tmp_path / "..new").symlink_to(folder)
            (tmp_path / "..new").rename(tmp_path / "..data")

        return act

    def edit() -> None:
        (tmp_path / "..3" / "state.json").write_text("edited")

    assert asyncio.run(times_told(path, point_to("..2"), point_to("..3"), edit)) == [1, 1, 1]


@pytest.mark.parametrize("depth", [1, 2])
def test_link_elsewhere_is_noticed(tmp_path: Path, depth: int) -> None:
    """Tell when a link on the way is exchanged in a folder that is not the file's own."""
    for name in "abcd":
        (tmp_path / name).mkdir()
    (tmp_path / "c" / "old").write_text("old")
    (tmp_path / "c" / "newer").write_text("newer")
    (tmp_path / "b" / "link").symlink_to(tmp_path / "c" / "old")
    path = tmp_path / "a" / "state.json"
    path.symlink_to("../b/link")
    if depth == 2:
        (tmp_path / "d" / "conf").symlink_to("../a")
        path = tmp_path / "d" / "conf" / "state.json"

    def exchange() -> None:
        (tmp_path / "b" / "x").symlink_to(tmp_path / "c" / "newer")
        (tmp_path / "b" / "x").rename(tmp_path / "b" / "link")

    assert asyncio.run(times_told(path, exchange)) == [1]


def test_exchanged_folder_is_noticed(tmp_path: Path) -> None:
    """Tell when the file's folder is a link that comes to lead elsewhere."""
    for name in ("one", "two"):
        (tmp_path / "target" / name).mkdir(parents=True)
        (tmp_path / "target" / name / "state.json").write_text(name)
    (tmp_path / "conf").symlink_to("target/one")

    def exchange() -> None:
        (tmp_path / "conf").unlink()
        (tmp_path / "conf").symlink_to("target/two")

    assert asyncio.run(times_told(tmp_path / "conf" / "state.json", exchange)) == [1]


def test_circle_of_links_is_survived(tmp_path: Path) -> None:
    """Go on watching while links lead in a circle, and tell when they no longer do."""
    path = tmp_path / "state.json"
    path.symlink_to("other")
    (tmp_path / "other").symlink_to("state.json")

    def repair() -> None:
        (tmp_path / "other").unlink()
        (tmp_path / "other").write_text("x")

    assert asyncio.run(times_told(path, repair)) == [1]


def test_missing_folder_is_awaited(tmp_path: Path) -> None:
    """Tell when a file comes to be in a folder that was not there, and when that is removed."""
    path = tmp_path / "etc" / "op-dbus" / "state.json"

    def create() -> None:
        path.parent.mkdir(parents=True)
        path.write_text("a")

    def remove() -> None:
        path.unlink()
        path.parent.rmdir()

    assert asyncio.run(times_told(path, create, remove, create)) == [1, 1, 1]


def test_file_behind_a_file_is_awaited(tmp_path: Path) -> None:
    """Wait for a file although something that is no folder stands in its way."""
    (tmp_path / "etc").write_text("")

    def make_way() -> None:
        (tmp_path / "etc").unlink()
        (tmp_path / "etc").mkdir()
        (tmp_path / "etc" / "state.json").write_text("a")

    assert asyncio.run(times_told(tmp_path / "etc" / "state.json", make_way)) == [1]


def test_burst_counts_once(path: Path) -> None:
    """Tell once about many writes in a row."""

    def burst() -> None:
        for number in range(200):
            path.write_text(str(number) * 5)
            replaced(path, str(number))()

    assert asyncio.run(times_told(path, burst)) == [1]


def test_nothing_is_told_of_other_files(path: Path, tmp_path: Path) -> None:
    """Stay silent when the file is read, or other files of its folder change."""

    def others() -> None:
        path.read_text()
        (tmp_path / "other").write_text("b")
        os.truncate(tmp_path / "other", 0)
        (tmp_path / "other").rename(tmp_path / "third")
        (tmp_path / "folder").mkdir()

    told = asyncio.run(times_told(path, quiet(others), lambda: path.write_text("bb")))
    assert told == [0, 1]


def test_change_before_watching_is_no_change(tmp_path: Path) -> None:
    """Stay silent about what was so from the start, also when the file is missing."""

    def nothing() -> None:
        pass

    assert asyncio.run(times_told(tmp_path / "none" / "x", quiet(nothing))) == [0]


async def test_change_while_busy_is_noticed(path: Path) -> None:
    """Tell of a change that came while the last one was still being dealt with."""
    told = 0
    async with aclosing(changes(path)) as stream, asyncio.timeout(PATIENCE):
        async for _ in stream:
            told += 1
            if told == 3:
                break
            replaced(path, "b" * (told + 1))()
    assert told == 3


def test_a_folder_far_above_that_is_moved_is_noticed(tmp_path: Path) -> None:
    """Tell when a folder on the way is renamed, and when another takes its place."""
    path = tmp_path / "a" / "b" / "c" / "state.json"
    path.parent.mkdir(parents=True)
    path.write_text("a")
    away = tmp_path / "away"

    def move() -> None:
        (tmp_path / "a").rename(away)

    def move_back() -> None:
        away.rename(tmp_path / "a")

    assert asyncio.run(times_told(path, move, move_back)) == [1, 1]


def test_a_name_with_dots_leads_where_the_system_says(tmp_path: Path) -> None:
    """Watch the file that is above the folder that a link leads to, not above the link."""
    for folder in ("one/in", "two"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "two" / "link").symlink_to("../one/in")
    real = tmp_path / "one" / "state.json"
    real.write_text("a")
    path = tmp_path / "two" / "link" / ".." / "state.json"
    assert asyncio.run(times_told(path, lambda: real.write_text("bb"))) == [1]


def test_what_to_do_when_there_are_no_watches_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Name the setting that is to be raised."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Inotify, "add_watch", refuse)
    with pytest.raises(OSError, match=r"fs\.inotify\.max_user_watches"):
        Watch([str(tmp_path / "state.json")])


def test_no_folder_of_our_own_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Watch a file by its whole path although the folder that we run in was removed."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    path = tmp_path / "state.json"
    path.write_text("a")
    assert asyncio.run(times_told(path, lambda: path.write_text("bb"))) == [1]


@pytest.mark.parametrize("turns", range(5))
async def test_a_wait_that_is_given_up_loses_no_change(tmp_path: Path, turns: int) -> None:
    """Keep a change for the next wait, in whatever turn of the loop the first one is cancelled."""
    path = tmp_path / "file"
    with Watch([str(path)]) as watch:
        first = asyncio.create_task(watch.change(SETTLE_SECONDS))
        await asyncio.sleep(0)
        path.touch()
        for _ in range(turns):
            await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        async with asyncio.timeout(PATIENCE):
            change = await watch.change(SETTLE_SECONDS)
    assert change
    assert change.paths == {str(path)}
