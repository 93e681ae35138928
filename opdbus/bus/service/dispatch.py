"""Dispatch of method calls: found in the XML, authorized, run as tasks, and always answered."""

import asyncio
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import structlog

from opdbus.bus.admission import limits
from opdbus.bus.admission.accounting import LogLimit, RunningCalls
from opdbus.bus.admission.fair_scheduler import FairScheduler, Turn
from opdbus.bus.admission.limits import (
    SMALL_BYTES,
    require_reply,
    require_reply_bytes,
    require_small,
)
from opdbus.bus.admission.replies import Replies
from opdbus.bus.authorization.authorizer import Authorizer
from opdbus.bus.names import VECTORIZE
from opdbus.bus.service import standard
from opdbus.bus.service.contract import Caller, Node, snake
from opdbus.bus.transport.connection import Connection
from opdbus.bus.transport.messages import Call
from opdbus.bus.transport.values import Plain, split, take_descriptors
from opdbus.engine.batching import Rank
from opdbus.errors import (
    Internal,
    LimitsExceeded,
    OpDbusError,
    ShuttingDown,
    UnknownObject,
    read_log,
)
from opdbus.platform.metrics import Family, Histogram
from opdbus.platform.tasks import cancel

log = structlog.get_logger()


class _Result(NamedTuple):
    """A reply's signature and values, and whether they may be large."""

    signature: str
    values: Sequence[Plain]
    is_large: bool = False


