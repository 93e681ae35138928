"""One call with a text made to be read slowly stops nobody, and neither does what it stored."""

import json

import pytest
from harness.commands import run
from harness.running import (
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
    work_of,
)

from opdbus.bus.transport.connection import RemoteError

COLONS = ":" * 250_000 + "!"
DECLARED = (
    '{"version": 1, "plugins": {"lab": {"boxes": [{"name": "eth0", "address": "10.0.0.1"}]}}}'
)
# Of one connection, the friend's.
PINGS = 50


async def drifted(caller: Caller) -> int:
    """Give how many objects drift."""
    count: int = await caller.read("Drifted")
    return count


async def is_served(caller: Caller) -> None:
    """Wait until the comparison was made, with others served meanwhile."""
    for _ in range(PINGS):
        await caller.call(ROOT_PATH, "org.freedesktop.DBus.Peer.Ping")
    await caller.until(lambda: drifted(caller), 1)
    ((*_, fields),) = (await caller.ask("DriftReport", {}))[0]
    assert [field[0] for field in fields] == ["address"]


def test_published_value_made_to_be_compared_slowly(daemons: Make) -> None:
    """A published value that is compared with a declared one holds up nobody, nor the next start.

    The comparison of 250,000 colons with an address took minutes of the interpreter's lock.
    """
    daemon = daemons(LOG_LEVEL="info", VECTOR_LEVEL="none")
    daemon.settings["OP_DBUS_STATE_FILE"] = str(replace(daemon.folder / "declared.json", DECLARED))

    async def publish(caller: Caller) -> None:
        await caller.ready()
        objects = [("lab", "box", "eth0", {"address": COLONS})]
        await caller.ask("Publish", "lab", objects, {})
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
@work_of(ask, "asked")
async def test_question_made_to_be_read_slowly(caller: Caller, asked: Running, words: str) -> None:
    """A question of the largest size is answered in less than a second of processor time."""
    await search(caller, "hybrid")
    before = cpu_seconds(asked.pid)
    await search(caller, "hybrid", words * (1_000_000 // len(words)))
    assert cpu_seconds(asked.pid) - before < 1


@pytest.mark.parametrize(
    ("member", "signature", "body", "error"),
    [
        ("Resolve", "sa{sv}", ("x" * 1_000_000, {}), "InvalidArgs"),
        ("Get", "oa{sv}", (f"{STATE_PATH}/a/b/{'_2e' * 300_000}", {}), "UnknownObject"),
        ("List", "a{sv}uu", ({"where": "a=b," * 250_000}, 0, 9), "InvalidArgs"),
    ],
)
@work_of(ask, "asked")
async def test_long_argument_is_refused_at_once(
    caller: Caller,
    asked: Running,
    member: str,
    signature: str,
    body: tuple[object, ...],
    error: str,
) -> None:
    """A name, a path or conditions longer than any are refused before they are read."""
    before = cpu_seconds(asked.pid)
    with pytest.raises(RemoteError) as boost:
        await caller.call(STATE_PATH, f"{STATE}.{member}", signature, *body)
    assert boost.value.name.endswith(error)
    assert cpu_seconds(asked.pid) - before < 1


HIDDEN = [
    *map(chr, (*range(0x200B, 0x2010), 0x061C, 0x180E, 0xAD, 0xFEFF, 0x2028, 0x2029)),
    *map(chr, (*range(0x202A, 0x202F), *range(0x2060, 0x2070), 0x34F, 0x3164, 0x9B, 0x85)),
    *("\U000e0041", "\U000e007f", "a\ufe0f", "\ufe00", "\U000e0100"),
]
COMMANDS = [
    "list --plugin hidden", "search kind:lamp", "search --explain sharp", "show hidden/lamp/{}",
    "history hidden/lamp/{}", "changes --plugin hidden", "changes --about lamp", "odd", "topics",
    "similar hidden/lamp/{}", "fields --plugin hidden", "list --plugin hidden --columns name,note",
    "top --once",
]  # fmt: skip


@pytest.fixture(scope="module")
def hidden(asked: Running) -> Running:
    """Publish objects with hidden characters in their names, fields and values."""

    async def publish(caller: Caller) -> None:
        objects = [
            ("hidden", "lamp", f"x{char}y{n}", {"note": f"sharp{char}", f"k{char}ey": f"{char}on"})
            for n, char in enumerate(HIDDEN)
        ]
        await caller.ask("Publish", "h", objects, {})
        await caller.vectorized()

    ask(asked, publish)
    return asked


@pytest.mark.parametrize("command", COMMANDS)
def test_hidden_characters_are_shown(hidden: Running, command: str) -> None:
    """No command prints a character that is invisible or turns the text; each is an escape."""
    shown = 0
    for number, char in [*enumerate(HIDDEN)][:: 1 if "{}" not in command else 9]:
        done = run(hidden, *(each.format(f"x{char}y{number}") for each in command.split()))
        assert done.returncode == 0, done
        assert not [
            hex(ord(c)) for c in done.stdout + done.stderr if c in "".join(HIDDEN) and c != "a"
        ]
        shown += "\\u" in done.stdout or "\\x" in done.stdout
        if "{}" not in command:
            break
    assert shown or command in {"odd", "topics", "top --once"}


def test_json_is_the_same_with_escapes(hidden: Running) -> None:
    """`--json` has the very names, as JSON, without the characters themselves."""
    done = run(hidden, "list", "--plugin", "hidden", "--json")
    names = [row["name"] for row in json.loads(done.stdout)["objects"]]
    assert sorted(names) == sorted(f"x{char}y{n}" for n, char in enumerate(HIDDEN))
    assert not {*done.stdout} & {*"".join(HIDDEN)} - {"a"}
