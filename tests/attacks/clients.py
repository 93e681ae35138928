"""Clients that mean harm, each a program of its own that goes on until its time is over."""

import os
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from harness import marshal
from harness.marshal import NO_REPLY, Variant
from harness.wire import Gone, Silence, Wire

Ask = Callable[[int], tuple[Any, ...]]
ROOT, STATE = "/org/opdbus", "/org/opdbus/state"
SEARCH, LIST = "org.opdbus.State1.Search", "org.opdbus.State1.List"
PEER = "org.freedesktop.DBus.Peer"
PUBLISH, MANY = "org.opdbus.State1.Publish", "org.opdbus.Vectorizer1.VectorizeMany"
# What the bus lets a caller wait for at once.
PENDING = 128
# A little less than the largest message that a bus takes.
LARGEST = (32 << 20) - (64 << 10)


@contextmanager
def connections(address: str, count: int) -> Iterator[list[Wire]]:
    """Open so many connections, and hang up at the end."""
    with ExitStack() as stack:
        yield [stack.enter_context(Wire(address)) for _ in range(count)]


def until(seconds: float) -> Iterator[int]:
    """Count rounds until the time is over."""
    end, number = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        yield number
        number += 1


def _ask_and_never_read(address: str, seconds: float, count: int, *call: Any) -> None:
    """Ask for the largest replies on so many connections, and read none."""
    with connections(address, count) as wires:
        for wire in wires:
            wire.socket.settimeout(1.0)
            with suppress(Gone, Silence):
                for _ in range(PENDING):
                    wire.start(*call)
        for _ in until(seconds):
            time.sleep(0.1)  # what these clients do is nothing


def slow_lists(address: str, seconds: float, count: int) -> None:
    """Ask for long lists."""
    _ask_and_never_read(address, seconds, count, STATE, LIST, "a{sv}uu", {}, 0, 6000)


def slow_vectors(address: str, seconds: float, count: int) -> None:
    """Ask for many vectors."""
    texts = [f"mail {n % 10}" for n in range(600)]
    _ask_and_never_read(address, seconds, count, ROOT, MANY, "asa{sv}", texts, {})


def _keep_asking(
    address: str, seconds: float, count: int, most: int, ask: Ask, flags: int = 0
) -> None:
    """Have so many calls outstanding all the while on each connection; `ask` gives each call."""
    waiting: deque[tuple[Wire, int]] = deque()
    with connections(address, count) as wires:
        for number in until(seconds):
            with suppress(Silence):
                # more at once the bus would refuse, and the daemon never see
                if len(waiting) == count * most:
                    wire, serial = waiting.popleft()
                    wire.answer(serial, seconds)
                wire = wires[number % count]
                serial = wire.start(*ask(number), flags=flags)
                if not flags:
                    waiting.append((wire, serial))


def _search(_: int) -> tuple[Any, ...]:
    return STATE, SEARCH, "sua{sv}", "mail server", 10, {}


def flood(address: str, seconds: float, count: int) -> None:
    """Send searches, ten thousand and more, as fast as the bus takes them."""
    _keep_asking(address, seconds, count, PENDING - 1, _search)


def flood_without_replies(address: str, seconds: float, count: int) -> None:
    """Send searches that want no reply, of which the bus takes any number."""
    _keep_asking(address, seconds, count, PENDING - 1, _search, NO_REPLY)


def crowd(address: str, seconds: float, count: int) -> None:
    """Search on so many connections at once, again and again."""
    _keep_asking(address, seconds, count, 1, _search)


def slow_files(address: str, seconds: float, _: int) -> None:
    """Send files that the kernel takes seconds to close: sockets with unread data."""
    kept: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server, Wire(address) as wire:
        for _round in until(seconds):
            sender = socket.create_connection(server.getsockname())
            kept.append(server.accept()[0])
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 2))
            sender.settimeout(0)
            with suppress(BlockingIOError):
                while True:
                    sender.send(bytes(1 << 20))
            wire.send(_with_files(1), [sender.fileno()])
            # at once, so that the daemon is the last to close it
            sender.close()
            time.sleep(0.1)  # so that the attack is not one on this process's memory


def _with_files(count: int) -> bytes:
    fields = marshal.call_fields(ROOT, "org.opdbus.Vectorizer1", "Levels", "h", count)
    return marshal.message(fields, marshal.encode("h", (0,)), 9, flags=NO_REPLY)


def large_string(address: str, seconds: float, _: int) -> None:
    """Search for 32 MiB."""
    _send_large(address, seconds, SEARCH, "sua{sv}", ("m" * LARGEST, 10, {}))


def large_array(address: str, seconds: float, _: int) -> None:
    """Ask for the vectors of a million texts."""
    texts = marshal.encode("s", ["mail server for the new"]) * 1_000_000
    _send_large(address, seconds, MANY, "asa{sv}", (texts, {}))


