"""Redaction of secrets inside a string, found by name, context or format."""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from typing import Final, TypeAlias
from urllib.parse import unquote

from opdbus.state import secret_commands as commands
from opdbus.state import secret_names, secret_words
from opdbus.state import secret_patterns as patterns
from opdbus.state.long_text import LazyPattern, end_of, search, sub
from opdbus.state.secret_names import is_plural, is_secret_name

REDACTED: Final = "[redacted]"
# The marker, with the digest that keeps redacted names different.
_HIDDEN: Final = re.compile(r"\[redacted\](?:~[0-9a-f]{8})?")
# Names of secrets that are also programs.
_PROGRAMS: Final = frozenset({"passwd", "pass", "pwd"})
_GLUED: Final = re.compile(
    "|".join(name for name, flags in commands.SECRET_FLAGS.items() if flags == ("-p_",)) + r"\Z"
)
# The end of a command before another one; a variable or a command instead of a word.
_COMMAND_END: Final = re.compile(r"[|;&\n(]")
_VARIABLE: Final = re.compile(
    r"""(?:-\w+\s+|["'\\]*%[sb]\S*\s+){0,4}["'\\]*+\$[\w{(][^\s"']*+["'\\]*+|\[redacted\]\S*"""
)
# A part of a URL, or a word; %XX within %XX.
_WORD: Final = re.compile(r"""[^\s"'<>&?]{6,}+""")
_MAX_NESTED: Final = 3
# The length of an option whose value may be glued on: `-p`.
_GLUED_ON: Final = 2
_KEYS: Final = frozenset({"key", "cod"})
# A quote inside a command that a shell gets in single quotes.
_NESTED_QUOTE: Final = """'"'"'"""
_OPTIONS: Final = re.compile(r"(?:-\w+\s+)+")
_NAME_BEFORE: Final = re.compile(r"""["'\\]{0,9}[\w.-]+:(?=[^/])""")


def hide_in_text(text: str, redact: Callable[[str], str], *, normal: bool = False) -> str:
    """Return a string with every part that looks like a secret replaced.

    A word in base64 is replaced if `redact` changes its text; with `normal`, random words stay.
    """
    plain = clean = secret_names.plain(text)
    if is_short_word(plain) or patterns.NUMBERS.fullmatch(plain):
        return text
    lower, marks = _find_marks(plain)
    if " -" in lower:
        marks.append(" -")
    if has_sign := _has(plain, patterns.SIGNS):
        marks += [mark for mark in _SIGN_MARKS if mark in lower]
    if has_sign or marks:
        clean = _hide_by_context(plain, lower, frozenset(marks), redact, has_sign=has_sign)
    # an id before a secret is part of the credential
    is_after_id = f":{REDACTED}" in clean
    if len(clean) >= patterns.MIN_LENGTH and (is_after_id or secret_words.may_hold_words(clean)):
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


def _hide_by_context(
    text: str, lower: str, marks: frozenset[str], redact: Callable[[str], str], *, has_sign: bool
) -> str:
    """Replace secrets that the text around them or a mark in them reveals."""
    before, after = _steps_with(marks)
    text = _take(before, text, lower)
    if has_sign:
        colons = text.count(":")
        for fewest, pattern in patterns.IN_FIELDS:
            if colons >= fewest:
                text = sub(pattern(), _keep_groups, text)
        if colons:
            text = sub(patterns.FIELD, _hide_field, text)
    text = _hide_named(text)
    if "%" in lower:
        text = sub(_WORD, lambda match: _hide_encoded(match[0], redact), text)
    if marks and _has(lower, patterns.IN_TWO_WORDS):
        text = _hide_two_words(text)
    return _take(after, text, lower)


_Steps: TypeAlias = tuple[tuple[tuple[str, ...], LazyPattern, Callable[[re.Match[str]], str]], ...]


@lru_cache(maxsize=1024)
def _steps_with(marks: frozenset[str]) -> tuple[_Steps, _Steps]:
    """Return the rows whose marks contain one of those found, before and after named values."""
    before, after = (
        tuple(
            (row_marks, pattern, hide)
            for rows, hide in tables
            for row_marks, pattern in rows
            if any(_has(mark, marks) for mark in row_marks)
        )
        for tables in (_BEFORE_NAMES, _AFTER_NAMES)
    )
    return before, after


def _take(steps: _Steps, text: str, lower: str) -> str:
    """Replace matches of the patterns that have a mark in the text."""
    for marks, pattern, hide in steps:
        if _has(lower, marks):
            text = sub(pattern(), hide, text)
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
    if patterns.NUMBERED.fullmatch(value) and is_plural(name):
        return False  # tokens: 512
    if patterns.SESSION_NAME.search(name) and patterns.SESSION_NUMBER.fullmatch(value):
        return False
    word = name.lower().rpartition(".")[2].lstrip("-")
    return not (word in patterns.HARMLESS_UNDER and patterns.HARMLESS_UNDER[word].fullmatch(value))


