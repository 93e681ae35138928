"""A polkit for tests: it owns polkit's name on a private bus and answers by a table."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from harness.running import PATIENCE_SECONDS
from opdbus.bus.names import ACTIONS
from opdbus.bus.transport.connection import Connection
from opdbus.bus.transport.messages import Call

NAME = "org.freedesktop.PolicyKit1"
PATH = "/org/freedesktop/PolicyKit1/Authority"
ALL = tuple(f"org.opdbus.{action}" for action in ACTIONS)
_DETAILS = {"kept": {"polkit.temporary_authorization_id": "tmpauthz1"}}


class Authority:
    """Answers yes, no, challenge, kept (yes, for five minutes), error, or never: hang.

    `answers` is by action, `asked_user` what comes once the user is asked; it remembers the calls.
    """

    def __init__(self, connection: Connection, known: tuple[str, ...]) -> None:
        self._connection = connection
        self._known = known
        self.answers: dict[str, str] = {}
        self.asked_user = "challenge"
        self.calls: list[list[Any]] = []
        self.cancelled: list[str] = []
        self._news = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        connection.on_call = self._take

    def change(self, **answers: str) -> None:
        """Answer otherwise from now on, and tell so."""
        self.answers = {f"org.opdbus.{action}": answer for action, answer in answers.items()}
        self._connection.emit(PATH, f"{NAME}.Authority.Changed", "")

    async def seen(self, calls: int, cancelled: int = 0) -> None:
        """Wait until it was asked so often, and so many questions were taken back."""
        async with asyncio.timeout(PATIENCE_SECONDS), self._news:
            await self._news.wait_for(
                lambda: (
                    (len(self.calls), len(self.cancelled)) >= (calls, cancelled)
                    and len(self.cancelled) >= cancelled
                )
            )

    def _take(self, call: Call) -> None:
        if call.member == "EnumerateActions":
            rows = [(a, "", "", "", "", "", 0, 0, 0, {}) for a in self._known]
            self._connection.reply(call, "a(ssssssuuua{ss})", [rows])
        elif call.member == "CheckAuthorization":
            self.calls.append(call.body)
            self._answer(call)
        elif call.member == "CancelCheckAuthorization":
            self.cancelled.append(call.body[0])
            self._connection.reply(call, "", [])
        task = asyncio.create_task(self._tell())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()

    def _answer(self, call: Call) -> None:
        assert call.signature == "(sa{sv})sa{ss}us"
        _, action, _, flags, _ = call.body
        answer = self.answers.get(action, "no")
        if answer == "challenge" and flags == 1:
            answer = self.asked_user
        if answer == "error":
            self._connection.send_error(
                call.sender, call.serial, f"{NAME}.Error.Failed", "rules of stone"
            )
        elif answer != "hang":
            is_authorized = answer in {"yes", "kept"}
            value = (is_authorized, answer == "challenge", _DETAILS.get(answer, {}))
            self._connection.reply(call, "(bba{ss})", [value])


@asynccontextmanager
async def authority(bus: str, known: tuple[str, ...] = ALL) -> AsyncIterator[Authority]:
    """Be polkit on a bus; the polkit is believed as it runs as our own user."""
    async with Connection(bus) as connection:
        polkit = Authority(connection, known)
        await connection.own(NAME)
        yield polkit
