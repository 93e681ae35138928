"""Bulk calls to a daemon: the same vectors, whoever asks; jobs that others watch and cancel."""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.bulky import lines
from harness.commands import run
from harness.running import (
    PATIENCE_SECONDS,
    ROOT_PATH,
    VECTORIZER,
    Caller,
    Running,
    calling,
    work_of,
)

from opdbus.bus.admission.limits import MAX_BULK_BYTES
from opdbus.client import Client
from opdbus.errors import Cancelled, InvalidArgs, LimitsExceeded, OpDbusError, Truncated

WORDS = "network name server mail disk user web time login backup unit service host".split()
TEXTS = [" ".join(WORDS[n % 7 : n % 11 + 1]) + " x" * (n % 20) for n in range(300)]
JOB = "org.opdbus.Job1"
# Long enough that it can be watched and cancelled.
MANY = [f"{text} {number % 10}" for number in range(200) for text in TEXTS]


def served(
    daemon: Running, work: Callable[[Client, Caller], Awaitable[Any]]
) -> Any:  # fmt: skip
    """Do work as two clients of a daemon that is ready."""

    async def both() -> Any:
        async with calling(daemon.bus) as caller, Client(daemon.bus) as client:
            await caller.ready("ready", "degraded")
            async with asyncio.timeout(PATIENCE_SECONDS):
                return await work(client, caller)

    return asyncio.run(both())


@pytest.fixture(scope="module")
def shared(shared_daemons: Callable[..., Running]) -> Running:
    """Start a daemon for the tests whose calls leave nothing behind."""
    return shared_daemons().start()


@work_of(served, "shared", handed=2)
async def test_bulk_gives_what_a_plain_call_gives(client: Client, caller: Caller) -> None:
    """Give the same bytes by file and by message, in every dtype, and the same numbers to all."""
    for options in ({}, {"dtype": "float16", "dimensions": 20}, {"dtype": "int8"},
                    {"dtype": "ubinary", "dimensions": 13}):  # fmt: skip
        found = await client.vectorize_bulk(TEXTS, options)
        with found.file:
            data = found.file.read()
        member, signature = f"{VECTORIZER}.VectorizeMany", "asa{sv}"
        rows, dimension, dtype, plain = await caller.call(
            ROOT_PATH, member, signature, TEXTS, options
        )
        assert (found.rows, found.dimension, found.dtype) == (rows, dimension, dtype)
        wide = np.frombuffer(data, np.uint8).astype(int)
        # a batch of another size may round the last bit otherwise
        assert len(data) == len(plain)
        if dtype in {"int8", "ubinary"}:
            assert (wide == np.frombuffer(plain, np.uint8)).mean() > 0.99
        else:
            kind = np.dtype(dtype).newbyteorder("<")
            there = np.frombuffer(plain, kind)
            assert np.abs(np.frombuffer(data, kind) - there).max() < 1e-3
    short = await caller.ask("Vectorize", "mail", {"dimensions": 5})
    assert len(short[0]) == 5
    assert np.isclose(np.linalg.norm(short[0]), 1)


@work_of(served, "shared")
async def test_files_that_a_client_keeps_are_bounded(client: Client) -> None:
    """Refuse a client that keeps too many files of vectors, and serve it once it closes them."""
    with ExitStack() as kept:
        for _ in range(MAX_BULK_BYTES["user"] >> 20):
            kept.enter_context((await client.vectorize_bulk(["mail"])).file)
        with pytest.raises(LimitsExceeded, match="close the files that you have read"):
            await client.vectorize_bulk(["mail"])
    (await client.vectorize_bulk(["mail"])).file.close()


def test_a_file_is_as_good_as_texts(shared: Running, tmp_path: Path) -> None:
    """Read a file that the caller opened, and say what is wrong with it by line and column."""
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.write_bytes(lines(TEXTS))
    bad.write_bytes(b'"a"\n"b\n')

    async def work(client: Client, _caller: Caller) -> None:
        found = await client.vectorize_bulk(good)
        found.file.close()
        assert found.rows == len(TEXTS)
        with pytest.raises(InvalidArgs, match="line 2, column 1 of the texts: Unterminated"):
            await client.vectorize_bulk(bad)
        with pytest.raises(InvalidArgs, match="cannot open the texts"):
            await client.vectorize_bulk(tmp_path / "none")
        with pytest.raises(Truncated, match="line 1 is longer than the 48 tokens"):
            await client.vectorize_bulk(["mail " * 100], {"truncate": False})
        with pytest.raises(InvalidArgs, match="dtype must be one of"):
            await client.vectorize_bulk(["x"], {"dtype": "float8"})
        reader, writer = os.pipe()
        with pytest.raises(OpDbusError, match="this is a pipe"):
            await client._vectorizer.ask("VectorizeBulk", "ha{sv}", reader, {})
        os.close(reader)
        os.close(writer)

    served(shared, work)


