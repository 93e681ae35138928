"""Verification of history finds every change of what was written, and says where it is."""

import asyncio
import json
import shutil
import sqlite3
import subprocess
import time
from contextlib import closing
from pathlib import Path

import pytest
from harness.commands import run
from harness.remembering import flipped, verified
from harness.rewriting import alter, rewrite
from harness.running import Running

from opdbus.history import checkpoint
from opdbus.history.change import Cause
from opdbus.history.checkpoint import Checkpoint
from opdbus.history.verify import Report
from opdbus.index.state_store.state_store import StateStore
from opdbus.state.object import Identity, ObjectId, StateObject

OWNER, COUNT = 1000, 40
SOURCE = "publish:probe"
COLUMNS = "at boot source plugin kind name what cause fields salt digest folded hash".split()
# when the journal got the checkpoint of so many rows
NOON = 1_790_000_000_000_000


def unit(number: int, /, **properties: object) -> StateObject:
    """Make an object as a program publishes it."""
    return StateObject(Identity(SOURCE, "systemd", "unit", f"u{number % 7}"), properties)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Checkpoint]]:
    """Write rows of several kinds, with a checkpoint after each tenth; give the database."""
    folder = tmp_path_factory.mktemp("made")
    found: list[Checkpoint] = []

    async def work() -> None:
        async with StateStore(folder / "memory.db", boot="b1") as memory:
            for number in range(COUNT):
                item = unit(number, state=f"s{number}", number=number)
                cause = Cause(f"job:{number} restart", number % 3)
                await memory.observe([item], set(), {}, lambda _, cause=cause: cause)
                state = await memory.archive.read(lambda store: store.ledger.state())
                if state.head.seq % 10 == 0:
                    text = checkpoint.text_of(state.head, "op-dbus/test")
                    point = checkpoint.parse(text, NOON + number)
                    assert point
                    found.append(point)

    asyncio.run(work())
    return folder / "memory.db", found


@pytest.fixture
def path(made: tuple[Path, list[Checkpoint]], tmp_path: Path) -> Path:
    """Give a copy of that database, to be tampered with."""
    return Path(shutil.copy(made[0], tmp_path / "memory.db"))


@pytest.fixture
def points(made: tuple[Path, list[Checkpoint]]) -> list[Checkpoint]:
    """Give the checkpoints."""
    return made[1]


def first(report: Report) -> tuple[int, str]:
    """Give the number of the first bad row, and what is wrong with it."""
    assert report.problems
    return report.problems[0].seq, report.problems[0].text


def test_what_nothing_vouches_for_is_told(path: Path, points: list[Checkpoint]) -> None:
    """Find nothing wrong, and from which row and time on no checkpoint vouches for that."""
    report = verified(path, *points)
    assert (report.first, report.last, report.rows) == (1, COUNT, COUNT)
    assert (report.problems, report.unvouched_since) == ([], None)
    assert (report.vouched, report.vouched_at) == (COUNT, NOON + COUNT - 1)
    with closing(sqlite3.connect(path)) as reader:
        times = dict(reader.execute("SELECT seq, at FROM history").fetchall())
    report = verified(path, *points[:2])
    assert (report.vouched, report.unvouched_since) == (20, times[21])
    report = verified(path)
    assert (report.vouched, report.unvouched_since) == (0, times[1])
    assert report.problem_count == 0


@pytest.mark.parametrize("seq", [1, 17, COUNT])
@pytest.mark.parametrize("column", COLUMNS)
def test_a_flipped_byte_is_found(
    path: Path, points: list[Checkpoint], column: str, seq: int
) -> None:
    """Name the row of which a single bit is another, in any column, with its time and object."""
    with closing(sqlite3.connect(path)) as other, other:
        (value,) = other.execute(f"SELECT {column} FROM history WHERE seq = {seq}").fetchone()  # noqa: S608 -- our own
        other.execute(f"UPDATE history SET {column} = ? WHERE seq = {seq}", (flipped(value),))  # noqa: S608 -- our own
    report = verified(path, *points)
    assert first(report)[0] == seq
    assert report.problems[0].at is not None
    assert "systemd/unit/" in report.problems[0].object_id or column in {"plugin", "kind"}
    if column in {"fields", "salt"}:
        assert first(report)[1] == "its values were changed"


@pytest.mark.parametrize("value", ["x'00ff'", "NULL", "'a'", "1.5", "9e999", "CAST(x'ff' AS TEXT)"])
@pytest.mark.parametrize("column", ["at", "cause", "fields", "salt", "digest", "folded", "hash"])
def test_a_value_of_another_type_is_found(
    path: Path, points: list[Checkpoint], column: str, value: str
) -> None:
    """Name the row also where the value cannot even be hashed."""
    alter(
        path,
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_master SET sql = replace(sql, 'NOT NULL', '') WHERE name = 'history'",
    )
    alter(path, f"UPDATE history SET {column} = {value} WHERE seq = 9")  # noqa: S608 -- our own
    assert first(verified(path, *points))[0] == 9


