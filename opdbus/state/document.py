"""JSON text of a state file, read strictly: every error says line, column and JSON path."""

from __future__ import annotations

import json
import math
import os
import re
import stat
from typing import TYPE_CHECKING, Final, NoReturn

from opdbus.errors import StateFileError
from opdbus.state.redact import redact_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from opdbus.state.object import Json

MAX_BYTES: Final = 64 << 20
MAX_DEPTH: Final = 64
_TOO_DEEP: Final = f"it is nested deeper than {MAX_DEPTH} levels"
_BOM: Final = b"\xef\xbb\xbf"
# Longer names are cut in messages.
_MAX_SHOWN: Final = 64

_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# The closing quote may be missing: broken text is walked, too.
_TOKEN = re.compile(
    r'"[^"\\]*+(?:\\.[^"\\]*+)*"?|[{}\[\],:]|NaN|-?Infinity'
    r'|-?[0-9]++(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?|[^\s{}\[\],:"]++',
    re.DOTALL,
)
_SURROGATE = re.compile("[\ud800-\udfff]")
# Escapes of NUL and of surrogates; a pair of surrogates is fine, so a match asks for a closer look.
_UNSENDABLE = re.compile(r"\\u(?:0000|[dD][89a-fA-F])")
_UNSENDABLE_SAID: Final = "the string holds a NUL character or half a surrogate pair"


class _Broken(ValueError):
    """What is wrong, before it is known where."""


def parse(text: str, path: Path) -> dict[str, Json]:
    """Parse the text of the state file `path`.

    Raises StateFileError: not JSON, a key given twice, NaN, deeper than 64 levels, strings that
    D-Bus cannot send, or not an object.
    """
    try:
        value = json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=_refuse_constant,
            parse_float=_finite,
        )
        if isinstance(value, dict):
            _check_depth(value)
        if _UNSENDABLE.search(text):
            _check_strings(text)
    except json.JSONDecodeError as error:
        raise _at(text, path, error.pos, _sentence(error, text)) from None
    # A ValueError of Python's own is an integer of more digits than it reads.
    except (ValueError, RecursionError):
        raise _find_fault(text, path) from None
    if not isinstance(value, dict):
        raise _at(text, path, len(text) - len(text.lstrip()), "the top level must be an object")
    return value


def locate(text: str, path: Path, where: tuple[str | int, ...], problem: str) -> StateFileError:
    """Make the error for the value at JSON path `where`."""
    position = next((pos for keys, pos, token in _walk(text) if keys == where and token != ":"), 0)
    return _error(text, path, position, where, problem)


def text_of(path: Path) -> str:
    """Read the text of a state file.

    Raises StateFileError: unreadable, over 64 MiB, or not UTF-8.
    """
    try:
        with os.fdopen(_opened(path), "rb") as file:
            data = file.read(MAX_BYTES + 1)
            size = file.seek(0, 2)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise StateFileError(f"cannot read the state file {path}: {reason}") from None
    if size > MAX_BYTES:
        raise StateFileError(
            f"{path} is {size / (1 << 20):.1f} MiB, past the limit of 64 MiB at byte {MAX_BYTES}"
            " ($): split it, or leave out what need not be declared"
        )
    return _decoded(data.removeprefix(_BOM), path)


def _opened(path: Path) -> int:
    """Open a regular file; what is none was looked at without waiting for a pipe's other end."""
    file = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise StateFileError(f"cannot read the state file {path}: it is not a regular file")
    return file


def _decoded(data: bytes, path: Path) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        good = data[: error.start].decode()
        raise _at(good, path, len(good), "this byte is not UTF-8: save the file as UTF-8") from None


def _object(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise _Broken
    return value


def _sentence(error: json.JSONDecodeError, text: str) -> str:
    if not text.strip():
        return "the file is empty"
    if error.pos >= len(text.rstrip()):
        return "the file ends in the middle of a value"
    return error.msg[0].lower() + error.msg[1:]


def _refuse_constant(_name: str) -> NoReturn:
    raise _Broken


def _finite(text: str) -> float:
    """Refuse 1e999: JSON's grammar has it, but no JSON writer can give it back."""
    value = float(text)
    if math.isinf(value):
        raise _Broken
    return value


def _check_depth(value: Json) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for parent in level
            for child in (parent.values() if type(parent) is dict else parent)
            if isinstance(child, (dict, list))
        ]
        if not level:
            return
    raise _Broken


