"""Planted secrets are nowhere: not in answers, signals, logs, nor in any file."""

import asyncio
from collections.abc import Callable
from typing import Any

from attacks.leaks import bytes_of, everything
from conftest import EXAMPLE
from harness.running import Caller, Running, calling

MARK = "PLANTED"
PEM = "-----{} RSA PRIVATE KEY-----"
# what a program may publish without a thought: each has the mark where a secret is
PUBLISHED: list[tuple[str, str, str, dict[str, Any]]] = [
    ("app", "unit", "a", {"description": "web", "password": f"{MARK}-p1"}),
    ("app", "unit", "b", {"ExecStart": f"/bin/x --password={MARK}-p2 --port 80"}),
    ("app", "unit", "c", {"url": f"https://user:{MARK}-p3@example.net/path"}),
    ("app", "unit", "d", {"header": f"Authorization: Bearer {MARK}p4abcdefgh"}),
    ("app", "unit", "e", {"env": ["PATH=/bin", f"PSK={MARK}-p5"]}),
    ("app", "unit", "f", {"deep": {"er": {"api_key": f"{MARK}-p6"}}}),
    ("app", "unit", "g", {"key": f"{PEM.format('BEGIN')}\n{MARK}p7\n{PEM.format('END')}"}),
    ("app", "unit", f"--token={MARK}-p8", {"description": "a secret in the name"}),
    ("app", "unit", "h", {"argv": ["x", "--password", f"{MARK}-p9"]}),
    ("app", "unit", "i", {"secret": {"value": f"{MARK}-p10", "list": [f"{MARK}-p11"]}}),
]  # fmt: skip
KEPT = {"keyboard_layout": "de-neo", "public_key": "visible-public-key"}


async def _found_by(caller: Caller, question: str) -> list[Any]:
    hits: list[Any] = (await caller.ask("Search", question, 50, {"mode": "lexical", "all": True}))[
        0
    ]
    return hits


def test_planted_secrets_are_nowhere(daemons: Callable[..., Running]) -> None:
    """Find no planted secret in any answer, signal, log line or byte of the state folder."""
    assert EXAMPLE.read_text().count(MARK) >= 20

    async def work() -> str:
        async with calling(daemon.bus) as caller:
            await caller.vectorized()
            plain = [("app", "unit", "plain", {**KEPT, "description": "kept"})]
            await caller.ask("Publish", "app", PUBLISHED + plain, {})
            # also as observed state of what the file declares, for Drift to compare
            await caller.ask(
                "Publish",
                "app",
                [("systemd", "unit", "sshd.service", {"password": f"{MARK}-p12"})],
                {},
            )
            await caller.vectorized()
            assert await _found_by(caller, MARK) == []
            return await everything(caller)

    with daemons(LOG_LEVEL="debug") as daemon:
        said = asyncio.run(work())
        while_running = bytes_of(daemon)
        assert daemon.stop() == 0
    assert MARK not in said
    for value in KEPT.values():
        assert value in said
    assert len(said) > 100_000
    for name, data in {**while_running, **bytes_of(daemon)}.items():
        assert MARK.encode() not in data, name
        assert MARK.encode("utf-16-le") not in data, name
    assert {"memory.db", "memory.db-wal"} <= while_running.keys()
    assert MARK not in daemon.logs()
