"""Decoding of terminal input into names of keys; pure."""

import codecs
import re
from collections.abc import Iterator
from typing import Final

ESCAPE: Final = "escape"
# A complete escape sequence; below, the beginning of one.
_SEQUENCE: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O[@-~]|[^\x1b[O])")
_BEGUN: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|O)?\Z")
_NAMES: Final = {
    "A": "up",
    "B": "down",
    "C": "right",
    "D": "left",
    "H": "home",
    "F": "end",
    "1~": "home",
    "4~": "end",
    "5~": "page up",
    "6~": "page down",
    "7~": "home",
    "8~": "end",
}
_CONTROLS: Final = {
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\x08": "backspace",
    "\x0c": "redraw",
    "\x15": "clear",
}


class Keys:
    """Decoder of terminal input into keys: names such as `up`, or one character."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="ignore")
        self._rest = ""

    @property
    def is_waiting(self) -> bool:
        """True after an escape character that may be a key or begin a sequence."""
        return bool(self._rest)

    def read(self, data: bytes) -> list[str]:
        """Return the keys that are complete."""
        text = self._rest + self._decoder.decode(data)
        begun = _BEGUN.search(text)
        self._rest = begun[0] if begun else ""
        return list(_keys(text[: begun.start()] if begun else text))

    def give_up(self) -> list[str]:
        """Return the Escape key for an incomplete sequence, after waiting in vain."""
        rest, self._rest = self._rest, ""
        return [ESCAPE] if rest else []


def _keys(text: str) -> Iterator[str]:
    at = 0
    while at < len(text):
        if found := _SEQUENCE.match(text, at):
            at = found.end()
            # drop a modifier, as in 1;5A
            name = re.sub(r"^(?:1;\d+(?=[A-Z]))", "", found[0][2:])
            if name in _NAMES and found[0][1] in "[O":
                yield _NAMES[name]
            continue
        character = text[at]
        at += 1
        if character == "\x1b":
            yield ESCAPE
        elif character in _CONTROLS:
            yield _CONTROLS[character]
        elif character.isprintable():
            yield character