@pytest.mark.parametrize(
    ("statements", "seq", "text"),
    [
        (["DELETE FROM history WHERE seq = 12"], 12, "the row is missing"),
        (["DELETE FROM history WHERE seq IN (12, 13)"], 12, "the rows up to 13 are missing"),
        (
            ["DELETE FROM history WHERE seq > 35"],
            36,
            f"the rows up to {COUNT} are missing: the tail was cut off",
        ),
        (
            ["UPDATE history SET salt = NULL, fields = '[[[]]]' WHERE seq = 22"],
            22,
            "its values are missing, and no row says that they were erased",
        ),
        (
            [
                "CREATE TEMP TABLE added AS SELECT * FROM history WHERE seq = 40",
                "UPDATE added SET seq = 41",
                "INSERT INTO history SELECT * FROM added",
            ],
            41,
            "the row was changed, or stands in the place of another",
        ),
    ],
)
def test_rows_that_were_deleted_erased_or_added_are_found(
    path: Path, points: list[Checkpoint], statements: list[str], seq: int, text: str
) -> None:
    """Name the first row that is missing, erased without a reason, or behind the end."""
    alter(path, *statements)
    assert first(verified(path, *points)) == (seq, text)


def test_a_row_that_was_removed_and_renumbered_is_found(
    path: Path, points: list[Checkpoint]
) -> None:
    """Find a row whose place the next ones have taken."""
    alter(path, "DELETE FROM history WHERE seq = 12")
    for seq in range(13, COUNT + 1):
        alter(path, f"UPDATE history SET seq = {seq - 1} WHERE seq = {seq}")  # noqa: S608 -- our own
    assert first(verified(path, *points))[0] == 12


@pytest.mark.parametrize("other", [13, 33])
def test_a_changed_order_is_found(path: Path, points: list[Checkpoint], other: int) -> None:
    """Say which row belongs in the first place that is wrong."""
    alter(
        path,
        "UPDATE history SET seq = 1000 WHERE seq = 12",
        f"UPDATE history SET seq = 12 WHERE seq = {other}",  # noqa: S608 -- our own
        f"UPDATE history SET seq = {other} WHERE seq = 1000",  # noqa: S608 -- our own
    )
    seq, text = first(verified(path, *points))
    assert seq == 12
    assert text == f"the order was changed: what is row {other} now belongs here"


def test_a_rewritten_chain_is_found(path: Path, points: list[Checkpoint]) -> None:
    """Find by checkpoints a chain that holds in itself, and say since when."""
    rewrite(path, "UPDATE history SET cause = 'job:1 stop' WHERE seq = 25")
    assert verified(path).problems == []
    report = verified(path, *points)
    seq, text = first(report)
    assert seq == 21
    assert text.startswith("rows 21 to 30 were rewritten")
    assert "the checkpoint of 30 rows at 2026-09-21" in text
    assert report.vouched == 20
    rewrite(path, "UPDATE history SET boot = 'b2'")
    assert first(verified(path, *points))[0] == 1


def test_a_cut_tail_with_a_new_end_is_found(path: Path, points: list[Checkpoint]) -> None:
    """Find by checkpoints a chain that was made to end earlier."""
    rewrite(path, "SELECT 1", until=35)
    assert verified(path).problems == []
    seq, text = first(verified(path, *points))
    assert (seq, text[:52]) == (36, "the rows up to 40 are missing: the tail was cut off ")
    alter(path, "DELETE FROM history", "DELETE FROM facts WHERE name = 'history'")
    assert first(verified(path, *points))[0] == 1


@pytest.mark.parametrize("fact", ["", "[1]", "{}", "[40, 5, [], 1]", '[40, "zz", [], 1]'])
def test_a_damaged_end_is_found(path: Path, points: list[Checkpoint], fact: str) -> None:
    """Find that the noted end of the chain is not what it was."""
    alter(path, "UPDATE facts SET value = :fact WHERE name = 'history'", fact=fact)
    assert first(verified(path, *points))[0] == COUNT


def test_a_damaged_index_is_found(path: Path, points: list[Checkpoint]) -> None:
    """Questions read it: a change that it does not lead to is as good as deleted."""
    with closing(sqlite3.connect(path)) as other:
        (page,) = other.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'history_by_thing'"
        ).fetchone()
        (size,) = other.execute("PRAGMA page_size").fetchone()
    data = bytearray(path.read_bytes())
    data[data.index(b"unit", (page - 1) * size)] ^= 1
    path.write_bytes(data)
    report = verified(path, *points)
    assert report.problems[0].seq == 0
    assert "row " in report.problems[0].text
    assert "missing from index history_by_thing" in report.problems[0].text