def flags_of(words: Iterable[str]) -> tuple[str, ...]:
    """Return the flags with secret values of all programs among the words."""
    programs = {word.rpartition("/")[2] for word in words} & commands.SECRET_FLAGS.keys()
    if not programs:
        return ()
    return tuple(sorted({flag for program in programs for flag in commands.SECRET_FLAGS[program]}))


def _hide_named(text: str) -> str:
    """Redact the values of secret names: key=x, key: x, "key": "x", --key x."""
    parts = []
    done = at = 0
    pattern = patterns.NAMED_VALUE_ASCII if text.isascii() else patterns.NAMED_VALUE
    while match := search(pattern, text, at):
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
    if text.startswith(_NESTED_QUOTE, start):
        start += len(_NESTED_QUOTE)
        end = text.find("'", start)
        return start, len(text) if end < 0 else end
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
    return sub(_values_of(flags_of(match[0].split())), _hide_value, match[0])


def _hide_value(match: re.Match[str]) -> str:
    flag, value = match[1], match["value"]
    is_apart = match["glued"] and flag[-1].isspace()
    if not is_secret_value("", value.strip("'\"")) or (is_apart and not looks_like_password(value)):
        return match[0]
    return flag + REDACTED


@lru_cache(maxsize=64)
def _values_of(flags: tuple[str, ...]) -> re.Pattern[str]:
    """Return a pattern for a flag (kept as a group) and its value.

    The group `glued` matches a flag whose value is glued on.
    """
    named = [
        re.escape(flag.rstrip("~"))
        + (r"\s*+" if len(flag) == _GLUED_ON or flag[-1] == ":" else r"(?:\s++|=)")
        for flag in flags
        if flag[-1] != "_"
    ]
    glued = "|".join(re.escape(flag[:-1]) + r"\s*+" for flag in flags if flag[-1] == "_") or "(?!)"
    either = "|".join([f"(?P<glued>{glued})", *named])
    return re.compile(rf"((?<=\s)(?:{either}))(?!-)(?P<value>{commands.VALUE})")


def _find_program(match: re.Match[str], programs: re.Pattern[str]) -> bool:
    """Return whether one of the programs is named in a command before a match."""
    return _names_program(match.string[max(0, match.start() - 200) : match.start()], programs)


@lru_cache(maxsize=256)
def _names_program(before: str, programs: re.Pattern[str]) -> bool:
    words = _COMMAND_END.split(before)[-1].replace("'", " ").replace('"', " ").split()
    names = [re.split(r"[/=]", word)[-1] for word in words if not word.startswith("-")]
    if names and commands.RUNNER.match(names[-1]):
        return programs is commands.NOT_ASKING
    return any(map(programs.match, names))


@lru_cache(maxsize=256)
def _reads_secret(reader: str) -> bool:
    """Return whether a program reads a secret from its input."""
    is_shown = commands.SHOWS_INPUT.match(reader)
    return not is_shown and bool(commands.READS_SECRET.search(reader))


def _hide_after_user(match: re.Match[str]) -> str:
    value = match[2]
    if _find_program(match, commands.NOT_ASKING) or not is_secret_value("", value):
        return match[0]
    if _find_program(match, _GLUED) and not looks_like_password(value):
        return match[0]
    return match[1] + REDACTED


def _hide_lone(match: re.Match[str]) -> str:
    is_secret = looks_like_password(match[2]) and not match[2].isdigit()
    if not is_secret or any(
        _find_program(match, programs) for programs in (commands.NOT_ASKING, _GLUED)
    ):
        return match[0]
    return match[1] + REDACTED


def _hide_printed(match: re.Match[str]) -> str:
    return _hide_input(match[2], match[4], match) + match[3] if match[2] else match[0]


def _hide_fed(match: re.Match[str]) -> str:
    before = match.string[max(0, match.start() - 120) : match.start()]
    reader = _COMMAND_END.split(before)[-1]
    if looks_like_password(match[2].strip("\"'")) and not commands.SHOWS_INPUT.match(reader):
        return match[1] + REDACTED
    return _hide_input(match[2], reader, match)


def _hide_redirected(match: re.Match[str]) -> str:
    name = match[4].rpartition("/")[2]
    words = match[2].strip(" \"'\\")
    is_harmless = not is_secret_value("", words) or name in _PROGRAMS or len(words) <= 1
    if is_harmless or not is_secret_name(name) or _VARIABLE.fullmatch(match[2]):
        return match[0]
    return match[1] + REDACTED + match[3]


def _hide_input(words: str, reader: str, match: re.Match[str]) -> str:
    """Return what is fed to a program, redacted if the program reads a secret."""
    if not _reads_secret(reader) or _VARIABLE.fullmatch(words):
        return match[1] + words
    kept = _OPTIONS.match(words)
    start = kept[0] if kept else ""
    if "chpasswd" in reader and (name := _NAME_BEFORE.match(words, len(start))):
        start += name[0]
    return match[1] + start + REDACTED


