"""An observer's own connection to the system bus, whichever bus is served."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final, NamedTuple, Self

from opdbus.bus.transport.connection import Connection, RemoteError
from opdbus.bus.transport.frames import Header
from opdbus.bus.transport.library import Message
from opdbus.bus.transport.messages import new_call
from opdbus.bus.transport.values import Plain, from_wire
from opdbus.errors import BusError
from opdbus.observe.core.pace import Allowance
from opdbus.observe.core.report import Absent, LostSource
from opdbus.platform.tasks import until_first_ends

_BUS: Final = "org.freedesktop.DBus"
_PROPERTIES: Final = f"{_BUS}.Properties"
_ANSWER_SECONDS: Final = 10.0
# Signals within this time are read together.
BURST_SECONDS: Final = 0.1
# Limits of signals that wait to be read, and of their bytes; beyond, all must be listed again.
_MAX_WAITING: Final = 10_000
_MAX_WAITING_BYTES: Final = 16 << 20
# Enough for the list of 50,000 units.
_MAX_REPLY_BYTES: Final = 16 << 20
# The limit of the system's bus; such a reply is read in parts.
_MAX_LISTING_BYTES: Final = 32 << 20
_PART_BYTES: Final = 16 << 10
# A larger signal would keep every thread waiting while it is decoded.
_MAX_SIGNAL_BYTES: Final = 1 << 20
# Reading time in each turn of the event loop: a flood must leave most of it to our clients.
_TURN_SECONDS: Final = 0.0005


class Signal(NamedTuple):
    """A signal of a followed service; its body is empty if it was too large to read."""

    path: str
    interface: str
    member: str
    body: list[Plain]
    signature: str = ""
    # time of receipt, in seconds since 1970
    at: float = 0.0


class Service:
    """A service on the system bus, which is not started by calls; its signals come in order.

    Raises Absent if there is no such bus or service, and LostSource when the bus or the service
    goes away, does not answer, or sends faster than its signals are read. With `typed`,
    values keep their variants, and large replies are read in parts.
    """

    def __init__(self, name: str, *, typed: bool = False) -> None:
        self.name = name
        self._is_typed = typed
        most = _MAX_LISTING_BYTES if typed else _MAX_REPLY_BYTES
        self._connection = Connection("system", most_of_reply=most, turn=_TURN_SECONDS)
        self._waiting: list[Signal] = []
        self._waiting_bytes = 0
        self._has_signals = asyncio.Event()
        self._owner = ""
        # why the source must be listed again
        self._lost = ""

    async def __aenter__(self) -> Self:
        """Connect, and find the owner of the name; raises Absent."""
        try:
            await self._connection.__aenter__()
        except BusError as error:
            raise Absent(str(error)) from None
        try:
            self._connection.wants_signal = self._admit_signal
            self._connection.on_signal = self._on_signal
            await self._connection.subscribe(_changes_of_owner(self.name))
            try:
                (owner,) = await self._connection.ask_bus("GetNameOwner", "s", self.name)
            except RemoteError:
                raise Absent(f"{self.name} is not on the system bus") from None
            self._owner = str(owner)
        except BaseException:
            await self._connection.__aexit__()
            raise
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Disconnect."""
        await self._connection.__aexit__()

    async def follow(self, rule: str) -> None:
        """Receive the service's signals that match a rule, such as `member='UnitNew'`."""
        await self._connection.subscribe(f"type='signal',sender='{self.name}',{rule}")

    async def call(
        self,
        path: str,
        member: str,
        signature: str = "",
        *arguments: Plain,
        seconds: float = _ANSWER_SECONDS,
    ) -> list[Plain]:
        """Call `interface.method`; raises RemoteError with the service's error."""
        async with self._reply_deadline(member, seconds):
            return await self._connection.call(
                self.name, path, member, signature, *arguments, may_start=False
            )

    async def listing(
        self, path: str, member: str, answer: str, *names: str
    ) -> AsyncGenerator[Plain]:
        """Call `interface.method` for one dict, and yield it in parts, variants left in."""
        call = new_call(self.name, path, member, "s" * len(names), names)
        parts = self._connection.reply_in_parts(call, answer, _PART_BYTES)
        async with self._reply_deadline(member, _ANSWER_SECONDS) as limit:
            async for part in parts:
                limit.reschedule(None)
                yield part
                await asyncio.sleep(0)

    @asynccontextmanager
    async def _reply_deadline(self, member: str, seconds: float) -> AsyncIterator[asyncio.Timeout]:
        """Limit the wait for an answer; raises LostSource if none comes."""
        try:
            async with asyncio.timeout(seconds) as limit:
                yield limit
        except TimeoutError:
            why = f"did not answer {member} within {seconds:.0f} s"
            raise LostSource(f"{self.name} {why}") from None
        except BusError as error:
            raise LostSource(str(error)) from None

    async def properties(self, path: str, interface: str) -> Mapping[str, Plain]:
        """Return all properties of an interface; raises RemoteError."""
        if self._is_typed:
            found: dict[str, Plain] = {}
            async for part in self.listing(path, f"{_PROPERTIES}.GetAll", "a{sv}", interface):
                found |= part
            return found
        (values,) = await self.call(path, f"{_PROPERTIES}.GetAll", "s", interface)
        return values if isinstance(values, dict) else {}

    def take(self) -> list[Signal]:
        """Return and remove the signals that wait."""
        signals, self._waiting, self._waiting_bytes = self._waiting, [], 0
        return signals

    async def bursts(self) -> AsyncGenerator[list[Signal]]:
        """Yield the followed signals in order, those within a tenth of a second together.

        A caller that takes long gets fewer and longer bursts, of up to a second: see Allowance.
        """
        clock = asyncio.get_running_loop().time
        lost = asyncio.create_task(self._connection.wait_closed())
        lost.add_done_callback(
            lambda _: self._mark_lost("the connection to the system bus was lost")
        )
        allowance, rest = Allowance(clock), 0.0
        try:
            while True:
                await self._has_signals.wait()
                await asyncio.sleep(max(BURST_SECONDS, rest))
                self._has_signals.clear()
                if self._lost:
                    raise LostSource(self._lost)
                signals = self.take()
                started = clock()
                yield signals
                rest = allowance.rest(clock() - started)
        finally:
            lost.cancel()

    def _admit_signal(self, header: Header, size: int) -> bool:
        # any client may send us signals: only the bus and the service itself are trusted
        if self._lost or header.sender not in {_BUS, self._owner}:
            return False
        if size > _MAX_SIGNAL_BYTES:
            self._enqueue(Signal(header.path, header.interface, header.member, []))
            return False
        self._waiting_bytes += size
        if self._waiting_bytes > _MAX_WAITING_BYTES:
            self._mark_lost(f"{self.name} sends more than op-dbus can read")
        return not self._lost

    def _on_signal(self, message: Message) -> None:
        if message.sender == _BUS:
            if message.member == "NameOwnerChanged" and message.body[0] == self.name:
                self._mark_lost(f"{self.name} went away or was restarted")
            return
        body = message.body if self._is_typed else [from_wire(value) for value in message.body]
        named = message.path or "", message.interface or "", message.member or ""
        self._enqueue(Signal(*named, body, message.signature, time.time()))

    def _enqueue(self, signal: Signal) -> None:
        if len(self._waiting) >= _MAX_WAITING:
            self._mark_lost(f"{self.name} sends faster than op-dbus can read")
            return
        self._waiting.append(signal)
        self._has_signals.set()

    def _mark_lost(self, reason: str) -> None:
        """Let `bursts` end without the waiting signals: the source must be listed again."""
        self._lost = self._lost or reason
        self._waiting = []
        self._has_signals.set()


async def until_owned(name: str) -> None:
    """Wait until a name on the bus is owned, or the bus goes away; for ever without a bus."""
    owned = asyncio.Event()

    def on_signal(message: Message) -> None:
        # any client may send us signals
        is_change = message.sender == _BUS and message.member == "NameOwnerChanged"
        if is_change and message.body[0] == name and message.body[2]:
            owned.set()

    try:
        async with Connection("system") as connection:
            connection.on_signal = on_signal
            await connection.subscribe(_changes_of_owner(name))
            if not (await connection.ask_bus("NameHasOwner", "s", name))[0]:
                await until_first_ends(owned.wait(), connection.wait_closed())
    except BusError:  # nothing announces that a bus has appeared, so wait for ever
        await asyncio.Event().wait()


def _changes_of_owner(name: str) -> str:
    return f"type='signal',sender='{_BUS}',member='NameOwnerChanged',arg0='{name}'"