def _check_strings(text: str) -> None:
    for match in _TOKEN.finditer(text):
        if match[0][0] == '"' and _is_unsendable(json.loads(match[0])):
            raise _Broken


def _is_unsendable(value: str) -> bool:
    """Tell a string that no D-Bus message can hold."""
    return "\0" in value or bool(_SURROGATE.search(value))


def _find_fault(text: str, path: Path) -> StateFileError:
    """Walk the text again, slowly, to find where it breaks a rule; the first fault counts."""
    seen: set[tuple[str | int, ...]] = set()
    for keys, position, token in _walk(text):
        if token != ":":
            problem = _fault(token, depth=len(keys) + 1)
        elif keys in seen:
            problem = f"the key {_shown(keys[-1])} is given twice in one object"
        else:
            problem = _UNSENDABLE_SAID if _is_unsendable(str(keys[-1])) else None
            seen.add(keys)
        if problem:
            return _error(text, path, position, keys, problem)
    return _error(text, path, 0, (), "it cannot be read")


def _fault(token: str, *, depth: int) -> str | None:
    if token in {"NaN", "Infinity", "-Infinity"}:
        return f"{token} is not JSON: give a number, null, or a string"
    if token in {"{", "["}:
        return _TOO_DEEP if depth > MAX_DEPTH else None
    if token[0] == '"':
        return _UNSENDABLE_SAID if _is_unsendable(json.loads(token)) else None
    if token not in {"true", "false", "null"} and _is_too_large(token):
        return "the number is too large: give it as a string"
    return None


def _is_too_large(number: str) -> bool:
    try:
        int(number)
    except ValueError:
        # no integer, or one of more digits than Python reads
        return math.isinf(float(number))
    return False


def _walk(text: str) -> Iterator[tuple[tuple[str | int, ...], int, str]]:
    """Yield (JSON path, offset, first token) of each value in syntactically valid JSON.

    The key of a member comes before its value, with ":" for a token. Raises ValueError,
    IndexError or TypeError somewhere in broken JSON.
    """
    keys: list[str | int] = []
    expect_key = False
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token in "}]":
            keys.pop()
            expect_key = False
        elif token == ",":
            if isinstance(keys[-1], int):
                keys[-1] += 1
            else:
                expect_key = True
        elif token == ":":
            expect_key = False
        elif expect_key:
            if token[0] != '"':
                raise ValueError(token)
            keys[-1] = json.loads(token)
            yield tuple(keys), match.start(), ":"
        else:
            yield tuple(keys), match.start(), token
            if token in "{[":
                keys.append("" if token == "{" else 0)
                expect_key = token == "{"


def _at(text: str, path: Path, position: int, problem: str) -> StateFileError:
    """Make the error for an offset, with the path of the last value that began before it."""
    keys: tuple[str | int, ...] = ()
    try:
        for found, start, token in _walk(text):
            if start > position:
                break
            keys = found
            # how deep json reads before it gives up differs between versions of Python
            if token in "{[" and len(found) >= MAX_DEPTH:
                return _error(text, path, start, found, _TOO_DEEP)
    except (IndexError, ValueError, TypeError):
        pass  # the text is broken, so the walk may end early; the path so far is what is known
    return _error(text, path, position, keys, problem)


def _error(
    text: str, path: Path, position: int, keys: tuple[str | int, ...], problem: str
) -> StateFileError:
    line = text.count("\n", 0, position) + 1
    column = position - text.rfind("\n", 0, position)
    return StateFileError(f"{path}: line {line} column {column} ({json_path(keys)}): {problem}")


def json_path(keys: tuple[str | int, ...]) -> str:
    """Write keys and indexes as a JSON path: $.plugins.net["eth0.1"][2]."""
    shown = [_shown(key) for key in keys]
    return "$" + "".join(
        f".{key[1:-1]}" if _PLAIN_KEY.fullmatch(key[1:-1]) and key[0] == '"' else f"[{key}]"
        for key in shown
    )


def _shown(key: str | int) -> str:
    """Write a key for a message: short, and without secrets."""
    if isinstance(key, int):
        return str(key)
    key = redact_text(key)
    return json.dumps(key if len(key) <= _MAX_SHOWN else key[:_MAX_SHOWN] + "...")
