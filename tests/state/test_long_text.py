"""Long texts are looked through in steps, and nothing that the whole text shows is missed."""

import random
import re
import string
import time
from functools import partial
from typing import Final

import pytest
from harness.running import longest_share

from opdbus.state import redact, secret_patterns
from opdbus.state.long_text import STEP, end_of, finditer, search, sub
from opdbus.state.secret_text import REDACTED

_LONG: Final = 100_000
_CHANCE: Final = random.Random(7)  # noqa: S311 -- the same texts each time
_LETTERS: Final = string.ascii_letters + string.digits
_WORD: Final = "".join(_CHANCE.choices(_LETTERS, k=40))
_SECRETS: Final = {
    "named": ("password=", _WORD[:12]),
    "flag": ("mysql --password ", _WORD[:12]),
    "URL": ("https://admin:", _WORD[:12] + "@example.com/"),
    "bearer": ("Authorization: Bearer ", _WORD),
    "random": ("", _WORD),
    "two words": ("the password is ", _WORD[:12] + "7"),
}
# what ends a step, from one place before it to the first of the next
_PLACES: Final = [at + more for at in (STEP, 2 * STEP, 5 * STEP) for more in (-60, -30, -9, -1, 0)]


@pytest.mark.parametrize("name", _SECRETS)
@pytest.mark.parametrize("place", _PLACES)
def test_a_secret_is_hidden_wherever_it_stands(name: str, place: int) -> None:
    """Hide a secret also where a step of looking at a long text ends inside it."""
    before, secret = _SECRETS[name]
    filler = ("some words of a note, " * (place // 22 + 1))[: place - 1] + " "
    rest = "\n" + "and so on, " * (3 * STEP // 11)
    text = filler + before + secret + rest
    clean = redact.redact({"note": text})["note"]
    assert secret[:12] not in clean
    assert REDACTED in clean[len(filler) : len(filler) + 60]
    assert clean.startswith(filler)
    assert clean.endswith(rest)


@pytest.mark.parametrize("size", [10, STEP, 3 * STEP, 9 * STEP])
def test_a_secret_of_any_length_is_hidden_to_its_end(size: int) -> None:
    """Leave no rest of a value that is longer than a step."""
    value = "".join(_CHANCE.choices(_LETTERS, k=size))
    text = f"{'note ' * 10_000} password={value} the end"
    assert redact.redact_text(text) == text.replace(value, REDACTED)


@pytest.mark.parametrize(
    "pattern",
    [r"a[^b]{0,90}b", r"(?<=\s)word\b", r"(?m)^\d+$", r"x++(?!y)", r"\d{4,}+"],
)
def test_matches_are_those_of_the_pattern(pattern: str) -> None:
    """Find and replace what the pattern itself finds in the whole of a long text."""
    compiled = re.compile(pattern)
    text = "".join(_CHANCE.choices(["a", "b", " word", "\n12\n", "x", "xy", "77", "é "], k=90_000))
    assert [m.span() for m in finditer(compiled, text)] == [
        m.span() for m in compiled.finditer(text)
    ]
    assert sub(compiled, r"<\g<0>>", text) == compiled.sub(r"<\g<0>>", text)
    assert sub(compiled, lambda m: m[0] * 2, text) == compiled.sub(lambda m: m[0] * 2, text)
    last = [m.end() for m in compiled.finditer(text)][-1]
    assert search(compiled, text, last) is None


@pytest.mark.parametrize("value", ["a" * 100_000, "\\a" * 50_000, "a b " * 30_000])
def test_a_value_ends_where_its_pattern_does(value: str) -> None:
    """Go on to the end of a quoted value, over as many steps as it has."""
    inside = secret_patterns.INSIDE_QUOTES['"']
    assert end_of(inside, f'"{value}" more', 1) == 1 + len(value)


def _longest_step(text: str) -> float:
    """Return the longest time, in seconds of a processor, that a text keeps other threads out."""
    start = time.thread_time()
    share = longest_share(partial(redact.redact, {"note": text}))
    return share * (time.thread_time() - start)


@pytest.mark.parametrize(
    "token",
    ["$", "{", "eyJ", "password=", "password ", "a: b\n", "--a ", f"{_WORD} ", _WORD, "a:b@", "1:"],
)
def test_others_run_while_secrets_are_looked_for(token: str) -> None:
    """Let other threads run again and again, whatever a long text repeats."""
    # each text is new; a thread that waits for a processor sees longer steps than there are
    texts = [token * (_LONG // len(token)) + end for end in ("!", "!!", "!!!")]
    assert min(_longest_step(text) for text in texts) < 0.02
