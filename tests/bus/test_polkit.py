"""What polkit's answers do, asked over a private bus: each answer, its memory, and its faults."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from harness.authority import ALL, NAME, PATH, authority
from harness.running import PATIENCE_SECONDS, Bus, work_of
from harness.users import NOBODY, as_user

from opdbus.bus.authorization.polkit import Polkit, Verdict
from opdbus.bus.transport.connection import Connection
from opdbus.errors import AccessDenied
from opdbus.platform.tasks import end_child


@pytest.fixture
def bus() -> Iterator[str]:
    """Run a bus that has no polkit."""
    private = Bus()
    yield private.address
    private.kill()


def run(bus: str, ask: Callable[[Polkit, Connection], Awaitable[Any]], **more: Any) -> Any:
    """Ask as the daemon does, about a client that is there."""

    async def both() -> Any:
        async with (
            asyncio.timeout(PATIENCE_SECONDS),
            Connection(bus) as connection,
            Connection(bus) as client,
        ):
            polkit = Polkit(connection, **more)
            connection.on_signal = polkit.on_signal
            return await ask(polkit, client)

    return asyncio.run(both())


@pytest.mark.parametrize("verdict", [Verdict.YES, Verdict.NO, Verdict.CHALLENGE])
@work_of(run, "bus", handed=2)
async def test_polkit_is_asked_once_for_each_connection_and_action(
    polkit: Polkit, client: Connection, bus: str, verdict: Verdict
) -> None:
    """Ask about the connection, never its process, without interaction, and once."""
    async with authority(bus) as fake:
        fake.change(read=verdict.value)
        checks = [polkit.check(client.name, "read") for _ in range(20)]
        assert set(await asyncio.gather(*checks)) == {verdict}
        assert await polkit.check(client.name, "read") is verdict
        assert await polkit.check(client.name, "manage") is Verdict.NO
        subject = ["system-bus-name", {"name": client.name}]
        assert [call[:2] for call in fake.calls] == [
            [subject, "org.opdbus.read"],
            [subject, "org.opdbus.manage"],
        ]
        assert [call[2:] for call in fake.calls] == [[{}, 0, ""]] * 2


@work_of(run, "bus", handed=2)
async def test_without_polkit_nothing_is_decided(
    polkit: Polkit, client: Connection, bus: str
) -> None:
    """Leave the decision to others where no polkit is installed, or it knows no such action."""
    assert await polkit.check(client.name, "read") is Verdict.UNDECIDED
    async with authority(bus, known=ALL[1:]) as fake:
        fake.change(read="yes", vectorize="yes")
        await fake.seen(0)
        found = [await _until(polkit, client, "vectorize", Verdict.YES)]
        found.append(await polkit.check(client.name, "read"))
        assert found == [Verdict.YES, Verdict.UNDECIDED]
        assert {call[1] for call in fake.calls} == {"org.opdbus.vectorize"}
    # and it went
    await _until(polkit, client, "vectorize", Verdict.UNDECIDED)


@work_of(run, "bus", handed=2)
async def test_new_rules_count_at_once(polkit: Polkit, client: Connection, bus: str) -> None:
    """Forget every answer when polkit tells of a change, and when another polkit comes."""
    async with authority(bus) as fake:
        fake.change(read="yes")
        assert await polkit.check(client.name, "read") is Verdict.YES
        fake.change(read="no")
        await _until(polkit, client, "read", Verdict.NO)
    async with authority(bus) as other:
        other.change(read="yes")
        await _until(polkit, client, "read", Verdict.YES)


@work_of(run, "bus", handed=2)
async def test_only_polkit_tells_of_changes(polkit: Polkit, client: Connection, bus: str) -> None:
    """Keep the answers where somebody else sends the signal, straight to us."""
    async with authority(bus) as fake, Connection(bus) as stranger:
        fake.change(read="yes")
        await polkit.check(client.name, "read")
        heard, news = polkit.on_signal, asyncio.Event()

        def heed(message: Any) -> None:
            heard(message)
            news.set()

        polkit._connection.on_signal = heed
        rule = f"type='signal',interface='{NAME}.Authority'"
        await polkit._connection.subscribe(rule)
        stranger.emit(PATH, f"{NAME}.Authority.Changed", "")
        await news.wait()
        await polkit.check(client.name, "read")
        assert len(fake.calls) == 1


@work_of(run, "bus", handed=2)
async def test_a_connection_that_ended_is_forgotten(
    polkit: Polkit, client: Connection, bus: str
) -> None:
    """Ask again about a connection once it was forgotten."""
    async with authority(bus) as fake:
        for _ in range(2):
            await polkit.check(client.name, "read")
            polkit.forget(client.name)
        assert len(fake.calls) == 2


@work_of(run, "bus", handed=2)
async def test_what_ends_by_the_clock_is_not_remembered(
    polkit: Polkit, client: Connection, bus: str
) -> None:
    """Ask each time where polkit's yes rests on a password that was given a while ago."""
    async with authority(bus) as fake:
        fake.change(manage="kept")
        for _ in range(3):
            assert await polkit.check(client.name, "manage") is Verdict.YES
        assert len(fake.calls) == 3


