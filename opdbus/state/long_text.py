"""Regular expressions over long texts in steps, so that other threads run in between."""

import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Final, TypeAlias

# The range in which a match may begin in one step; the text of a step is twice as long.
STEP: Final = 1 << 14
# A match that ends this close to the end of its step may be longer in the whole text.
_NEAR: Final = 256

# A pattern that is compiled when it is first asked for.
LazyPattern: TypeAlias = Callable[[], re.Pattern[str]]


def lazy(pattern: str) -> LazyPattern:
    """Return a pattern for a table of many, most of which a process never needs."""
    return cache(lambda: re.compile(pattern))


def search(pattern: re.Pattern[str], text: str, at: int = 0) -> re.Match[str] | None:
    """Return the result of `pattern.search`, unless only text beyond a step makes it match."""
    while (end := at + 2 * STEP) < len(text):
        found = pattern.search(text, at, end)
        if found is None or found.start() >= at + STEP:
            at += STEP
        elif found.end() < end - _NEAR:
            return found
        elif whole := pattern.match(text, found.start()):
            return whole
        else:
            at = found.start() + 1
    return pattern.search(text, at)


def finditer(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    """Yield the matches of a pattern; the pattern must not match the empty string."""
    at = 0
    while found := search(pattern, text, at):
        yield found
        at = found.end()


def sub(pattern: re.Pattern[str], by: str | Callable[[re.Match[str]], str], text: str) -> str:
    """Replace all matches of a pattern; the pattern must not match the empty string."""
    if len(text) <= 2 * STEP:
        return pattern.sub(by, text)
    parts, done = [], 0
    for found in finditer(pattern, text):
        parts += [
            text[done : found.start()],
            found.expand(by) if isinstance(by, str) else by(found),
        ]
        done = found.end()
    return "".join([*parts, text[done:]])


def end_of(pattern: re.Pattern[str], text: str, start: int) -> int:
    """Return the end of a value from `start`; each part of it must match the pattern, too."""
    end = start
    while found := pattern.match(text, end, end + STEP):
        is_last = found.end() < end + STEP - _NEAR
        end = found.end()
        if is_last:
            break
    return end
