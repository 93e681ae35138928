"""The state file in step with the memory: taken in, watched, and kept when it turns bad."""

import asyncio
import errno
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from harness.running import PATIENCE_SECONDS, replace, state_file

from opdbus.errors import StateFileError, StoreError
from opdbus.history.row_filter import Filter, Row
from opdbus.index.changes.history_reader import first_rows
from opdbus.index.state_store.events import Changed, Claimed
from opdbus.index.state_store.state_file_loader import StateFileLoader
from opdbus.index.state_store.state_store import StateStore
from opdbus.platform.tasks import cancel
from opdbus.wording.change_lines import group_into_lines

BAD = "{ not json"


class Watched:
    """A memory and its state file, and what was told of them."""

    def __init__(self, memory: StateStore, declared: StateFileLoader) -> None:
        self.memory = memory
        self.declared = declared
        self.errors: list[str] = []
        self.news = asyncio.Event()
        declared.on_change = self._take_news
        memory.notify = lambda event: self.news.set() if isinstance(event, Changed) else None

    def _take_news(self) -> None:
        if self.declared.last_error != ["", *self.errors][-1]:
            self.errors.append(self.declared.last_error)
        self.news.set()

    def names(self) -> set[str]:
        """Give the names of all objects."""
        return {entry.identity.name for entry in self.memory.catalogue}

    async def until(self, true: Callable[[], object]) -> None:
        """Wait until something holds, looking after each change."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not true():
                self.news.clear()
                await self.news.wait()


@asynccontextmanager
async def watching(folder: Path, *, watch: bool = False) -> AsyncIterator[Watched]:
    """Have a memory whose state file is state.json, and watch that."""
    async with StateStore(folder / "state" / "memory.db") as memory:
        declared = StateFileLoader(folder / "state.json", memory)
        watched = Watched(memory, declared)
        tasks = [asyncio.create_task(declared.watch())] if watch else []
        try:
            yield watched
        finally:
            await cancel(tasks)


async def test_a_file_is_taken_in(tmp_path: Path) -> None:
    """Hold exactly what the file declares after each load."""
    async with watching(tmp_path) as house:
        state_file(house.declared.path, {"a": "one", "b": "two"})
        await house.declared.load()
        assert house.names() == {"a", "b"}
        state_file(house.declared.path, {"b": "three", "c": "four"})
        await house.declared.load()
        assert house.names() == {"b", "c"}
        assert house.errors == []


async def test_reordering_a_file_changes_nothing(tmp_path: Path) -> None:
    """Report no change where elements of a list, with a name or without, only change places."""
    rules: list[dict[str, Any]] = [{"port": n, "action": "accept"} for n in (22, 80, 443)]
    rules += [{"name": "a", "port": 1}, {"name": "a", "port": 2}]
    async with watching(tmp_path) as house:
        for elements in (rules, rules[::-1], rules[1:] + rules[:1]):
            content = {"version": 1, "plugins": {"firewall": {"rules": elements}}}
            replace(house.declared.path, json.dumps(content))
            await house.declared.load()
            assert len(house.names()) == len(rules)
            assert house.memory.generation == 1


def _shown(row: Row) -> dict[str, Any]:
    """Give a row as History1 does."""
    sides = [["".join(map(json.dumps, side or [])) for side in field[1:]] for field in row.fields]
    fields = [(".".join(field.path), *side) for field, side in zip(row.fields, sides, strict=True)]
    own = {"what": row.change_type, "folded": row.coalesced_count, "fields": fields}
    return {**asdict(row), **row.identity._asdict(), **own}


async def test_a_file_that_turns_bad_is_recorded_once(tmp_path: Path) -> None:
    """History has a row when the file is bad or gone, with why, and one when it is read again."""
    path = state_file(tmp_path / "state.json", {"a": "one"})
    good = path.read_text()
    for content in (good, BAD, None, None, good):
        path.unlink(missing_ok=True)
        if content:
            path.write_text(content)
        async with watching(tmp_path) as house:
            await house.declared.try_load()
            await house.declared.try_load()
            rows = await first_rows(house.memory, Filter(), 100)
    told = [row for row in rows if row.identity.source == "history"]
    assert [row.identity[1:] for row in told] == [("op-dbus", "state_file", str(path))] * 3
    assert {row.cause for row in told} == {"state file"}
    assert ["; failed" in row.sentence for row in told] == [False, True, True]
    changes = [_shown(row) for row in reversed(told)]
    where = "line 1 column 3 ($): a name in double quotes must begin here"
    assert [(line.text, line.cause) for line in group_into_lines(changes)] == [
        (f"state file {path} cannot be read: {where}", ""),
        (f"state file {path} cannot be read: No such file or directory", ""),
        (f"state file {path} can be read again", ""),
    ]


async def test_what_was_declared_at_first_is_no_change(tmp_path: Path) -> None:
    """A file's first reading is a listing, of which no values are kept; what follows is changes."""

    async def declare(house: Watched, *contents: dict[str, str]) -> list[Row]:
        for content in contents:
            state_file(house.declared.path, content)
            await house.declared.load()
        wanted = Filter(has_first=True, is_oldest_first=True)
        return await first_rows(house.memory, wanted, 100)

    later: list[dict[str, str]] = [{}, {"a": "one"}, {"a": "two", "b": "one"}]
    async with watching(tmp_path / "empty at first") as house:
        rows = await declare(house, *later)
    assert [(row.cause, bool(row.fields)) for row in rows] == [("state file", True)] * 3
    async with watching(tmp_path) as house:
        rows = await declare(house, {"a": "zero"}, *later)
    told = [(row.identity.name, row.change_type, row.cause, bool(row.sentence)) for row in rows]
    assert told[:2] == [("a", "appeared", "first", False), ("a", "gone", "state file", True)]
    assert {cause for _, _, cause, _ in told[1:]} == {"state file"}