@pytest.mark.parametrize("verdict", [Verdict.YES, Verdict.NO, Verdict.CHALLENGE])
@work_of(run, "bus", handed=2)
async def test_the_user_is_asked_each_time(
    polkit: Polkit, client: Connection, bus: str, verdict: Verdict
) -> None:
    """Have polkit ask the user by flag 1 and a ticket of its own, and remember no such answer."""
    async with authority(bus) as fake:
        fake.change(manage="challenge")
        fake.asked_user = verdict.value
        for _ in range(2):
            assert await polkit.ask_user(client.name, "manage") is verdict
        assert [call[3] for call in fake.calls] == [1, 1]
        assert len({call[4] for call in fake.calls} - {""}) == 2


@work_of(run, "bus", handed=2)
async def test_a_password_given_counts_for_calls_without_interaction(
    polkit: Polkit, client: Connection, bus: str
) -> None:
    """Forget that polkit wanted a password once one was given: it may keep that for a while."""
    async with authority(bus) as fake:
        fake.change(manage="challenge")
        fake.asked_user = "yes"
        assert await polkit.check(client.name, "manage") is Verdict.CHALLENGE
        assert await polkit.ask_user(client.name, "manage") is Verdict.YES
        fake.answers["org.opdbus.manage"] = "kept"
        assert await polkit.check(client.name, "manage") is Verdict.YES


@work_of(run, "bus", handed=2, patience=0.05)
async def test_a_polkit_that_hangs_says_no(polkit: Polkit, client: Connection, bus: str) -> None:
    """Give up on polkit after a while, with the reason, and ask again at the next call."""
    async with authority(bus) as fake:
        fake.change(read="hang")
        with pytest.raises(AccessDenied, match=r"it did not answer within 0\.05 s"):
            await polkit.check(client.name, "read")
        fake.answers["org.opdbus.read"] = "yes"
        # the next is given as little time
        await _until(polkit, client, "read", Verdict.YES)


@work_of(run, "bus", handed=2)
async def test_a_fault_of_polkit_says_no(polkit: Polkit, client: Connection, bus: str) -> None:
    """Refuse, with polkit's own words, where it answers with an error; and do not remember it."""
    async with authority(bus) as fake:
        fake.change(read="error")
        with pytest.raises(AccessDenied, match="cannot say who may read here: rules of stone"):
            await polkit.check(client.name, "read")
        fake.answers["org.opdbus.read"] = "yes"
        assert await polkit.check(client.name, "read") is Verdict.YES


@work_of(run, "bus", handed=2)
async def test_a_polkit_that_vanishes_while_asked_is_asked_anew(
    polkit: Polkit, client: Connection, bus: str
) -> None:
    """Ask the successor where polkit ended before it answered."""
    async with authority(bus) as first:
        first.change(read="hang")
        check = asyncio.create_task(polkit.check(client.name, "read"))
        await first.seen(1)
    assert await check is Verdict.UNDECIDED


_SQUATTER = """
import asyncio, sys
from opdbus.bus.transport.connection import Connection

async def squat():
    async with Connection(sys.argv[1]) as connection:
        await connection.own("org.freedesktop.PolicyKit1")
        print("owned", flush=True)
        await asyncio.Event().wait()

def main():
    asyncio.run(squat())
"""


def test_a_polkit_of_another_user_is_not_believed(bus: str) -> None:
    """Ask nothing of a program that owns polkit's name as any user but root, polkit's or ours."""

    async def ask(polkit: Polkit, client: Connection) -> Verdict:
        command = as_user(NOBODY, _SQUATTER, bus)
        pipe = asyncio.subprocess.PIPE
        squatter = await asyncio.create_subprocess_exec(*command, stdout=pipe)
        assert squatter.stdout
        try:
            assert await squatter.stdout.readline() == b"owned\n"
            return await polkit.check(client.name, "read")
        finally:
            await end_child(squatter)

    assert run(bus, ask) is Verdict.UNDECIDED


async def _until(polkit: Polkit, client: Connection, action: str, wanted: Verdict) -> Verdict:
    """Ask until the signal that changes the answer has come."""
    while True:
        try:
            if await polkit.check(client.name, action) is wanted:
                return wanted
        except AccessDenied:
            continue
        # the bus sends what it has for us before this answer
        await polkit._connection.ask_bus("GetId")
