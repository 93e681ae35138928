"""Redaction of secrets inside a string, found by name, context or format."""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from typing import Final

from opdbus.state import secret_names, secret_words
from opdbus.state import secret_patterns as patterns
from opdbus.state.long_text import end_of, search, sub
from opdbus.state.secret_names import is_plural, is_secret_name

REDACTED: Final = "[redacted]"
# The marker, with the digest that keeps redacted names different.
_HIDDEN: Final = re.compile(r"\[redacted\](?:~[0-9a-f]{8})?")
# Names of secrets that are also programs.
_PROGRAMS: Final = frozenset({"passwd", "pass", "pwd"})


def hide_in_text(text: str, redact: Callable[[str], str], *, normal: bool = False) -> str:
    """Return a string with every part that looks like a secret replaced.

    A word in base64 is replaced if `redact` changes its text; with `normal`, random words stay.
    """
    plain = clean = secret_names.plain(text)
    if is_short_word(plain) or patterns.NUMBERS.fullmatch(plain):
        return text
    has_sign, (lower, marks) = _has(plain, patterns.SIGNS), _find_marks(plain)
    if has_sign or marks or " -" in lower:
        clean = _hide_by_context(plain, lower, frozenset(marks), has_sign=has_sign)
    if len(clean) >= patterns.MIN_LENGTH and secret_words.may_hold_words(clean):
        clean = secret_words.hide_words(clean, REDACTED, redact, normal=normal)
    return text if clean == plain else clean


def is_short_word(text: str) -> bool:
    """Return whether a text is too short and plain to hold a secret by itself."""
    return len(text) < patterns.MIN_LENGTH and text.isalnum()


def _find_marks(text: str) -> tuple[str, list[str]]:
    """Return a text in lower case with a space before each word, and the marks in it."""
    words = text.lower().split()
    lower = f" {' '.join(words)}"
    found = [mark for mark in patterns.ALONE if mark in lower]
    for end in patterns.ENDS.keys() & [word[-3:] for word in words]:
        found += [mark for mark in patterns.ENDS[end] if mark in lower]
    if long := " ".join([word for word in words if len(word) >= patterns.MIN_TOKEN]):
        for sign, marks in patterns.TOKENS.items():
            if sign in long:
                found += [mark for mark in marks if mark in long]
    return lower, found


def _hide_by_context(text: str, lower: str, marks: frozenset[str], *, has_sign: bool) -> str:
    """Replace secrets that the text around them or a mark in them reveals."""
    if marks:
        in_context, arguments, named_pairs, shapes = _rows_with(marks)
        text = _hide_rows(in_context, text, lower, _keep_groups)
    if has_sign:
        text = _hide_rows(patterns.BESIDE_SIGNS, text, lower, _keep_groups)
        colons = text.count(":")
        for fewest, pattern in patterns.IN_FIELDS:
            if colons >= fewest:
                text = sub(pattern, _keep_groups, text)
    # first of all commands: the text before a program's name may be part of another value
    text = _hide_named(_hide_rows(patterns.COMMANDS, text, lower, _hide_arguments))
    if marks:
        text = _hide_rows(arguments, text, lower, _hide_argument)
        if _has(lower, patterns.IN_TWO_WORDS):
            text = _hide_two_words(text)
        text = _hide_rows(named_pairs, text, lower, _hide_paired)
        text = _hide_rows(shapes, text, lower, _keep_groups)
    if has_sign:
        text = _hide_rows(patterns.SENTENCES, text, lower, _hide_second)
        text = _hide_rows(patterns.SHAPES_BESIDE_SIGNS, text, lower, _keep_groups)
    return text


@lru_cache(maxsize=1024)
def _rows_with(marks: frozenset[str]) -> list[patterns.Rows]:
    """Return the rows of each table whose marks contain one of those found in a text."""
    tables = (patterns.IN_CONTEXT, patterns.ARGUMENTS, patterns.NAMED_PAIRS, patterns.SHAPES)
    return [tuple(row for row in rows if _has(row[0], marks)) for rows in tables]