class Dispatcher:
    """Answers every call of a connection; `find` returns the node at a path, or None."""

    def __init__(
        self,
        connection: Connection,
        authorizer: Authorizer,
        find: Callable[[str], Node | None],
        load: RunningCalls,
    ) -> None:
        self._connection = connection
        self._authorizer = authorizer
        self._find = find
        self._running: dict[str, set[asyncio.Task[None]]] = {}
        self._leaving: set[str] = set()
        self._load = load
        self._turns = FairScheduler()
        self._replies = Replies(connection, load.accounts)
        self._log_limit = LogLimit()
        self._stopping = False
        self._seconds: defaultdict[tuple[str, str], Histogram] = defaultdict(Histogram)

    def metrics(self) -> Iterator[Family]:
        """Yield the time that calls took."""
        yield Family("request_duration_seconds", self._seconds)

    def take(self, call: Call) -> None:
        """Start a task that answers a call, or reply with an error."""
        try:
            if self._stopping:
                raise ShuttingDown
            if standard.is_pointless(call):
                call.close()
                return
            self._load.admit(call)
        except OpDbusError as error:
            self._refuse(call, error)
            call.close()
            return
        task = asyncio.create_task(self._answer(call))
        self._running.setdefault(call.sender, set()).add(task)
        task.add_done_callback(lambda done: self._on_task_done(call, done))

    def caller_left(self, sender: str) -> None:
        """Cancel the calls of a closed connection."""
        self._leaving.add(sender)
        for task in self._running.get(sender, ()):
            task.cancel()
        self._forget_if_gone(sender)

    async def stop(self) -> None:
        """Cancel all running calls and wait until every caller has a reply."""
        self._stopping = True
        await cancel(chain.from_iterable(self._running.values()))

    def _on_task_done(self, call: Call, task: asyncio.Task[None]) -> None:
        self._load.release(call)
        running = self._running[call.sender]
        running.discard(task)
        if not running:
            del self._running[call.sender]
        # not in the task: one that is cancelled before its first step never runs
        if task.cancelled() and call.sender not in self._leaving:
            self._refuse(call, ShuttingDown())
        call.close()
        self._forget_if_gone(call.sender)

    def _forget_if_gone(self, sender: str) -> None:
        if sender in self._leaving and sender not in self._running:
            self._leaving.discard(sender)
            # accounts last: a caller's counts are also subtracted from its user
            for known in (self._authorizer, self._replies, self._load.accounts):
                known.forget(sender)

    async def _answer(self, call: Call) -> None:
        began = time.perf_counter()
        try:
            peer = await self._authorizer.credentials(call.sender)
            self._load.accounts.identify(call.sender, peer.uid)
            async with self._turns.turn(peer.uid, call.sender) as turn:
                while self._replies.is_behind(call.sender):
                    turn.release()
                    await self._replies.wait_until_read(call.sender)
                    await turn.acquire()
                log.debug(
                    "call", uid=peer.uid, sender=call.sender, method=call.member, path=call.path
                )
                priority = Rank.BUSY_CALLER if turn.is_one_of_many else Rank.FEW
                caller = Caller(call.sender, peer.uid, priority)
                await self._reply(call, await self._perform(call, caller, turn, began), turn)
        except OpDbusError as error:
            self._refuse(call, error)
        except Exception:  # the caller gets a reply, and no traceback
            fault = secrets.token_hex(4)
            where = f"{call.interface}.{call.member}"
            log.exception("internal error", id=fault, method=where)
            sentence = f"op-dbus has a fault, which its log has as {fault}: {read_log(fault)}"
            self._refuse(call, Internal(sentence))

    async def _reply(self, call: Call, result: _Result, turn: Turn) -> None:
        signature, values, may_be_large = result
        is_large = limits.is_large(values)
        if is_large and not may_be_large:
            require_small(values, "State1.Get gives one object, with its option large")
        if is_large:
            # the D-Bus library holds the GIL while it encodes a large value
            await asyncio.to_thread(require_reply, values)
        if call.wants_reply:
            # waiting replies are kept as bytes, which take far less memory than values
            if is_large:
                written = await self._connection.written_apart(call, signature, values)
            else:
                written = self._connection.encode_reply(call, signature, values)
            require_reply_bytes(len(written.data), values)
            del values, result
            # other calls need not wait until this caller reads
            turn.release()
            await self._replies.send(call.sender, written)

    def _refuse(self, call: Call, error: OpDbusError) -> None:
        uid = self._load.accounts.user_of(call.sender)
        if (
            isinstance(error, LimitsExceeded)
            and (left_out := self._log_limit.admit(uid)) is not None
        ):
            log.warning(
                "caller limited",
                uid=uid,
                sender=call.sender,
                method=call.member,
                reason=str(error),
                suppressed=left_out,
            )
        if call.wants_reply:
            self._replies.send_error(call, error)

    async def _perform(self, call: Call, caller: Caller, turn: Turn, began: float) -> _Result:
        """Authorize a call, run it, and return its result; `began` is of `time.perf_counter`."""
        if standard.is_peer(call.interface, call.member):
            return _Result(*standard.peer(call))
        # before the path is looked up: a caller without rights must not learn which objects exist
        allowed = standard.actions(call)
        for action in sorted(allowed):
            await self._authorize(call, action)
        node = self._find(call.path)
        if node is None:
            raise UnknownObject(
                f"there is no object {call.path}: `op-dbus list` shows those that there are"
            )
        if standard.has(call.interface, call.member) and not node.is_own(call):
            for action in standard.actions_there(call, node):
                await self._authorize(call, action)
            return _Result(*await standard.perform(call, caller, node, self._connection.emit))
        interface, method = node.method(call)
        # again for the node's interface, which may be in no XML file of the package
        if method.action not in allowed:
            await self._authorize(call, method.action)
        standard.require_signature(call, method.inputs)
        if method.action == VECTORIZE or call.size > SMALL_BYTES:
            # the engine schedules texts itself and works better with several calls; large arguments
            # are decoded and mostly processed on threads
            turn.release()

        def decode() -> list[Plain]:
            return take_descriptors(method.inputs, call.body, call.descriptors)

        # on a thread if it is large: 10,000 objects take 0.1 s
        is_small = call.size <= SMALL_BYTES
        arguments = decode() if is_small else await asyncio.to_thread(decode)
        result = await getattr(interface, snake(method.name))(caller, *arguments)
        outputs = len(split(method.outputs))
        values = list(result) if outputs > 1 else [result] * outputs
        self._seconds[interface.info.name, method.name].add(time.perf_counter() - began)
        return _Result(method.outputs, values, method.is_large)

    async def _authorize(self, call: Call, action: str) -> None:
        method = f"{call.interface}.{call.member}"
        await self._authorizer.require(call.sender, action, method, interactive=call.is_interactive)
