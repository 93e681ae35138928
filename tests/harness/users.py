"""Programs that tests run as somebody else: the bus takes the user from the kernel."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest


class User(NamedTuple):
    """Whom a program runs as; dbus-daemon turns away users that the system does not know."""

    uid: int
    groups: tuple[int, ...] = ()


# Not the user that runs the tests, whoever that is.
NOBODY = User(65534 if os.geteuid() != 65534 else 65533)
ANOTHER = User(1)
# nobody is in it but the users that a test puts there
GROUP = 54321
MEMBER = User(2, (GROUP,))

# each line is a call, each answer "allowed" or the name of its error; -i lets polkit ask
_CALLS = """
import asyncio, json, sys
from opdbus.bus.transport.connection import Connection, RemoteError

async def ask(bus, *flags):
    async with Connection(bus) as connection:
        for line in sys.stdin:
            try:
                call = json.loads(line)
                with open("/dev/null") as file:
                    call = [file if value == "a file" else value for value in call]
                    await connection.call(*call, is_interactive="-i" in flags)
                print("allowed", flush=True)
            except RemoteError as error:
                print(error.name, flush=True)

def main():
    asyncio.run(ask(*sys.argv[1:]))
"""


def as_user(user: User, program: str, *arguments: str) -> list[str]:
    """Give the command that runs a Python program as a user, from `main` on.

    What it imports before, it imports as us, since others may not be able to read it. Skips where
    that cannot be.
    """
    if os.geteuid() != 0:
        pytest.skip("only root can run a client as another user")
    become = (
        f"import os; os.setgroups({list(user.groups)});"
        f" os.setgid({user.uid}); os.setuid({user.uid})"
    )
    return [sys.executable, "-c", f"{program}\n{become}\nmain()\n", *arguments]


def asking(user: User, bus: str, *flags: str) -> subprocess.Popen[str]:
    """Start a client of that user: it reads calls and writes answers, a line each."""
    return subprocess.Popen(
        as_user(user, _CALLS, bus, *flags),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


# hears all that the service sends; for each line it prints all of that, once it has heard it
HEARS = """
import asyncio, json, sys
from opdbus.bus.transport.connection import Connection

async def hear(bus):
    async with Connection(bus) as connection:
        heard = []
        await connection.subscribe("type='signal',sender='org.opdbus'")
        # what the bus says of this client's own name has come by now
        connection.on_signal = lambda m: heard.append([m.member, repr(m.body)])
        print("listening", flush=True)
        for line in sys.stdin:
            # it is answered after what was sent before
            await connection.call("org.opdbus", "/org/opdbus", "org.freedesktop.DBus.Peer.Ping", "")
            print(json.dumps(heard), flush=True)

def main():
    asyncio.run(hear(sys.argv[1]))
"""


@contextmanager
def hearing(*command: str) -> Iterator[Callable[[], list[tuple[str, str]]]]:
    """Run HEARS by this command line, and give what it heard: member, body."""
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as client:
        assert client.stdin
        assert client.stdout
        assert client.stdout.readline() == "listening\n"

        def heard() -> list[tuple[str, str]]:
            assert client.stdin
            assert client.stdout
            print(file=client.stdin, flush=True)
            return [(member, body) for member, body in json.loads(client.stdout.readline())]

        try:
            yield heard
        finally:
            client.kill()


def answers(user: User, bus: str, calls: Sequence[Sequence[Any]], *flags: str) -> list[str]:
    """Make calls (destination, path, member, signature, values) as a user.

    Gives "allowed" or the error's name, short where it is of org.freedesktop.DBus.
    """
    with asking(user, bus, *flags) as client:
        try:
            lines = "".join(f"{json.dumps(call)}\n" for call in calls)
            output, _ = client.communicate(lines, timeout=60)
        finally:
            client.kill()
    assert client.returncode == 0
    return [line.removeprefix("org.freedesktop.DBus.Error.") for line in output.splitlines()]