def _hide_rows(
    rows: patterns.Rows, text: str, lower: str, hide: Callable[[re.Match[str]], str]
) -> str:
    """Replace matches of the patterns that have a mark in the text."""
    if found := [pattern for mark, pattern in rows if mark in lower]:
        for pattern in dict.fromkeys(found):
            text = sub(pattern, hide, text)
    return text


class CleanTexts:
    """Hashes of texts without secrets, so that these are not examined again.

    Most values of a host occur in several objects and are read repeatedly. A text may still be
    secret by its key, so that only 64-bit hashes under the process's random key are kept.
    """

    _MAX_TEXTS: Final = 16_384

    def __init__(self) -> None:
        self.hashes: set[int] = set()

    def add(self, texts: Iterable[str], but: Collection[str] = ()) -> None:
        """Add texts except those in `but`; if there are too many, earlier ones are dropped."""
        if len(self.hashes) > self._MAX_TEXTS:
            self.hashes.clear()
        # never added and then removed: another thread would take a secret for known in between
        self.hashes.update(hash(text) for text in texts if text not in but)


CLEAN: Final = CleanTexts()


def suspects(texts: Sequence[str]) -> Collection[str]:
    """Return the texts in which `hide_in_text` may find a secret, or that may be JSON.

    Texts are examined joined: since few are suspect, this is the fastest way.
    """
    known, short = CLEAN.hashes, patterns.MIN_LENGTH
    texts = [
        text
        for text in texts
        if (len(text) >= short or not text.isalnum()) and hash(text) not in known
    ]
    if not texts:
        return ()
    joined = "\n".join(texts)
    there = [mark for mark in patterns.SIGNS if mark in joined]
    is_number = patterns.NUMBERS.fullmatch
    found = (
        {text for text in texts if _has(text, there) and not is_number(text)} if there else set()
    )
    lower, words = _find_marks(joined)
    if words or " -" in lower:
        words.append(" -")
        found.update(text for text in texts if _has(f" {' '.join(text.lower().split())}", words))
    long = [text for text in texts if len(text) >= patterns.MIN_LENGTH]
    if long and secret_words.may_hold_words("\n".join(long)):
        found.update(filter(secret_words.may_hold_words, long))
    if "{" in joined or "[" in joined:
        found.update(text for text in texts if text.lstrip().startswith(("{", "[")))
    if not joined.isascii():
        found.update(text for text in texts if secret_names.plain(text) != text)
    CLEAN.add(texts, but=found)
    return found


def is_secret_value(name: str, value: str) -> bool:
    """Return whether the value under a secret name is secret."""
    if not value or _HIDDEN.fullmatch(value) or patterns.HARMLESS.fullmatch(value):
        return False
    if value.isdigit() and is_plural(name):
        return False  # tokens: 512
    if patterns.SESSION_NAME.search(name) and patterns.SESSION_NUMBER.fullmatch(value):
        return False
    word = name.lower().rpartition(".")[2].lstrip("-")
    return not (word in patterns.HARMLESS_UNDER and patterns.HARMLESS_UNDER[word].fullmatch(value))


def flags_of(words: Iterable[str]) -> tuple[str, ...]:
    """Return the flags with secret values of all programs among the words."""
    programs = {word.rpartition("/")[2] for word in words} & patterns.SECRET_FLAGS.keys()
    if not programs:
        return ()
    return tuple(sorted({flag for program in programs for flag in patterns.SECRET_FLAGS[program]}))


def _hide_named(text: str) -> str:
    """Redact the values of secret names: key=x, key: x, "key": "x", --key x."""
    parts = []
    done = at = 0
    while match := search(patterns.NAMED_VALUE, text, at):
        at = match.end()
        name = _full_name(text, match)
        if not is_secret_name(name):
            continue
        start, end = _find_value(text, match)
        if is_secret_value(name, text[start:end]):
            parts += [text[done:start], REDACTED]
            done = at = end
    return "".join([*parts, text[done:]])