async def test_a_bad_file_changes_nothing_but_the_error(tmp_path: Path) -> None:
    """Keep the last good state, say what is wrong, and take back the error with the next good."""
    async with watching(tmp_path) as house:
        path = state_file(house.declared.path, {"a": "one"})
        await house.declared.load()
        replace(path, BAD)
        with pytest.raises(StateFileError, match="line 1"):
            await house.declared.load()
        await house.declared.try_load()
        assert house.names() == {"a"}
        assert len(house.errors) == 1
        assert "line 1" in house.declared.last_error
        assert house.declared.last_error.endswith("stays declared until it is corrected")
        state_file(path, {"a": "one"})
        await house.declared.load()
        assert (house.errors[1:], house.declared.last_error) == ([""], "")


async def test_no_file_at_start_serves_what_was_stored(tmp_path: Path) -> None:
    """Keep what an earlier run stored where the file is missing, and say so."""
    async with watching(tmp_path) as house:
        state_file(house.declared.path, {"a": "one"})
        await house.declared.load()
    async with watching(tmp_path) as house:
        house.declared.path.unlink()
        assert not house.declared.attempted
        await house.declared.try_load()
        assert house.declared.attempted
        assert house.names() == {"a"}
        assert house.declared.last_error.endswith(
            "state.json: No such file or directory; what it declared last stays declared until it"
            ' is there ({"version": 1, "plugins": {}} declares nothing), or OP_DBUS_STATE_FILE'
            " names another one"
        )


@pytest.mark.parametrize("start", ["good", "bad", "missing", "folder missing"])
async def test_the_watch_picks_up_whatever_comes(tmp_path: Path, start: str) -> None:
    """Take in every later state of the file, however it began."""
    async with watching(tmp_path, watch=True) as house:
        path = house.declared.path
        if start == "good":
            state_file(path, {"old": "one"})
        elif start == "bad":
            replace(path, BAD)
        await house.until(lambda: house.declared.attempted)
        state_file(path, {"a": "one"})
        await house.until(lambda: house.names() == {"a"} and not house.declared.last_error)
        replace(path, BAD)
        await house.until(lambda: house.declared.last_error)
        assert house.names() == {"a"}
        path.write_text(state_file(tmp_path / "other", {"b": "in place"}).read_text())
        await house.until(lambda: house.names() == {"b"})
        path.unlink()
        await house.until(lambda: "No such file" in house.declared.last_error)
        assert house.names() == {"b"}


