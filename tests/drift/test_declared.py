"""The state file in step with the memory: taken in, watched, and kept when it turns bad."""

import asyncio
import errno
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from harness.running import PATIENCE_SECONDS, replace, state_file

from opdbus.cli.change_lines import group_into_lines
from opdbus.errors import StateFileError, StoreError
from opdbus.history.row_filter import Filter, Row
from opdbus.index.changes.history_reader import first_rows
from opdbus.index.state_store.events import Changed, Claimed
from opdbus.index.state_store.state_file_loader import StateFileLoader
from opdbus.index.state_store.state_store import StateStore

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


def run(tmp_path: Path, work: Callable[[Watched], Awaitable[Any]], *, watch: bool = False) -> Any:
    """Do work beside a memory whose state file is state.json."""

    async def both() -> Any:
        async with StateStore(tmp_path / "state" / "memory.db") as memory:
            declared = StateFileLoader(tmp_path / "state.json", memory)
            watched = Watched(memory, declared)
            watching = asyncio.create_task(declared.watch()) if watch else None
            try:
                return await work(watched)
            finally:
                if watching:
                    watching.cancel()
                    with suppress(asyncio.CancelledError):
                        await watching

    return asyncio.run(both())


def test_a_file_is_taken_in(tmp_path: Path) -> None:
    """Hold exactly what the file declares after each load."""

    async def work(house: Watched) -> None:
        state_file(house.declared.path, {"a": "one", "b": "two"})
        await house.declared.load()
        assert house.names() == {"a", "b"}
        state_file(house.declared.path, {"b": "three", "c": "four"})
        await house.declared.load()
        assert house.names() == {"b", "c"}
        assert house.errors == []

    run(tmp_path, work)


def test_reordering_a_file_changes_nothing(tmp_path: Path) -> None:
    """Report no change where elements of a list, with a name or without, only change places."""
    rules: list[dict[str, Any]] = [{"port": n, "action": "accept"} for n in (22, 80, 443)]
    rules += [{"name": "a", "port": 1}, {"name": "a", "port": 2}]

    async def work(house: Watched) -> None:
        for elements in (rules, rules[::-1], rules[1:] + rules[:1]):
            content = {"version": 1, "plugins": {"firewall": {"rules": elements}}}
            replace(house.declared.path, json.dumps(content))
            await house.declared.load()
            assert len(house.names()) == len(rules)
            assert house.memory.generation == 1

    run(tmp_path, work)


def _shown(row: Row) -> dict[str, Any]:
    """Give a row as History1 does."""
    sides = [["".join(map(json.dumps, side or [])) for side in field[1:]] for field in row.fields]
    fields = [(".".join(field.path), *side) for field, side in zip(row.fields, sides, strict=True)]
    return {**asdict(row), **row.identity._asdict(), "fields": fields}


def test_a_file_that_turns_bad_is_recorded_once(tmp_path: Path) -> None:
    """History has a row when the file is bad or gone, with why, and one when it is read again."""

    async def work(house: Watched) -> None:
        rows = await first_rows(house.memory, Filter(), 100)
        told.extend(row for row in rows if row.identity.source == "history")
        await house.declared.try_load()
        await house.declared.try_load()

    told: list[Row] = []
    path = state_file(tmp_path / "state.json", {"a": "one"})
    run(tmp_path, work)
    for content in (BAD, None, None, path.read_text()):
        path.unlink(missing_ok=True)
        if content:
            path.write_text(content)
        run(tmp_path, work)
        told.clear()
    run(tmp_path, work)
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


def test_what_was_declared_at_first_is_no_change(tmp_path: Path) -> None:
    """A file's first reading is a listing, of which no values are kept; what follows is changes."""

    async def work(house: Watched) -> None:
        for content in ({}, {"a": "one"}, {"a": "two", "b": "one"}):
            state_file(house.declared.path, content)
            await house.declared.load()
        rows.extend(
            await first_rows(house.memory, Filter(has_first=True, is_oldest_first=True), 100)
        )

    rows: list[Row] = []
    run(tmp_path / "empty at first", work)
    assert [(row.cause, bool(row.fields)) for row in rows] == [("state file", True)] * 3
    rows.clear()
    state_file(tmp_path / "state.json", {"a": "zero"})
    run(tmp_path, lambda house: house.declared.load())
    run(tmp_path, work)
    told = [(row.identity.name, row.change_type, row.cause, bool(row.sentence)) for row in rows]
    assert told[:2] == [("a", "appeared", "first", False), ("a", "gone", "state file", True)]
    assert {cause for _, _, cause, _ in told[1:]} == {"state file"}


def test_a_bad_file_changes_nothing_but_the_error(tmp_path: Path) -> None:
    """Keep the last good state, say what is wrong, and take back the error with the next good."""

    async def work(house: Watched) -> None:
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

    run(tmp_path, work)


