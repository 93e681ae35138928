"""One call with a text made to be read slowly stops nobody, and neither does what it stored."""

import pytest
from running import (
    ROOT_PATH,
    STATE,
    STATE_PATH,
    Caller,
    Make,
    Running,
    ask,
    cpu_seconds,
    replace,
    search,
)

COLONS = ":" * 250_000 + "!"
DECLARED = (
    '{"version": 1, "plugins": {"lab": {"boxes": [{"name": "eth0", "address": "10.0.0.1"}]}}}'
)
# Of one connection, the friend's.
PINGS = 50


async def drifted(caller: Caller) -> int:
    """Give how many objects drift."""
    count: int = await caller.get(STATE_PATH, STATE, "Drifted")
    return count


async def is_served(caller: Caller) -> None:
    """Wait until the comparison was made, with others served meanwhile."""
    for _ in range(PINGS):
        await caller.call(ROOT_PATH, "org.freedesktop.DBus.Peer.Ping")
    await caller.until(lambda: drifted(caller), 1)
    ((*_, fields),) = (await caller.call(STATE_PATH, f"{STATE}.DriftReport", "a{sv}", {}))[0]
    assert [field[0] for field in fields] == ["address"]


def test_published_value_made_to_be_compared_slowly(daemons: Make) -> None:
    """A published value that is compared with a declared one holds up nobody, nor the next start.

    The comparison of 250,000 colons with an address took minutes of the interpreter's lock.
    """
    daemon = daemons(LOG_LEVEL="info")
    daemon.settings["OP_DBUS_STATE_FILE"] = str(replace(daemon.folder / "declared.json", DECLARED))

    async def publish(caller: Caller) -> None:
        await caller.ready()
        objects = [("lab", "box", "eth0", {"address": COLONS})]
        await caller.call(STATE_PATH, f"{STATE}.Publish", "sa(sssa{sv})a{sv}", "lab", objects, {})
        await is_served(caller)

    async def again(caller: Caller) -> None:
        await caller.ready()
        await is_served(caller)

    with daemon:
        ask(daemon, publish)
        daemon.kill()
        daemon.start()
        ask(daemon, again)
        assert daemon.stop() == 0


@pytest.fixture(scope="module")
def asked(shared_daemons: Make) -> Running:
    """Run a daemon for questions."""
    daemon = shared_daemons(LOG_LEVEL="info").start()
    daemon.vectorized()
    return daemon


@pytest.mark.parametrize(
    "words", ["not ", "can't it the ", "which ports, on which ", "what before ", "1:", '"', "(a, "]
)
def test_question_made_to_be_read_slowly(asked: Running, words: str) -> None:
    """A question of the largest size is answered in less than a second of processor time."""

    async def work(caller: Caller) -> None:
        await search(caller, "hybrid")
        before = cpu_seconds(asked.pid)
        await search(caller, "hybrid", words * (1_000_000 // len(words)))
        assert cpu_seconds(asked.pid) - before < 1

    ask(asked, work)