def large_variants(address: str, seconds: float, _: int) -> None:
    """Publish an object of millions of numbers, each in a variant, some of them in thirty."""
    plain, deep = Variant("y", 1), Variant("y", 1)
    for _depth in range(30):
        deep = Variant("v", deep)
    object_ids = marshal.encode("v", [plain]) * 2_000_000 + marshal.encode("v", [deep]) * 200_000
    item = ("a", "b", "c", {"k": Variant("av", object_ids)})
    _send_large(address, seconds, PUBLISH, "sa(sssa{sv})a{sv}", ("a", [item], {}))


def _send_large(address: str, seconds: float, member: str, signature: str, body: object) -> None:
    interface, _, name = member.rpartition(".")
    path = ROOT if member == MANY else STATE
    fields = marshal.call_fields(path, interface, name, signature)
    data = marshal.encode(signature, body)
    with Wire(address) as wire:
        for _ in until(seconds):
            serial = wire.serial()
            with suppress(Silence):
                wire.send(marshal.message(fields, data, serial))
                wire.answer(serial, seconds)


def signals(address: str, seconds: float, _: int) -> None:
    """Send unwanted signals to the daemon alone, of a million empty arrays each."""
    body = marshal.encode("aau", [[[]] * 1_000_000])
    fields = marshal.call_fields(STATE, "a.b", "C", "aau")
    with Wire(address) as wire:
        for _ in until(seconds):
            with suppress(Silence):
                wire.send(marshal.message(fields, body, wire.serial(), kind=marshal.SIGNAL))


def unread(address: str, seconds: float, count: int) -> None:
    """Ask without end on so many connections, for answers of a few bytes, and read none."""
    call = marshal.message(marshal.call_fields(ROOT, PEER, "Ping", ""), b"", 9)
    with connections(address, count) as wires:
        for wire in wires:
            wire.socket.settimeout(0.01)
        for _ in until(seconds):
            for wire in wires:
                with suppress(Silence):
                    wire.send(call * 50)


def vanish(address: str, seconds: float, _: int) -> None:
    """Hang up in the middle: of calls, and of messages."""
    body = marshal.encode("sua{sv}", ("mail server", 10, {}))
    fields = marshal.call_fields(STATE, "org.opdbus.State1", "Search", "sua{sv}")
    texts = [f"mail {n}" for n in range(200)]
    for number in until(seconds):
        with Wire(address) as wire:
            if number % 3 == 0:
                wire.send(marshal.message(fields, body, wire.serial())[: 40 + number % 100])
            elif number % 3 == 1:
                wire.start(STATE, SEARCH, "sua{sv}", "mail server", 10, {})
            else:
                wire.start(ROOT, MANY, "asa{sv}", texts, {})


def deaf(address: str, seconds: float, count: int) -> None:
    """Subscribe to all signals and read none, while objects come and change."""
    with connections(address, count) as wires, Wire(address) as publisher:
        for wire in wires:
            wire.subscribe("type='signal'")
        for number in until(seconds):
            items = [("deaf", "unit", f"u{n}", {"round": Variant("u", number)}) for n in range(50)]
            with suppress(Silence):
                publisher.call(STATE, PUBLISH, "sa(sssa{sv})a{sv}", "deaf", items, {})
        items = [f"{STATE}/deaf/unit/u{n}" for n in range(50)]
        publisher.call(STATE, "org.opdbus.State1.Withdraw", "aoa{sv}", items, {})


ATTACKS: dict[str, tuple[Callable[[str, float, int], None], int]] = {
    "1 slow reader of lists": (slow_lists, 1),
    "32 slow readers of lists": (slow_lists, 32),
    "1 slow reader of vectors": (slow_vectors, 1),
    "32 slow readers of vectors": (slow_vectors, 32),
    "flood of 10,000": (flood, 1),
    "flood of 10,000, no replies": (flood_without_replies, 1),
    "8 floods": (flood, 8),
    "200 connections": (crowd, 200),
    "32 MiB string": (large_string, 1),
    "32 MiB array": (large_array, 1),
    "32 MiB of variants": (large_variants, 1),
    "signals of 4 MiB": (signals, 1),
    "4 floods, answers unread": (unread, 4),
    "vanishing": (vanish, 1),
    "deaf subscribers": (deaf, 16),
    "files slow to close": (slow_files, 1),
}


def main() -> None:
    """Attack: NAME ADDRESS SECONDS UID GROUP."""
    name, address, seconds, uid, group = sys.argv[1:]
    attack, number = ATTACKS[name]
    if int(uid):
        os.setgroups([int(group)] if int(group) else [])
        os.setgid(int(uid))
        os.setuid(int(uid))
    try:
        attack(address, float(seconds), number)
    except Gone as error:
        print(f"the bus ended the connection: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