async def _job(caller: Caller) -> str:
    """Wait until the bus tells of a job, and give its path."""

    def has_job(body: list[Any]) -> bool:
        return bool(body[0] == VECTORIZER and body[1].get("Jobs"))

    body = await caller.signal("PropertiesChanged", has_job)
    path: str = body[1]["Jobs"][0]
    return path


def test_others_watch_a_job(daemons: Callable[..., Running]) -> None:
    """Show its user and size, tell of progress until the end, and list it below its folder."""

    async def work(client: Client, caller: Caller) -> None:
        call = asyncio.create_task(client.vectorize_bulk(MANY[:15_000]))
        path = await _job(caller)
        assert path == "/org/opdbus/job/1"
        ended = lambda body: body[0] == JOB and body[1].get("State") == "done"  # noqa: E731
        await caller.signal("PropertiesChanged", ended)
        (await call).file.close()
        values = [
            await caller.get(path, JOB, name) for name in ("Kind", "Done", "Total", "Progress")
        ]
        assert values == ["bulk", 15_000, 15_000, 1.0]
        assert await caller.get(path, JOB, "User") == os.geteuid()
        assert await caller.get(path, JOB, "Caller") == client._connection.name
        told = [body[1] for at, name, body in caller.signals
                if at == path and name == "PropertiesChanged"]  # fmt: skip
        steps = [values["Done"] for values in told if "Done" in values]
        assert steps == sorted(steps)
        introspect = "org.freedesktop.DBus.Introspectable.Introspect"
        assert '<node name="job"/>' in (await caller.call(ROOT_PATH, introspect))[0]
        assert '<node name="1"/>' in (await caller.call("/org/opdbus/job", introspect))[0]
        assert '<method name="Cancel">' in (await caller.call(path, introspect))[0]

    with daemons() as daemon:
        served(daemon, work)


def test_others_cancel_a_job(daemons: Callable[..., Running]) -> None:
    """Answer Error.Cancelled to the caller whose job another client of the user cancels."""

    async def work(client: Client, caller: Caller) -> None:
        call = asyncio.create_task(client.vectorize_bulk(MANY))
        path = await _job(caller)
        await caller.call(path, f"{JOB}.Cancel")
        with pytest.raises(Cancelled, match="of 60000 were done"):
            await call
        assert await caller.get(path, JOB, "State") == "cancelled"
        await _until_idle(caller)

    with daemons() as daemon:
        served(daemon, work)


def test_a_job_ends_when_its_caller_leaves(daemons: Callable[..., Running]) -> None:
    """Stop computing at once for a caller whose connection is gone."""

    async def work(client: Client, caller: Caller) -> None:
        async with Client(client._bus) as leaver:
            call = asyncio.create_task(leaver.vectorize_bulk(MANY))
            path = await _job(caller)
            call.cancel()
        state = lambda: caller.get(path, JOB, "State")  # noqa: E731
        await caller.until(state, "cancelled")
        await _until_idle(caller)

    with daemons() as daemon:
        served(daemon, work)


async def _until_idle(caller: Caller) -> None:
    depth = lambda: caller.read("QueueDepth")  # noqa: E731
    await caller.until(depth, 0)


def test_the_command_writes_a_file(shared: Running, tmp_path: Path) -> None:
    """Write .npy files that numpy reads, and raw rows, and refuse options that do not go along."""
    texts = tmp_path / "texts.jsonl"
    texts.write_bytes(lines(TEXTS))

    async def ready(_client: Client, _caller: Caller) -> None:
        pass

    served(shared, ready)
    for dtype, more, shape in (
        ("float32", (), (300, 32)),
        ("float16", ("--dimensions", "7"), (300, 7)),
        ("ubinary", (), (300, 4)),
    ):
        out = tmp_path / f"{dtype}.npy"
        done = run(shared, "vectorize", "--bulk", str(texts), "--output", str(out),
                          "--dtype", dtype, *more, "--json")  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["rows"] == 300
        found = np.load(out)
        assert found.shape == shape
        assert found.dtype == (np.uint8 if dtype == "ubinary" else np.dtype(dtype))
    raw = tmp_path / "vectors.raw"
    done = run(shared, "vectorize", "--bulk", str(texts), "--output", str(raw))
    assert done.stdout == f"300 x 32 float32: {raw}\n"
    rows = np.frombuffer(raw.read_bytes(), "<f4").reshape(300, 32)
    # batches of other sizes round otherwise
    assert np.allclose(rows, np.load(tmp_path / "float32.npy"), atol=1e-6)
    assert np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
    for wrong in (["--bulk", str(texts)], ["--output", str(raw)], ["x", "--dtype", "int8"],
                  ["x", "--bulk", str(texts), "--output", str(raw)]):  # fmt: skip
        refused = run(shared, "vectorize", *wrong)
        assert (refused.returncode, "go together" in refused.stderr) == (2, True)
    assert run(shared, "vectorize", "--dimensions", "5", "one").stdout.count(" ") == 4