def test_a_withdrawal_explains_erased_values(tmp_path: Path) -> None:
    """Hold a chain of which an object was withdrawn, and find a change of such a row."""

    async def work() -> None:
        async with StateStore(tmp_path / "memory.db", boot="b1") as memory:
            await memory.publish([unit(1, a=1), unit(2, a=1)], OWNER)
            await memory.publish([unit(1, a=2)], OWNER)
            await memory.withdraw([ObjectId("systemd", "unit", "u1")], OWNER)

    asyncio.run(work())
    path = tmp_path / "memory.db"
    report = verified(path)
    assert (report.problems, report.erased, report.last) == ([], 2, 4)
    alter(path, "UPDATE history SET fields = '[]' WHERE seq = 3")
    assert first(verified(path))[0] == 3
    # the withdrawal does not explain what is erased of other objects
    alter(path, "UPDATE history SET fields = '[[[]]]', salt = NULL WHERE seq IN (2, 3)")
    assert first(verified(path))[0] == 2


# checkpoints


def test_a_checkpoint_is_text(points: list[Checkpoint]) -> None:
    """Write origin, size and root in a line each, and read them back."""
    text = f"op-dbus/x\n20\n{'A' * 43}=\n"
    assert checkpoint.parse(text, 5, "3") == Checkpoint(20, bytes(32), 5, 3)
    assert points[1].first == 1


@pytest.mark.parametrize(
    "text",
    ["", "op-dbus/x\n20", "op-dbus/x\n-1\n" + "A" * 43 + "=", "other/x\n1\n" + "A" * 43 + "=",
     "op-dbus/x\n1\nAAAA\n", "op-dbus/x\n1\n!\n", "op-dbus/x\n" + "9" * 30 + "\n" + "A" * 43 + "=",
     "op-dbus/x\n1\n" + "A" * 43 + "=\nmore\n"],
)  # fmt: skip
def test_what_is_no_checkpoint_is_not_read(text: str) -> None:
    """Read nothing that op-dbus does not write."""
    assert checkpoint.parse(text, 0) is None


@pytest.mark.skipif(not shutil.which("systemd-id128"), reason="there is no systemd-id128")
def test_the_origin_is_systemds_id_of_this_application() -> None:
    """Derive the id as sd_id128_get_machine_app_specific(3) does, which this calls."""
    machine = Path("/etc/machine-id")
    if not machine.exists() or not machine.read_text().strip():
        pytest.skip("this machine has no id")
    application = checkpoint._APPLICATION.hex()
    command = ["systemd-id128", "machine-id", f"--app-specific={application}"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert checkpoint.origin(machine.read_text()) == f"op-dbus/{told}"
    assert machine.read_text().strip() not in checkpoint.origin(machine.read_text())
    assert checkpoint.origin("") == "op-dbus/unknown"


# the command


def command(path: Path, *more: str) -> "subprocess.CompletedProcess[str]":
    """Run `op-dbus history verify` of a database."""
    nobody = Running(path.parent, "unix:path=/nonexistent")
    return run(nobody, "history", "verify", f"--database={path}", *more)


def test_the_command_says_what_it_found(path: Path) -> None:
    """End with 0 where all is right, and say that nothing vouches for it; with 1 else."""
    done = command(path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "40 rows of history, 1 to 40" in done.stdout
    assert "nothing vouches for the rows from 1 on, since 20" in done.stdout
    alter(path, "UPDATE history SET boot = 'x' WHERE seq = 7")
    done = command(path)
    assert done.returncode == 1
    assert "WRONG: row 7 of 20" in done.stdout
    found = json.loads(command(path, "--json").stdout)
    assert (found["format_version"], found["ok"], found["unvouched"]) == ("1.0", False, 40)
    assert found["problems"][0]["seq"] == 7
    assert found["problems"][0]["thing"] == "systemd/unit/u6"


def test_the_result_is_left_as_metrics(path: Path, tmp_path: Path) -> None:
    """Write numbers of the verification for Prometheus, also where something is wrong."""
    target = tmp_path / "history.prom"
    began = int(time.time())
    for problems, code in ((0, 0), (1, 1)):
        assert command(path, "--metrics", str(target)).returncode == code
        lines = target.read_text().splitlines()
        samples = dict(line.split() for line in lines if not line.startswith("#"))
        assert samples.pop("opdbus_history_problems") == str(problems)
        assert samples.pop("opdbus_history_verified_seq") == "0"
        assert int(samples.pop("opdbus_history_verified_timestamp_seconds")) >= began
        assert not samples
        alter(path, "UPDATE history SET boot = 'x' WHERE seq = 7")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(None, "cannot read the database"), (b"no database at all" * 99, "damaged"), (b"", "empty")],
)
def test_a_database_that_cannot_be_read_is_told(
    tmp_path: Path, content: bytes | None, sentence: str
) -> None:
    """End with 1 and one sentence."""
    path = tmp_path / "other.db"
    if content is not None:
        path.write_bytes(content)
    done = command(path)
    assert done.returncode == 1
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