def _full_name(text: str, match: re.Match[str]) -> str:
    """Return the name in a match of NAMED_VALUE, with the words before that belong to it."""
    name = match["key"] or match["flag"]
    if secret_names.fold(name).lower() in patterns.SECOND_WORDS and (
        before := patterns.WORD_BEFORE.search(text[max(0, match.start() - 60) : match.start()])
    ):
        return before[0] + name
    return name


def _find_value(text: str, match: re.Match[str]) -> tuple[int, int]:
    """Return the start and end of the value of a name."""
    start = match.end()
    if match["flag"] and text.startswith("-", start):
        return start, start
    if quote := patterns.QUOTE.match(text, start):
        start, mark = quote.end(), quote[0]
        if mark in patterns.INSIDE_QUOTES:
            return start, end_of(patterns.INSIDE_QUOTES[mark], text, start)
        end = text.find(mark, start)
        return start, len(text) if end < 0 else end
    before = text[match.start() - 1 : match.start()] if match.start() else ""
    if before in patterns.INSIDE_QUOTES and before not in match[0]:
        return start, end_of(patterns.INSIDE_QUOTES[before], text, start)  # "KEY=several words"
    # `key: a b` extends to the end of its line, unlike `KEY=a command`
    is_line = match["key"] and (match["gap"] or (before in {"", "\n"} and match["key"].islower()))
    return start, end_of(patterns.UNQUOTED_LINE if is_line else patterns.UNQUOTED, text, start)


def _hide_arguments(match: re.Match[str]) -> str:
    """Redact the values of secret flags in one command line."""
    return sub(_values_of(flags_of(match[0].split())), rf"\1{REDACTED}", match[0])


@lru_cache(maxsize=64)
def _values_of(flags: tuple[str, ...]) -> re.Pattern[str]:
    """Return a pattern for a flag (kept as a group) and its value."""
    named = "|".join(
        re.escape(flag) + (r"\s*+" if len(flag) == 2 else r"[\s=]*+") for flag in flags
    )
    return re.compile(rf"""((?<=\s)(?:{named}))(?!-)(?:"[^"]*+"?|'[^']*+'?|[^\s"']++)""")


def _has(text: str, marks: Iterable[str]) -> bool:
    """Return whether a text contains one of the marks."""
    for mark in marks:  # noqa: SIM110 -- `any` takes twice as long
        if mark in text:
            return True
    return False


def _hide_two_words(text: str) -> str:
    """Redact a password after its name: `password X`."""
    parts, done, at = [], 0, 0
    while match := search(patterns.TWO_WORDS, text, at):
        # a word that is not a password may be the name of one
        at = match.start(2)
        if looks_like_password(match[2]):
            parts += [text[done:at], REDACTED]
            done = at = match.end()
    return "".join([*parts, text[done:]])


def _hide_second(match: re.Match[str]) -> str:
    return match[1] + REDACTED if looks_like_password(match[2]) else match[0]


def _hide_paired(match: re.Match[str]) -> str:
    if not (is_secret_name(match[1]) and is_secret_value(match[1], match[2])):
        return match[0]
    return match[0][: match.start(2) - match.start()] + REDACTED


def _hide_argument(match: re.Match[str]) -> str:
    return match[1] + REDACTED if is_secret_value("", match[2]) else match[0]


def looks_like_password(word: str) -> bool:
    """Return whether a word after a secret's name is no ordinary word, number or path."""
    has_both = any(map(str.isdigit, word)) and any(map(str.isalpha, word))
    if not has_both or word.rstrip(".,;:").endswith(patterns.NAME_ENDS):
        return False
    return is_secret_value("", word) and not patterns.NO_PASSWORD.match(word)


def is_pair(name: str, value: str) -> bool:
    """Return whether the first word names a secret and the second is one."""
    if name.startswith("-") or not is_secret_name(name) or is_secret_name(value):
        return False
    return is_secret_value(name, value) and not (name in _PROGRAMS and value.isalpha())


def _keep_groups(match: re.Match[str]) -> str:
    first, *rest = match.groups(default="") or ("",)
    return first + REDACTED + "".join(rest[-1:])
