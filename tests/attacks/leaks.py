"""Where a planted secret can be read: all that a daemon answers, sends, prints, logs and stores."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from typing import Any

from harness.commands import run
from harness.running import (
    OBJECT,
    ROOT_PATH,
    STATE,
    STATE_PATH,
    VECTORIZER,
    Caller,
    Running,
    calling,
)

from opdbus.bus.transport.connection import RemoteError
from opdbus.errors import UnknownObject
from opdbus.state.secret_text import REDACTED

_PROPERTIES = "org.freedesktop.DBus.Properties"
_INTROSPECT = "org.freedesktop.DBus.Introspectable.Introspect"
_COMMANDS = (("status",), ("doctor",), ("list",), ("search", "password token"))
_PAGE = 1000
# what is found is explained, of which an answer may not hold a thousand
_HITS = 100


async def everything(caller: Caller, most: int = _PAGE) -> str:
    """Ask for all that can be asked, and give all answers and signals as text.

    All objects are listed and searched; of more than `most` only some are asked for one by one. A
    hit far down matches by no word: it is explained alike, so that one question has all of these.
    """
    answers: list[Any] = []

    async def ask(path: str, member: str, signature: str = "", *body: Any) -> Any:
        try:
            answers.append(await caller.call(path, member, signature, *body))
        except RemoteError as gone:
            # objects of a source that was attacked go while they are asked for
            if gone.name != UnknownObject.dbus_name:
                raise
            answers.append(str(gone))
        return answers[-1]

    _, page = await ask(STATE_PATH, f"{STATE}.List", "a{sv}uu", {}, 0, _PAGE)
    for path, *_ in page[:: 1 + len(page) // most]:
        await ask(path, f"{_PROPERTIES}.GetAll", "s", OBJECT)
        await ask(path, f"{OBJECT}.Similar", "ua{sv}", 5, {})
        await ask(path, _INTROSPECT)
        await ask(STATE_PATH, f"{STATE}.Get", "oa{sv}", path, {})
        await ask(STATE_PATH, f"{STATE}.Similar", "oua{sv}", path, 5, {})
    # the marker itself is no question: an answer may not even hint that it was found
    for question in ("password", "secret token", "private key", "bearer", "hunter", "croissant"):
        for mode in ("hybrid", "lexical", "vector"):
            hits = _PAGE if question == "password" or mode == "lexical" else _HITS
            await _search(ask, question, {"mode": mode, "all": True, "explain": True}, hits)
        await ask(STATE_PATH, f"{STATE}.Resolve", "sa{sv}", question, {})
    for path, interface in ((ROOT_PATH, VECTORIZER), (STATE_PATH, STATE)):
        await ask(path, f"{_PROPERTIES}.GetAll", "s", interface)
        await ask(path, _INTROSPECT)
    for plugin in {row[1] for row in page}:
        await ask(f"{STATE_PATH}/{plugin}", _INTROSPECT)
    await ask(STATE_PATH, f"{STATE}.Fields", "a{sv}", {})
    await _drift(ask)
    await ask(STATE_PATH, f"{STATE}.Unobserved", "a{sv}", {})
    paths = [row[0] for row in page[:1000]]
    await ask(STATE_PATH, f"{STATE}.Baseline", "aoa{sv}", paths, {"scope": "all"})
    await ask(ROOT_PATH, f"{VECTORIZER}.Levels", "a{sv}", {})
    return json.dumps([answers, caller.signals], default=str, ensure_ascii=False)


async def _drift(ask: Callable[..., Awaitable[Any]]) -> None:
    """Ask for all that drifted, in pages."""
    for offset in range(0, _PAGE, _HITS):
        wanted = {"offset": offset, "limit": _HITS}
        found = await ask(STATE_PATH, f"{STATE}.DriftReport", "a{sv}", wanted)
        if not found[-1]:
            break


async def _search(
    ask: Callable[..., Awaitable[Any]], question: str, options: dict[str, Any], hits: int
) -> None:
    """Ask for so many hits, in pages."""
    for offset in range(0, hits, _HITS):
        asked = options | {"offset": offset}
        found = await ask(STATE_PATH, f"{STATE}.Search", "sua{sv}", question, _HITS, asked)
        if not found[-1]:
            break


async def hidden_fields(caller: Caller) -> set[str]:
    """Give the fields in which something is hidden, as plugin/kind/field; names are one, too."""
    found: set[str] = set()
    _, rows = await caller.call(STATE_PATH, f"{STATE}.List", "a{sv}uu", {}, 0, 1000)
    for path, plugin, kind, name in rows:
        (text,) = await caller.call(STATE_PATH, f"{STATE}.Get", "oa{sv}", path, {})
        fields: dict[str, Any] = json.loads(text)["observed"] | {"name": name}
        hidden = {key for key, value in fields.items() if REDACTED in str(value)}
        found |= {f"{plugin}/{kind}/{key}" for key in hidden}
    return found


def bytes_of(daemon: Running) -> dict[str, bytes]:
    """Give the files that it stores."""
    return {
        file.name: file.read_bytes()
        for file in daemon.state_dir.rglob("*")
        if file.is_file() and "graphs" not in file.parts
    }


def leaks(daemon: Running, mark: str, most: int = 100) -> list[str]:
    """Say where secrets can be read that have a mark, in capitals or not, and which."""

    async def asked() -> str:
        async with calling(daemon.bus) as caller:
            return await everything(caller, most)

    said = {"the log": daemon.logs(), "answers": asyncio.run(asked())}
    for command in _COMMANDS:
        answer = run(daemon, *command)
        said[f"op-dbus {command[0]}"] = answer.stdout + answer.stderr
    for name, data in bytes_of(daemon).items():
        said[name] = data.decode("latin-1")
        said[f"{name} as UTF-16"] = data.decode("utf-16-le", errors="replace")
    return [
        f"a secret is in {where}: {found}"
        for where, text in said.items()
        if (found := secrets(text, mark))
    ]


def secrets(text: str, mark: str) -> list[str]:
    """Give the secrets in a text that have a mark, each with what follows the mark, at most 300."""
    return sorted(set(re.findall(rf"(?i){mark}[\w-]{{0,30}}", text)))[:300]
