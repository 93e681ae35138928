"""Strict parser for the JSON of a state file: every error names line, column and JSON path."""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from opdbus.errors import StateFileError
from opdbus.state.object import Json
from opdbus.state.redact import redact_text

MAX_DEPTH: Final = 64
_TOO_DEEP: Final = f"it is nested deeper than {MAX_DEPTH} levels"
# Longer names are cut in messages.
_MAX_SHOWN: Final = 64

_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# The closing quote is optional, since invalid text is tokenized, too.
_TOKEN = re.compile(
    r'"[^"\\]*+(?:\\.[^"\\]*+)*"?|[{}\[\],:]|NaN|-?Infinity'
    r'|-?[0-9]++(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?|[^\s{}\[\],:"]++',
    re.DOTALL,
)
_LAST_COMMA: Final = re.compile(r",\s*[]}]")
# Python's error messages, by their beginnings, in words for the author of the file.
_SENTENCES: Final = {
    "Expecting value": "a value must begin here, such as a string in double quotes",
    "Expecting property name": "a name in double quotes must begin here",
    "Expecting ',' delimiter": "a comma is missing here, or the end of the list or object",
    "Expecting ':' delimiter": "a colon is missing here, between a name and its value",
    "Extra data": "the file goes on after its end: it holds more than one object",
    "Unterminated string": "the string that begins here has no closing quote",
    "Invalid control character": "a line break or another control character is in a string",
}
_SURROGATE = re.compile("[\ud800-\udfff]")
# Escapes of NUL and of surrogates. A pair of surrogates is valid, so a match needs a closer look.
_UNSENDABLE = re.compile(r"\\u(?:0000|[dD][89a-fA-F])")
_LONGEST_ESCAPE: Final = 6
# Characters searched at a time: about a millisecond of work.
_PART: Final = 1 << 20
_UNSENDABLE_PROBLEM: Final = "the string holds a NUL character or half a surrogate pair"


class _Broken(ValueError):
    """A rule that the text breaks; a slower second pass finds the place."""


def parse(text: str, path: Path) -> dict[str, Json]:
    """Parse the text of the state file `path`.

    Raises StateFileError for text that is not JSON or not an object, duplicate keys, NaN, nesting
    deeper than 64 levels, and strings that D-Bus cannot send.
    """
    try:
        value = json.loads(
            text, object_pairs_hook=_unique, parse_constant=_finite, parse_float=_finite
        )
        if isinstance(value, dict):
            _check_depth(value)
        # searched in parts, so that other threads run in between
        parts = range(0, len(text), _PART)
        if any(_UNSENDABLE.search(text, at, at + _PART + _LONGEST_ESCAPE) for at in parts):
            for match in _TOKEN.finditer(text):
                if match[0][0] == '"' and _is_unsendable(json.loads(match[0])):
                    raise _Broken
    except json.JSONDecodeError as error:
        raise _at(text, path, *_explain(error, text)) from None
    # Python raises ValueError for an integer with more digits than it converts.
    except (ValueError, RecursionError):
        raise _find_fault(text, path) from None
    if not isinstance(value, dict):
        raise _at(text, path, len(text) - len(text.lstrip()), "the top level must be an object")
    return value


def locate(text: str, path: Path, where: tuple[str | int, ...], problem: str) -> StateFileError:
    """Return the error for a problem with the value at the JSON path `where`."""
    position = next((pos for keys, pos, token in walk(text) if keys == where and token != ":"), 0)
    return _error(text, path, position, where, problem)


def decode(data: bytes, path: Path) -> str:
    """Decode the bytes of the state file `path`; raises StateFileError if they are not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        good = data[: error.start].decode()
        raise _at(good, path, len(good), "this byte is not UTF-8: save the file as UTF-8") from None


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise _Broken
    return value


def _explain(error: json.JSONDecodeError, text: str) -> tuple[int, str]:
    """Return the offset and a description of a syntax error."""
    at = error.pos
    if not text.strip():
        return at, "the file is empty"
    if at >= len(text.rstrip()):
        return at, "the file ends in the middle of a value"
    # Python reports the comma from 3.13 on, before that the token after it
    comma = at if text[at] == "," else text.rfind(",", 0, at)
    if comma >= 0 and (last := _LAST_COMMA.match(text, comma)) and last.end() > at:
        return comma, "nothing follows this comma: remove it"
    for begin, sentence in _SENTENCES.items():
        if error.msg.startswith(begin):
            return at, sentence
    return at, error.msg[0].lower() + error.msg[1:]


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
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


def _is_unsendable(value: str) -> bool:
    """Return whether D-Bus cannot send a string."""
    return "\0" in value or bool(_SURROGATE.search(value))


def _find_fault(text: str, path: Path) -> StateFileError:
    """Return the error for the first place where the text breaks a rule, found by a slow pass."""
    seen: set[tuple[str | int, ...]] = set()
    for keys, position, token in walk(text):
        if token != ":":
            problem = _fault(token, depth=len(keys) + 1)
        elif keys in seen:
            problem = f"the key {_shorten(keys[-1])} is given twice in one object"
        else:
            problem = _UNSENDABLE_PROBLEM if _is_unsendable(str(keys[-1])) else None
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
        return _UNSENDABLE_PROBLEM if _is_unsendable(json.loads(token)) else None
    if token not in {"true", "false", "null"}:
        try:
            int(token)
        except ValueError:
            # not an integer, or one with more digits than Python converts
            if math.isinf(float(token)):
                return "the number is too large: give it as a string"
    return None


def walk(text: str) -> Iterator[tuple[tuple[str | int, ...], int, str]]:
    """Yield (JSON path, offset, first token) of each value in syntactically valid JSON.

    The key of a member comes before its value, with ":" as its token. Raises ValueError, IndexError
    or TypeError at some point in invalid JSON.
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
    """Return the error for an offset, with the JSON path of the last value before it."""
    keys: tuple[str | int, ...] = ()
    try:
        for found, start, token in walk(text):
            if start > position:
                break
            keys = found
            # the depth at which json gives up differs between versions of Python
            if token in "{[" and len(found) >= MAX_DEPTH:
                return _error(text, path, start, found, _TOO_DEEP)
    except (IndexError, ValueError, TypeError):
        pass  # the text is invalid: the path so far is the best there is
    return _error(text, path, position, keys, problem)


def _error(
    text: str, path: Path, position: int, keys: tuple[str | int, ...], problem: str
) -> StateFileError:
    line = text.count("\n", 0, position) + 1
    column = position - text.rfind("\n", 0, position)
    return StateFileError(f"{path}: line {line} column {column} ({json_path(keys)}): {problem}")


def json_path(keys: tuple[str | int, ...]) -> str:
    """Return keys and indexes as a JSON path: $.plugins.net["eth0.1"][2]."""
    shown = [_shorten(key) for key in keys]
    return "$" + "".join(
        f".{key[1:-1]}" if _PLAIN_KEY.fullmatch(key[1:-1]) and key[0] == '"' else f"[{key}]"
        for key in shown
    )


def _shorten(key: str | int) -> str:
    """Return a key for a message: shortened and without secrets."""
    if isinstance(key, int):
        return str(key)
    key = redact_text(key)
    return json.dumps(key if len(key) <= _MAX_SHOWN else key[:_MAX_SHOWN] + "...")
