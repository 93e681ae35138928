"""An administrator's own glosses: what they find, and rows that are none."""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from harness.commands import run
from harness.running import Running, state_file

from opdbus.index.database.records import REDACTED_BY
from opdbus.index.state_store.state_store import StateStore
from opdbus.language.synonyms import add_glosses
from opdbus.state.object import Identity, StateObject


def test_own_glosses_find_objects(daemons: Callable[..., Running], tmp_path: Path) -> None:
    """Find an object by the administrator's gloss of its name, from the next start on."""
    own = tmp_path / "glossary.tsv"
    daemon = daemons(
        STATE_FILE=state_file(tmp_path / "state.json", {"kdx": "", "other": ""}),
        VECTOR_LEVEL="none",
        GLOSSARY=own,
    )
    with daemon.start().vectorized():
        assert run(daemon, "search", "-q", "--all", "parcel labels").stdout == ""
        assert daemon.stop() == 0
    own.write_text("# ours\n\nkdx kdx2\tprints parcel labels in the warehouse\nno meaning\n")
    with daemon.start().vectorized():
        # texts of the earlier start are rendered anew
        daemon.wait_for_log("migrated")
        found = run(daemon, "search", "-q", "--all", "parcel labels").stdout.splitlines()
        assert len(found) == 1
        assert "kdx" in found[0]
        assert f"{own}, line 4: a row has names, one tab, and a meaning" in daemon.log


def test_values_are_kept_when_glosses_change(tmp_path: Path) -> None:
    """Keep the values of objects whose texts are the same after all were rendered anew."""
    failed = StateObject(Identity("live:t", "systemd", "unit", "u.service"), {"result": "timeout"})

    async def traits(version: str) -> bool:
        with closing(sqlite3.connect(tmp_path / "db")) as database, database:
            query = "UPDATE facts SET value = ? WHERE name = 'written by'"
            database.execute(query, (REDACTED_BY + version,))
        async with StateStore(tmp_path / "db") as memory:
            await memory.eraser.checked.wait()
            view = memory.catalogue.view
            return bool(view.traits[: view.end].any())

    async def work() -> bool:
        async with StateStore(tmp_path / "db") as memory:
            await memory.observe([failed], set(), {})
        return await traits("another glossary")

    assert asyncio.run(work())


def test_a_file_that_is_none_is_a_fault(tmp_path: Path) -> None:
    """Return one sentence for a file that cannot be read, and none for a missing one."""
    assert add_glosses(tmp_path / "missing.tsv") == []
    (fault,) = add_glosses(tmp_path)
    assert fault.startswith(f"{tmp_path} cannot be read: ")
    (tmp_path / "latin").write_bytes(b"x\t\xe9\n")
    (fault,) = add_glosses(tmp_path / "latin")
    assert fault.startswith(f"{tmp_path}/latin cannot be read: ")
