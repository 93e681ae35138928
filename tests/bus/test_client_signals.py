"""Signals as a program's client follows them: several listeners, and a bus that refuses."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from typing import Any

import pytest
from harness.running import HISTORY, HISTORY_PATH, POLICY, STATE, STATE_PATH, Bus

from opdbus.bus.names import BUS_NAME
from opdbus.bus.transport.connection import Connection
from opdbus.client import Client, following
from opdbus.errors import OpDbusError

RECORDED = f"{HISTORY}.Recorded"
DRIFTED = f"{STATE}.DriftDetected"


@pytest.fixture
def bus() -> Iterator[Bus]:
    """Run a message bus."""
    found = Bus()
    yield found
    found.kill()


def refusing(member: str) -> Bus:
    """Run a bus that refuses one of its own methods."""
    bus = "org.freedesktop.DBus"
    return Bus(
        f'{POLICY}<deny send_destination="{bus}" send_interface="{bus}" send_member="{member}"/>'
    )


def test_several_generators_share_a_client(bus: Bus) -> None:
    """Give each generator of one client its own signals, also after another one has ended."""

    async def work() -> None:
        async with Client(bus.address) as client, Connection(bus.address) as daemon:
            await daemon.own(BUS_NAME)
            rows, drifts, others = client.news(), client.transitions(), client.new_rows()
            for each in (rows, drifts, others):
                await anext(each)
            daemon.emit(HISTORY_PATH, RECORDED, "t", 1)
            daemon.emit(STATE_PATH, DRIFTED, "s", "x")
            found: set[str] = set()
            while found != {"Recorded", "DriftDetected"}:
                found |= await anext(rows)
            assert await anext(drifts) == ["x"]
            assert await anext(others) == {"Recorded"}
            await rows.aclose()
            daemon.emit(HISTORY_PATH, RECORDED, "t", 2)
            assert await anext(others) == {"Recorded"}
            again = client.news()
            await anext(again)
            daemon.emit(HISTORY_PATH, RECORDED, "t", 3)
            assert await anext(again) == await anext(others) == {"Recorded"}

    asyncio.run(asyncio.wait_for(work(), 60))


@pytest.mark.parametrize(
    "listen", [Client.news, Client.new_rows, Client.transitions, Client.all_news]
)
def test_a_refused_subscription_is_an_error_of_ours(
    listen: Callable[[Client], AsyncGenerator[Any, None]],
) -> None:
    """Go on to follow a bus that refuses a rule, as one that was lost."""
    bus = refusing("AddMatch")

    async def work() -> None:
        async with Client(bus.address) as client:
            with pytest.raises(OpDbusError):
                await anext(listen(client))
        connect = following.connect_without_user
        async with aclosing(following.follow(lambda: connect(bus.address), listen)) as bursts:
            assert await anext(bursts) is None
            assert await anext(bursts) is None

    asyncio.run(asyncio.wait_for(work(), 60))
    bus.kill()


def test_a_refused_look_is_an_error_of_ours() -> None:
    """Raise one of our errors if the bus does not say whether a daemon owns the name."""
    bus = refusing("NameHasOwner")

    async def work() -> None:
        async with Client(bus.address) as client:
            with pytest.raises(OpDbusError):
                await client.is_served()

    asyncio.run(work())
    bus.kill()