def _hide_field(match: re.Match[str]) -> str:
    """Redact what follows the name of a user or a host, if it is a hash or looks made up."""
    text, start, end, value = match.string, match.start(), match.end(), match[1]
    named = patterns.BEFORE_FIELD.search(text, max(0, start - 120), start)
    if not named or patterns.NO_FIELD.fullmatch(named["user"].rpartition("@")[2]):
        return match[0]
    is_line = (
        not text[named.start() - 1 : named.start()].strip()
        and text[end : end + 1].strip("\n") == ""
    )
    if named["host"]:
        is_secret = (
            is_line
            and not value.isdigit()
            and (named["host"][-1] != ":" or looks_like_password(value))
        )
    else:
        found = patterns.OF_FIELDS.match(value)
        is_key = patterns.KEY_NAME.fullmatch(named["user"]) and looks_like_password(value)
        is_secret = bool(found and found["hash"]) or (is_line and bool(found or is_key))
    return f":{REDACTED}" if is_secret else match[0]


def _hide_credential(match: re.Match[str]) -> str:
    """Redact the password of `-u name:password`, but leave a user with a group."""
    before, name, value = match.groups()
    if (
        value == name
        or commands.GROUPS.fullmatch(value)
        or secret_names.is_of_random(name)
        or not is_secret_value("", value)
    ):
        return match[0]
    option = before[: before.rindex(name)].strip(" \"'\\=")
    if option[-2:-1] != "-" and option[0] == "-" and option[1] != "-":
        option = f"-{option[-1]}"  # -sSu bob:x
    if option in {"-a", "-n"}:
        is_login = looks_like_password(value) or _find_program(match, commands.TAKES_LOGIN)
    elif option in {"-u", "--user"}:
        is_login = not _find_program(match, commands.TAKES_GROUP)
    else:
        is_quoted = before[-len(name) - 2] in "\"'"
        is_login = option[-1] != ":" or is_quoted or looks_like_password(value)
    return before + REDACTED if is_login else match[0]


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
        at = match.start("value")
        if match[1][:3].lower() in _KEYS:
            before = text[max(0, match.start() - 14) : match.start()]
            is_secret = patterns.OF_KEYS.search(before) or patterns.MIXED.match(match["value"])
            if not is_secret or patterns.KEY_ID.match(match["value"]):
                continue
        if looks_like_password(match["value"]):
            parts += [text[done:at], REDACTED]
            done = at = match.end()
    return "".join([*parts, text[done:]])


def _hide_second(match: re.Match[str]) -> str:
    return match[1] + REDACTED if looks_like_password(match[2]) else match[0]


def _hide_encoded(word: str, redact: Callable[[str], str]) -> str:
    """Return a word without what is secret once its %XX are decoded, also if they are nested."""
    decoded = word
    for _ in range(_MAX_NESTED):
        if "%" in decoded:
            decoded = unquote(decoded)
    if decoded == word or redact(decoded) == decoded:
        return word
    name, equals, value = word.partition("=")
    return f"{name}={_hide_encoded(value, redact)}" if equals and "%" not in name else REDACTED


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
    return is_secret_value("", word) and not patterns.NO_PASSWORD.match(word.rstrip("="))


def is_pair(name: str, value: str) -> bool:
    """Return whether the first word names a secret and the second is one."""
    if name.startswith("-") or not is_secret_name(name) or is_secret_name(value):
        return False
    return is_secret_value(name, value) and not (name in _PROGRAMS and value.isalpha())


def _keep_groups(match: re.Match[str]) -> str:
    first, *rest = match.groups(default="") or ("",)
    return first + REDACTED + "".join(rest[-1:])


# Tables of rows, each with what is done to a match, in this order: the text before a program's
# name may be part of another value.
_OF_SIGNS: Final = (
    *(patterns.BESIDE_SIGNS, patterns.CREDENTIALS),
    *(patterns.SENTENCES, patterns.SHAPES_BESIDE_SIGNS),
)
_BEFORE_NAMES: Final = (
    (patterns.IN_CONTEXT, _keep_groups),
    (patterns.BESIDE_SIGNS, _keep_groups),
    (patterns.COMMANDS, _hide_arguments),
    (patterns.AFTER_USER, _hide_after_user),
    (patterns.AFTER_OPTION, _hide_lone),
    (patterns.PRINTED, _hide_printed),
    (patterns.REDIRECTED, _hide_redirected),
    (patterns.FED, _hide_fed),
    (patterns.AFTER_PERCENT, _keep_groups),
)
_AFTER_NAMES: Final = (
    (patterns.CREDENTIALS, _hide_credential),
    (patterns.ARGUMENTS, _hide_argument),
    (patterns.SAID, _hide_second),
    (patterns.NAMED_PAIRS, _hide_paired),
    (patterns.SHAPES, _keep_groups),
    (patterns.SENTENCES, _hide_second),
    (patterns.SHAPES_BESIDE_SIGNS, _keep_groups),
)
# Marks that are searched for only in texts with a sign.
_SIGN_MARKS: Final = patterns.shortest(
    {
        mark
        for tables in (_BEFORE_NAMES, _AFTER_NAMES)
        for rows, _ in tables
        for marks, _ in rows
        for mark in marks
        if rows in _OF_SIGNS or _has(mark, patterns.SIGNS)
    }
)