def test_no_file_at_start_serves_what_was_stored(tmp_path: Path) -> None:
    """Keep what an earlier run stored where the file is missing, and say so."""

    async def first(house: Watched) -> None:
        state_file(house.declared.path, {"a": "one"})
        await house.declared.load()

    async def second(house: Watched) -> None:
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

    run(tmp_path, first)
    run(tmp_path, second)


@pytest.mark.parametrize("start", ["good", "bad", "missing", "folder missing"])
def test_the_watch_picks_up_whatever_comes(tmp_path: Path, start: str) -> None:
    """Take in every later state of the file, however it began."""

    async def work(house: Watched) -> None:
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

    run(tmp_path, work, watch=True)


def test_an_edit_during_the_first_load_is_taken_in(tmp_path: Path) -> None:
    """Take in what the file became after it was read for the first time and before it was kept."""

    async def work(house: Watched) -> None:
        replace_ = house.memory.replace

        async def edited_meanwhile(*given: Any) -> Any:
            house.memory.replace = replace_  # type: ignore[method-assign]
            state_file(house.declared.path, {"b": "two"})
            return await replace_(*given)

        house.memory.replace = edited_meanwhile  # type: ignore[method-assign] -- the only moment
        state_file(house.declared.path, {"a": "one"})
        await house.until(lambda: house.names() == {"b"})

    run(tmp_path, work, watch=True)


def test_a_file_that_cannot_be_watched_is_taken_in(tmp_path: Path) -> None:
    """Take the file in at start also where the kernel refuses to watch it."""

    async def refuse(_path: Path) -> AsyncGenerator[None]:
        raise OSError(errno.EMFILE, "too many inotify instances")
        yield

    async def work() -> set[str]:
        async with StateStore(tmp_path / "state" / "memory.db") as memory:
            declared = StateFileLoader(
                state_file(tmp_path / "state.json", {"a": "one"}), memory, changes=refuse
            )
            tried = asyncio.Event()
            declared.on_change = tried.set
            watching = asyncio.create_task(declared.watch())
            async with asyncio.timeout(PATIENCE_SECONDS):
                await tried.wait()
            assert declared.attempted
            assert not watching.done()
            watching.cancel()
            return {entry.identity.name for entry in memory.catalogue}

    assert asyncio.run(work()) == {"a"}


def test_what_could_not_be_kept_is_read_again(tmp_path: Path) -> None:
    """Take in the same file at the next load where the database refused it before."""

    async def work(house: Watched) -> None:
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

    run(tmp_path, work)


def test_a_reader_that_leaves_does_not_lose_the_change(tmp_path: Path) -> None:
    """Finish a load whose caller is cancelled, at whatever moment."""

    async def work(house: Watched) -> None:
        for number in range(30):
            state_file(house.declared.path, {f"a{number}": "one"})
            task = asyncio.ensure_future(house.declared.load())
            for _ in range(number):
                await asyncio.sleep(0)
            task.cancel()
            await house.declared.load()
            assert house.names() == {f"a{number}"}

    run(tmp_path, work)


def test_a_file_that_nobody_named_may_be_missing(tmp_path: Path) -> None:
    """Nothing is declared without the default file; one that declared something is missed."""

    async def work() -> None:
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

    asyncio.run(work())


def test_a_default_file_that_cannot_be_reached_is_a_fault(tmp_path: Path) -> None:
    """A folder that is no folder, or that may not be entered, is not a missing file."""

    async def work() -> None:
        (tmp_path / "etc").write_text("no folder")
        async with StateStore(tmp_path / "memory.db") as memory:
            declared = StateFileLoader(tmp_path / "etc" / "state.json", memory, optional=True)
            with pytest.raises(StateFileError, match="Not a directory"):
                await declared.load()

    asyncio.run(work())


def test_a_file_that_is_as_it_was_is_not_waited_for(tmp_path: Path) -> None:
    """Know after a restart at once what is declared; take in what is changed before or later."""
    told: list[object] = []

    async def start(one: Watched) -> None:
        one.memory.notify = told.append
        await one.until(lambda: one.declared.attempted)

    async def edit(one: Watched) -> None:
        await start(one)
        assert not told
        one.memory.notify = lambda _: one.news.set()
        state_file(tmp_path / "state.json", {"edited": ""})
        await one.until(lambda: one.names() == {"edited"})

    def is_read() -> bool:
        told.clear()
        run(tmp_path, start, watch=True)
        return any(isinstance(event, Claimed) for event in told)

    state_file(tmp_path / "state.json", {"first": ""})
    assert [is_read(), is_read()] == [True, False]
    run(tmp_path, edit, watch=True)
    state_file(tmp_path / "state.json", {"while it was stopped": ""})
    assert [is_read(), is_read()] == [True, False]
