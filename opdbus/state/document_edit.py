"""Edits of JSON text that leave everything else as it is written: order, blanks, notation."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opdbus.state.object import Json

# a byte order mark may begin a document
_BLANKS: Final = re.compile("\ufeff?[ \t\n\r]*")
_SCALAR: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*"|[^\s{}\[\],:"]++')
_CLOSING: Final = {"{": "}", "[": "]"}


@dataclass(slots=True)
class _Member:
    """A member of an object or list, with the text around it up to the commas."""

    before: str
    # with its quotes; empty in a list
    key: str
    between: str
    value: _Value
    after: str

    def text(self) -> str:
        """Return the member as it is written."""
        return f"{self.before}{self.key}{self.between}{self.value.text()}{self.after}"


@dataclass(slots=True)
class _Value:
    """A scalar's text, or the opening bracket of a container with its members.

    `blank` is the text in an empty container.
    """

    token: str
    members: list[_Member]
    blank: str = ""

    def text(self) -> str:
        """Return the value as it is written."""
        if not (closing := _CLOSING.get(self.token)):
            return self.token
        inner = ",".join(member.text() for member in self.members) or self.blank
        return f"{self.token}{inner}{closing}"

    def index(self, key: str | int) -> int | None:
        """Return the place of a member, None if there is none."""
        if isinstance(key, int):
            return key if key < len(self.members) else None
        places = enumerate(self.members)
        return next((at for at, one in places if one.key and json.loads(one.key) == key), None)


class DocumentEditor:
    """The text of a valid JSON document; `text` has it with all edits so far."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._head = self._skip()
        self._top = self._read()
        self._tail = text[self._at :]

    def text(self) -> str:
        """Return the edited text."""
        return f"{self._head}{self._top.text()}{self._tail}"

    def set(self, path: Sequence[str | int], value: Json) -> None:
        """Set the value at a path, whose container exists; a new member is added at the end.

        In a list, the index past the last element appends one.
        """
        holder, key = self._find(path[:-1]), path[-1]
        new = DocumentEditor(json.dumps(value, ensure_ascii=False))._top
        at = holder.index(key)
        if at is not None:
            holder.members[at].value = new
            return
        name = json.dumps(key, ensure_ascii=False) if isinstance(key, str) else ""
        member = _Member("", name, ": " if name else "", new, "")
        if last := next(reversed(holder.members), None):
            is_in_line = len(holder.members) == 1 and not last.before
            member.before = " " if is_in_line else last.before
            member.between, member.after, last.after = last.between, last.after, ""
        holder.members.append(member)

    def remove(self, path: Sequence[str | int]) -> None:
        """Remove the member at a path, if it exists."""
        members = self._find(path[:-1]).members
        at = self._find(path[:-1]).index(path[-1])
        if at is None:
            return
        gone = members.pop(at)
        if members and at == 0:
            members[0].before = gone.before
        if members and at == len(members):
            members[-1].after = gone.after

    def _find(self, path: Sequence[str | int]) -> _Value:
        found = self._top
        for key in path:
            if (at := found.index(key)) is None:
                raise KeyError(key)
            found = found.members[at].value
        return found

    def _skip(self) -> str:
        match = _BLANKS.match(self._text, self._at)
        self._at = match.end() if match else self._at
        return match[0] if match else ""

    def _read(self) -> _Value:
        """Read the value that begins here; documents are at most 64 levels deep."""
        token = self._text[self._at]
        if token not in _CLOSING:
            match = _SCALAR.match(self._text, self._at)
            token = match[0] if match else ""
            self._at += len(token)
            return _Value(token, [])
        self._at += 1
        found = _Value(token, [], self._skip())
        blank = found.blank
        while self._text[self._at] != _CLOSING[token]:
            found.members.append(self._read_member(blank, is_named=token == "{"))
            if self._text[self._at] == ",":
                self._at += 1
                blank = self._skip()
        self._at += 1
        found.blank = "" if found.members else found.blank
        return found

    def _read_member(self, before: str, *, is_named: bool) -> _Member:
        key = between = ""
        if is_named:
            key = self._read().token
            between = self._skip()
            self._at += 1
            between += f":{self._skip()}"
        value = self._read()
        return _Member(before, key, between, value, self._skip())
