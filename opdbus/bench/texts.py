"""Generated texts to measure with, the same on every machine."""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Final

from opdbus.language.object_text import render
from opdbus.language.synonyms import glossary
from opdbus.state.object import FILE, Identity, StateObject

if TYPE_CHECKING:
    from opdbus.state.object import Json

# Mean and spread in tokens of the medium model, as in state files that people wrote: of whole
# objects, and of the lines that describe them.
OBJECT: Final = (56, 18)
SHORT: Final = (19, 5)
# Largest distance from the mean, in spreads.
_FURTHEST: Final = 2.0
_TRIES: Final = 6
_LONG_WORD: Final = 6

_KINDS: Final = tuple(
    tuple(kind.split("/"))
    for kind in "systemd/unit systemd/timer lxc/container net/interface packagekit/package"
    " login1/session cron/job firewall/rule storage/array backup/job".split()
)
_SITES: Final = "north south east west office attic cellar lab depot showroom garage annex".split()
_WORDS: Final = (
    "main backup spare test public guest archive primary shared remote local old".split()
)
_PROPERTIES: Final = (
    "active_state enabled address gateway port owner group config source restart_count masked"
    " comment timeout autostart logs location vlan dns".split()
)


def _value(random: Random, key: str, name: str = "") -> Json:
    """Return a value as a property of that key has, of an object of that name."""
    match key:
        case "active_state":
            return random.choice(("active", "inactive", "failed", "running", "waiting"))
        case "enabled" | "masked" | "autostart":
            return random.random() < 0.5
        case "address" | "gateway" | "dns":
            parts = (random.randrange(256), random.randrange(256), random.randrange(1, 255))
            return "10.{}.{}.{}".format(*parts)
        case "port" | "restart_count" | "timeout" | "vlan":
            return random.randrange(1, 65536)
        case "config" | "source" | "logs":
            top = random.choice(("etc", "srv", "var/lib", "opt"))
            return f"/{top}/{name}/{random.choice(_WORDS)}"
        case _:
            return " ".join(random.sample([*_WORDS, *_SITES], random.randrange(1, 4)))


def objects(count: int, seed: int = 0) -> list[str]:
    """Make `count` different whole objects, 56 tokens each on average."""
    return _make(count, Random(f"objects {seed}"), OBJECT, _object)  # noqa: S311 -- no secret


def shorts(count: int, seed: int = 0) -> list[str]:
    """Make `count` different lines that describe an object, 19 tokens each on average."""
    return _make(count, Random(f"shorts {seed}"), SHORT, _short)  # noqa: S311 -- no secret


def kinds(count: int) -> dict[str, list[str]]:
    """Make `count` texts of each kind."""
    return {"object": objects(count), "short": shorts(count)}


def estimate(text: str) -> float:
    """Estimate a text's tokens without a tokenizer: right on average, not for each text.

    The coefficients are fitted to the medium model's tokenizer on these texts.
    """
    letters = re.findall(r"[^\W\d_]+", text)
    digits = re.findall(r"\d+", text)
    marks = re.findall(r"[^\w\s]|_", text)
    long = sum(max(0, len(word) - _LONG_WORD) for word in letters)
    more_digits = sum(map(len, digits)) - len(digits)
    tokens = 1.15 * len(letters) + 0.10 * long + 0.25 * len(digits) + 0.49 * more_digits
    return 2 + tokens + 1.48 * len(marks)


def _make(
    count: int,
    random: Random,
    sizes: tuple[int, int],
    write: Callable[[Random, float], str],
) -> list[str]:
    """Make texts whose lengths scatter around the mean and whose errors cancel out."""
    mean, spread = sizes
    made: dict[str, None] = {}
    error = off = 0.0
    while len(made) < count:
        # in pairs: one is as far above the mean as the other is below
        off = -off if off > 0 else min(abs(random.gauss(0, spread)), _FURTHEST * spread)
        text = write(random, mean + off + error)
        if text not in made:
            made[text] = None
            error += mean + off - estimate(text)
    return list(made)


def _object(random: Random, wanted: float) -> str:
    """Write a whole object as lexical search reads it, with enough properties for the length."""
    item = _item(random)
    properties: dict[str, Json] = {}
    for key in random.sample(_PROPERTIES, len(_PROPERTIES)):
        properties[key] = _value(random, key, item.name)
        text = render(StateObject(item.identity, properties)).words
        if estimate(text) >= wanted:
            break
    return text


def _short(random: Random, wanted: float) -> str:
    """Write the line that describes an object: of a few, the one nearest to the length."""
    lines = [render(_item(random)).text.partition("\n")[0] for _ in range(_TRIES)]
    return min(lines, key=lambda line: abs(estimate(line) - wanted))


def _item(random: Random) -> StateObject:
    """Make an object with a name from the glossary, so that its line has a meaning."""
    plugin, kind = random.choice(_KINDS)
    name = f"{random.choice(list(glossary()))}@{random.choice(_SITES)}{random.randrange(1000)}"
    comment = _value(random, "comment")
    properties = {"comment": comment} if _value(random, "enabled") else {}
    return StateObject(Identity(FILE, plugin, kind, name), properties)
