"""Every call that the interfaces allow for, from their XML, made as some user of a booted host."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree as ET

from system.host import PROGRAM, Host
from system.service import NAME, ROOT_PATH, STATE_PATH

FACES = Path(__file__).parents[2] / "opdbus" / "bus" / "interfaces"
# one of the service fixture's
OBJECT = f"{STATE_PATH}/systemd/unit/nginx_2eservice"
READ, MANAGE = "read", "manage"
REFUSALS = {
    "org.freedesktop.DBus.Error.AccessDenied",
    "org.freedesktop.DBus.Error.InteractiveAuthorizationRequired",
}
_ACTION = "annotation[@name='org.opdbus.Action']"
_PROPERTIES = "org.freedesktop.DBus.Properties"
_PATHS = {
    "org.freedesktop.LogControl1": "/org/freedesktop/LogControl1",
    "org.opdbus.History1": "/org/opdbus/history",
    "org.opdbus.Job1": "/org/opdbus/job/1",
    "org.opdbus.Object1": OBJECT,
    "org.opdbus.State1": STATE_PATH,
    "org.opdbus.Vectorizer1": ROOT_PATH,
}
# What a caller might well give for an argument of that type; h: a descriptor's place. There is
# nothing to publish or withdraw: whose an object is would be another reason to be refused.
_SAMPLES: dict[str, Any] = {
    "a(sssa{sv})": [],
    "a{sv}": {},
    "ao": [],
    "as": ["words"],
    "h": 0,
    "o": OBJECT,
    "s": "words",
    "t": 1,
    "u": 1,
}
# Each line of its input is a call, each of its output the error's name, or nothing. It is a program
# of its own, so that it is somebody else's process and runs on what was installed.
_PROGRAM = """
import asyncio, json, os, sys
from dbus_fast import BusType, Message, Variant
from dbus_fast.aio import MessageBus

async def main():
    bus = await MessageBus(bus_type=BusType.SYSTEM, negotiate_unix_fd=True).connect()
    texts = os.memfd_create("texts")
    os.write(texts, b'"words"\\n')
    for line in sys.stdin:
        destination, path, interface, member, signature, values = json.loads(line)
        if signature.endswith("v"):
            values[-1] = Variant("s", values[-1])
        files = [os.dup(texts)] if "h" in signature else []
        reply = await bus.call(
            Message(destination, path, interface, member, signature=signature, body=values,
                    unix_fds=files)
        )
        print(reply.error_name or "")

asyncio.run(main())
"""


class Call(NamedTuple):
    """A call, and the action that a caller must be allowed."""

    action: str
    path: str
    interface: str
    member: str
    signature: str
    values: Sequence[Any]
    destination: str = NAME


def every_call() -> list[Call]:
    """Give a call of each method, each property's reading, and each setting that is possible."""
    calls = [Call(READ, OBJECT, "org.freedesktop.DBus.Introspectable", "Introspect", "", [])]
    for file in sorted(FACES.glob("*.xml")):
        for face in ET.parse(file).getroot().iter("interface"):  # noqa: S314 -- our own
            calls += _calls(face, _PATHS[face.attrib["name"]])
    return calls


def _calls(face: ET.Element, path: str) -> Iterable[Call]:
    name = face.attrib["name"]
    for method in face.iter("method"):
        types = [arg.attrib["type"] for arg in method.iter("arg") if arg.get("direction") == "in"]
        values = [_SAMPLES[kind] for kind in types]
        yield Call(_action(method), path, name, method.attrib["name"], "".join(types), values)
    yield Call(READ, path, _PROPERTIES, "GetAll", "s", [name])
    for known in face.iter("property"):
        which = [name, known.attrib["name"]]
        yield Call(READ, path, _PROPERTIES, "Get", "ss", which)
        if "write" in known.attrib["access"]:
            yield Call(_action(known), path, _PROPERTIES, "Set", "ssv", [*which, "info"])


def _action(element: ET.Element) -> str:
    annotation = element.find(_ACTION)
    assert annotation is not None, f"{element.attrib['name']} names no action"
    return annotation.attrib["value"]


def refused(host: Host, user: str, calls: Sequence[Call]) -> list[Call]:
    """Make calls as a user, and give those that were refused."""
    lines = [json.dumps([c.destination, *c[1:6]]) for c in calls]
    given = "\n".join([*lines, ""])
    done = host.run(f"{PROGRAM}/bin/python", "-c", _PROGRAM, user=user, stdin=given)
    assert done.returncode == 0, done.stderr
    answers = done.stdout.splitlines()
    return [call for call, answer in zip(calls, answers, strict=True) if answer in REFUSALS]
