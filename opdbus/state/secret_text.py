"""Secrets inside a string are replaced, by the name before them, their context, or their shape."""

import re
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from typing import Final

from opdbus.state import secret_patterns as patterns
from opdbus.state.secret_names import is_plural, is_secret_name

REDACTED: Final = "[redacted]"


def hide_in_text(text: str) -> str:
    """Replace every part of a string that looks like a secret."""
    is_short = len(text) < patterns.MIN_LENGTH and text.isalnum()
    if is_short or not _may_hold(text):
        return text
    if "BEGIN" in text or "Private-Lines" in text:
        text = patterns.PEM.sub(REDACTED, text)
    lower = text.lower()
    for mark, pattern in patterns.IN_CONTEXT:
        if mark in lower:
            text = pattern.sub(_keep_groups, text)
    text = _hide_named(text)
    if "bearer" in lower:
        text = patterns.BEARER.sub(_keep_groups, text)
    if not patterns.SECRET_FLAGS.keys().isdisjoint(patterns.PROGRAM.findall(text)):
        text = patterns.COMMAND.sub(_hide_arguments, text)
    return patterns.SHAPES.sub(REDACTED, text) if _has(text, patterns.IN_SHAPES) else text


def suspects(texts: Sequence[str]) -> Collection[str]:
    """Return those of some texts in which `hide_in_text` may find anything, or that may be JSON.

    Few have any: one look at all of them together takes least.
    """
    joined = "\n".join(texts)
    there = [mark for mark in patterns.IN_SUSPECTS if mark in joined]
    if not there and not patterns.DASHED.search(joined):
        return ()
    return {text for text in texts if _has(text, there) or patterns.DASHED.search(text)}


def _may_hold(text: str) -> bool:
    """Return whether SUSPICIOUS matches a text, which is told sooner by a part of it."""
    if _has(text, patterns.ALONE_SUSPICIOUS) or patterns.DASHED.search(text):
        return True
    return _has(text, patterns.IN_SUSPICIOUS) and bool(patterns.SUSPICIOUS.search(text))


def is_secret_value(name: str, value: str) -> bool:
    """Return whether the value under a secret name is secret."""
    if not value or value == REDACTED or patterns.HARMLESS.fullmatch(value):
        return False
    if value.isdigit() and is_plural(name):
        return False  # tokens: 512
    word = name.lower().rpartition(".")[2].lstrip("-")
    return not (word in patterns.HARMLESS_UNDER and patterns.HARMLESS_UNDER[word].fullmatch(value))


def is_key_material(name: str, value: str) -> bool:
    """Return whether name and value together look like a credential: {"auth": "dXNlcjpwYXNz"}."""
    pattern = patterns.KEY_MATERIAL.get(name)
    return pattern is not None and bool(pattern.fullmatch(value))


def flags_of(words: Iterable[str]) -> tuple[str, ...]:
    """Return the flags with secret values of all programs among some words."""
    programs = {word.rpartition("/")[2] for word in words} & patterns.SECRET_FLAGS.keys()
    if not programs:
        return ()
    return tuple(sorted({flag for program in programs for flag in patterns.SECRET_FLAGS[program]}))


def _hide_named(text: str) -> str:
    """Hide the values of secret names: key=x, key: x, "key": "x", --key x."""
    parts = []
    done = at = 0
    while match := patterns.NAMED_VALUE.search(text, at):
        at = match.end()
        name = _name(text, match)
        if not is_secret_name(name):
            continue
        start, end = _value(text, match)
        if is_secret_value(name, text[start:end]):
            parts += [text[done:start], REDACTED]
            done = at = end
    return "".join([*parts, text[done:]])


def _name(text: str, match: re.Match[str]) -> str:
    name = match["key"] or match["flag"]
    if name.lower() in patterns.SECOND_WORDS and (
        before := patterns.WORD_BEFORE.search(text[max(0, match.start() - 41) : match.start()])
    ):
        return before[0] + name
    return name


def _value(text: str, match: re.Match[str]) -> tuple[int, int]:
    """Return where the value of a name begins and ends."""
    start = match.end()
    if match["flag"] and text.startswith("-", start):
        return start, start
    if quote := patterns.QUOTE.match(text, start):
        start, mark = quote.end(), quote[0]
        if mark in patterns.INSIDE_QUOTES:
            return start, _end(patterns.INSIDE_QUOTES[mark], text, start)
        end = text.find(mark, start)
        return start, len(text) if end < 0 else end
    opening = text[match.start() - 1 : match.start()] if match.start() else ""
    if opening in patterns.INSIDE_QUOTES and opening not in match[0]:
        return start, _end(patterns.INSIDE_QUOTES[opening], text, start)  # "KEY=several words"
    value = patterns.UNQUOTED_LINE if _takes_line(text, match) else patterns.UNQUOTED
    return start, _end(value, text, start)


def _takes_line(text: str, match: re.Match[str]) -> bool:
    """Return whether a value goes to the end of its line: `key: a b`, unlike `KEY=a command`."""
    first = match.start() == 0 or text[match.start() - 1] == "\n"
    return bool(match["key"]) and bool(match["gap"] or (first and match["key"].islower()))


def _end(pattern: re.Pattern[str], text: str, start: int) -> int:
    found = pattern.match(text, start)
    return found.end() if found else start


def _hide_arguments(match: re.Match[str]) -> str:
    """Hide the values of the flags of one command line."""
    return _values_of(flags_of(match[0].split())).sub(rf"\1{REDACTED}", match[0])


@lru_cache(maxsize=64)
def _values_of(flags: tuple[str, ...]) -> re.Pattern[str]:
    """Match a flag (kept) and its value."""
    named = "|".join(
        re.escape(flag) + (r"\s*+" if len(flag) == 2 else r"[\s=]*+") for flag in flags
    )
    return re.compile(rf"""((?<=\s)(?:{named}))(?!-)(?:"[^"]*+"?|'[^']*+'?|[^\s"']++)""")


def _has(text: str, marks: Iterable[str]) -> bool:
    """Return whether a text has one of some parts."""
    for mark in marks:  # noqa: SIM110 -- `any` takes twice as long
        if mark in text:
            return True
    return False


def _keep_groups(match: re.Match[str]) -> str:
    groups = match.groups(default="")
    return groups[0] + REDACTED + (groups[-1] if len(groups) > 1 else "")