async def test_an_edit_during_the_first_load_is_taken_in(tmp_path: Path) -> None:
    """Take in what the file became after it was read for the first time and before it was kept."""
    async with watching(tmp_path, watch=True) as house:
        replace_ = house.memory.replace

        async def edited_meanwhile(*given: Any) -> Any:
            house.memory.replace = replace_  # type: ignore[method-assign]
            state_file(house.declared.path, {"b": "two"})
            return await replace_(*given)

        house.memory.replace = edited_meanwhile  # type: ignore[method-assign] -- the only moment
        state_file(house.declared.path, {"a": "one"})
        await house.until(lambda: house.names() == {"b"})


async def test_a_file_that_cannot_be_watched_is_taken_in(tmp_path: Path) -> None:
    """Take the file in at start also where the kernel refuses to watch it."""

    async def refuse(_path: Path) -> AsyncGenerator[None]:
        raise OSError(errno.EMFILE, "too many inotify instances")
        yield

    async with StateStore(tmp_path / "state" / "memory.db") as memory:
        path = state_file(tmp_path / "state.json", {"a": "one"})
        declared, tried = StateFileLoader(path, memory, changes=refuse), asyncio.Event()
        declared.on_change = tried.set
        watch = asyncio.create_task(declared.watch())
        async with asyncio.timeout(PATIENCE_SECONDS):
            await tried.wait()
        assert declared.attempted
        assert not watch.done()
        await cancel([watch])
        assert {entry.identity.name for entry in memory.catalogue} == {"a"}


async def test_what_could_not_be_kept_is_read_again(tmp_path: Path) -> None:
    """Take in the same file at the next load where the database refused it before."""
    async with watching(tmp_path) as house:
        state_file(house.declared.path, {"a": "one"})
        replace_ = house.memory.replace

        async def fail(*_: Any) -> Any:
            raise StoreError("the disk is full")

        house.memory.replace = fail  # type: ignore[method-assign] -- a disk cannot be filled here
        with pytest.raises(StoreError):
            await house.declared.load()
        assert house.declared.last_error == "the disk is full"
        house.memory.replace = replace_  # type: ignore[method-assign]
        await house.declared.load()
        assert house.names() == {"a"}


async def test_a_reader_that_leaves_does_not_lose_the_change(tmp_path: Path) -> None:
    """Finish a load whose caller is cancelled, at whatever moment."""
    async with watching(tmp_path) as house:
        for number in range(30):
            state_file(house.declared.path, {f"a{number}": "one"})
            task = asyncio.ensure_future(house.declared.load())
            for _ in range(number):
                await asyncio.sleep(0)
            task.cancel()
            await house.declared.load()
            assert house.names() == {f"a{number}"}


async def test_a_file_that_nobody_named_may_be_missing(tmp_path: Path) -> None:
    """Only the default file may be missing: not one that declared something, nor its folder."""
    path = tmp_path / "etc" / "state.json"
    async with StateStore(tmp_path / "memory.db") as memory:
        declared = StateFileLoader(path, memory, optional=True)
        await declared.load()
        assert not declared.last_error
        path.parent.mkdir()
        state_file(path, {"a": "one"})
        await declared.load()
        path.unlink()
        with pytest.raises(StateFileError, match="No such file"):
            await declared.load()
        path.parent.rmdir()
        path.parent.write_text("no folder")
        with pytest.raises(StateFileError, match="Not a directory"):
            await declared.load()


async def test_a_file_that_is_as_it_was_is_not_waited_for(tmp_path: Path) -> None:
    """Know after a restart at once what is declared; take in what is changed before or later."""

    async def is_read(edited: str = "") -> bool:
        told: list[object] = []
        async with watching(tmp_path, watch=True) as one:
            one.memory.notify = told.append
            await one.until(lambda: one.declared.attempted)
            if edited:
                one.memory.notify = lambda _: one.news.set()
                state_file(tmp_path / "state.json", {edited: ""})
                await one.until(lambda: one.names() == {edited})
        return any(isinstance(event, Claimed) for event in told)

    state_file(tmp_path / "state.json", {"first": ""})
    assert [await is_read(), await is_read(), await is_read("edited")] == [True, False, False]
    state_file(tmp_path / "state.json", {"while it was stopped": ""})
    assert [await is_read(), await is_read()] == [True, False]
