"""Calls to methods: looked up in the XML, authorized, run as tasks, answered whatever happens."""

from __future__ import annotations

import asyncio
import builtins
import keyword
import re
import secrets
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple, Protocol

import structlog

from opdbus.bus import paths, standard
from opdbus.bus.connection import received, split
from opdbus.bus.limits import require_reply
from opdbus.errors import (
    Internal,
    OpDbusError,
    ShuttingDown,
    UnknownInterface,
    UnknownMethod,
    UnknownObject,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opdbus.bus.authorization import Authorizer
    from opdbus.bus.connection import Call, Connection, Plain
    from opdbus.bus.contract import Interface, Method

log = structlog.get_logger()

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


class Caller(NamedTuple):
    """Whom the running method answers."""

    sender: str
    uid: int


caller: ContextVar[Caller] = ContextVar("caller")


class Face(Protocol):
    """An object on the bus, one interface of it; methods are coroutines named in snake_case."""

    @property
    def interface(self) -> Interface:
        """The interface that this is."""

    async def properties(self) -> Mapping[str, Plain]:
        """Give every property's value."""


class Node(NamedTuple):
    """What is at a path: its faces, and the names of the nodes below."""

    faces: Sequence[Face]
    children: Callable[[], Sequence[str]]

    def face(self, interface: str) -> Face:
        """Give the face of an interface; raises UnknownInterface."""
        for face in self.faces:
            if face.interface.name == interface:
                return face
        names = ", ".join(face.interface.name for face in self.faces) or "none of ours"
        raise UnknownInterface(f"this object has no interface {interface}; it has {names}")


class Dispatcher:
    """Answers every call that a connection gets; `find` gives the node at a path, or None."""

    def __init__(
        self, connection: Connection, authorizer: Authorizer, find: Callable[[str], Node | None]
    ) -> None:
        self._connection = connection
        self._authorizer = authorizer
        self._find = find
        self._running: dict[str, set[asyncio.Task[None]]] = {}
        self._stopping = False

    def take(self, call: Call) -> None:
        """Start to answer a call."""
        if self._stopping:
            self._refuse(call, ShuttingDown())
            call.close()
            return
        task = asyncio.create_task(self._answer(call))
        self._running.setdefault(call.sender, set()).add(task)
        task.add_done_callback(lambda done: self._finished(call, done))

    def caller_left(self, sender: str) -> None:
        """Stop working for a connection that is gone."""
        self._authorizer.forget(sender)
        for task in self._running.get(sender, ()):
            task.cancel()

    async def stop(self) -> None:
        """Cancel what runs and wait until every caller has an answer."""
        self._stopping = True
        tasks = [task for running in self._running.values() for task in running]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _finished(self, call: Call, task: asyncio.Task[None]) -> None:
        running = self._running[call.sender]
        running.discard(task)
        if not running:
            del self._running[call.sender]
        # here and not in the task: one that is cancelled before its first step never runs
        if task.cancelled():
            self._refuse(call, ShuttingDown())
        call.close()

    async def _answer(self, call: Call) -> None:
        try:
            signature, values = await self._perform(call)
            require_reply(values)
            if call.wants_reply:
                self._connection.reply(call, signature, values)
        except OpDbusError as error:
            self._refuse(call, error)
        except Exception:  # whatever it was, the caller gets an answer, and no traceback
            fault = secrets.token_hex(4)
            where = f"{call.interface}.{call.member}"
            log.exception("internal error", id=fault, method=where)
            self._refuse(
                call, Internal(f"an internal error: the log of op-dbus says more under id {fault}")
            )

    def _refuse(self, call: Call, error: OpDbusError) -> None:
        if call.wants_reply:
            self._connection.reply_error(call, error.dbus_name, str(error))

    async def _perform(self, call: Call) -> tuple[str, Sequence[Plain]]:
        """Do what is asked, and give the reply's signature and values."""
        if standard.is_peer(call.interface, call.member):
            return standard.peer(call)
        if call.path.startswith(f"{paths.STATE}/"):
            # who may not read may not find out either which objects there are
            await self._authorize(call, "read")
        node = self._find(call.path)
        if node is None:
            raise UnknownObject(
                f"there is no object {call.path}: `op-dbus list` shows those that there are"
            )
        if standard.has(call.interface, call.member) and not _is_own(call, node):
            await self._authorize(call, standard.action(call))
            return await standard.perform(call, node)
        face, method = _method(call, node)
        standard.require_signature(call, method.inputs)
        await self._authorize(call, method.action)
        arguments = received(method.inputs, call.body, call.descriptors)
        result = await getattr(face, snake(method.name))(*arguments)
        outputs = len(split(method.outputs))
        return method.outputs, list(result) if outputs > 1 else [result] * outputs

    async def _authorize(self, call: Call, action: str) -> None:
        if action != standard.FREE:
            credentials = await self._authorizer.require(call.sender, action)
            caller.set(Caller(call.sender, credentials.uid))


def snake(name: str) -> str:
    """Give the Python name of a member: VectorizeMany is vectorize_many, List is list_."""
    snaked = _CAMEL.sub("_", name).lower()
    is_taken = hasattr(builtins, snaked) or keyword.iskeyword(snaked)
    return f"{snaked}_" if is_taken else snaked


def _is_own(call: Call, node: Node) -> bool:
    """Tell whether a call that names no interface fits one of ours: State1.Get(oa{sv})."""
    methods = (face.interface.methods.get(call.member) for face in node.faces)
    return not call.interface and any(m and m.inputs == call.signature for m in methods)


def _method(call: Call, node: Node) -> tuple[Face, Method]:
    faces = [node.face(call.interface)] if call.interface else node.faces
    for face in faces:
        if call.member in face.interface.methods:
            return face, face.interface.methods[call.member]
    owner = call.interface or call.path
    raise UnknownMethod(f"{owner} has no method {call.member}; Introspect lists those it has")
