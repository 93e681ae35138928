"""Training texts from a host's packages, manual pages and units."""

from __future__ import annotations

import gzip
import re
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Final

from opdbus.bench.texts import objects, shorts
from opdbus.language.object_text import render
from opdbus.observe.packages.documents import Places, describe_page
from opdbus.observe.packages.dpkg import StatusFile
from opdbus.state.object import Identity, StateObject

# Written before any check set was read, so that these cannot favour it.
QUESTIONS: Final = (
    "what is the {}?",
    "which package is the {}?",
    "is there a {}?",
    "{}",
    "{} here?",
    "where do I find the {}",
    "the program for: {}",
    "what do I use as {}?",
    "which service is responsible for {}?",
)
ACTIONS: Final = (
    "how do I {}?",
    "what can {}?",
    "which command can {}?",
    "{}",
    "something to {}",
    "what is used to {}?",
)
_SECTIONS: Final = (1, 5, 7, 8)
_MANUALS: Final = Path("/usr/share/man")
_UNITS: Final = Path("/usr/lib/systemd/system")
# Generated texts, so that a student has seen kinds of objects that a host has few of.
_MADE: Final = 2000
_WORD: Final = re.compile(r"[a-z0-9]+")
_LEAST_SEEN: Final = 9


def of_host(
    seed: int, places: Places | None = None, units: Path = _UNITS, made_ones: int = _MADE
) -> list[str]:
    """Return the texts of this host and generated ones, each once, in random order.

    Sources that cannot be read are left out.
    """
    random, places = Random(seed), places or Places()  # noqa: S311 -- no secret
    made: list[str] = []
    if places.has_dpkg:
        with suppress(OSError):
            for package in StatusFile(places.dpkg / "status").read():
                made += of_package(random, package.name, package.summary)
    for name, said in manual_pages(places.manuals):
        made += of_manual_page(random, name, said)
    made += [*unit_texts(units), *objects(made_ones, seed), *shorts(2 * made_ones, seed)]
    return shuffled(random, made)


def shuffled(random: Random, texts: Iterable[str]) -> list[str]:
    """Return texts, each once, in an order that depends on the seed only."""
    made = sorted(set(filter(None, texts)))
    random.shuffle(made)
    return made


def of_package(random: Random, name: str, short: str) -> list[str]:
    """Return the texts of a package and its description: as an object, and as a question."""
    identity = Identity("live:packages", "packages", "package", name)
    asked = random.choice(QUESTIONS)
    said = short if short[:2].isupper() else short[:1].lower() + short[1:]
    return [
        render(StateObject(identity, {"description": short})).text,
        asked.format(said) if said else "",
        short,
    ]


def of_manual_page(random: Random, name: str, said: str) -> list[str]:
    """Return the texts of a manual page's description."""
    action = random.choice(ACTIONS).format(said[:1].lower() + said[1:])
    return [f"systemd service {name}: {said}", action, said]


def manual_pages(
    manuals: Path = _MANUALS, excluded: Collection[str] = ()
) -> Iterator[tuple[str, str]]:
    """Yield the names and descriptions of this host's manual pages of commands and files."""
    for section in _SECTIONS:
        for path in sorted((manuals / f"man{section}").glob("*.gz")):
            name = path.name.partition(".")[0]
            if name.lower() not in excluded and (said := describe_page(_page(path))):
                yield name, said


def _page(path: Path) -> str:
    try:
        return gzip.decompress(path.read_bytes()).decode(errors="replace")
    except (OSError, EOFError, zlib.error):
        return ""


def unit_texts(folder: Path = _UNITS, excluded: Collection[str] = ()) -> Iterator[str]:
    """Yield the texts of this host's units."""
    for path in sorted(folder.glob("*.*")):
        if re.split("[.@]", path.name)[0].lower() in excluded:
            continue
        with suppress(OSError):
            unit = path.read_text(errors="replace")
            if unit:
                found = re.search(r"^Description=(.+)$", unit, re.MULTILINE)
                identity = Identity("live:systemd", "systemd", "unit", path.name)
                yield render(StateObject(identity, {"description": found[1] if found else ""})).text


def frequent_words(texts: Iterable[str], pieces: Collection[str]) -> list[str]:
    """Return frequent words that are not among the pieces, the most frequent first."""
    seen = Counter(word for text in texts for word in _WORD.findall(text.lower()))
    return [
        word
        for word, count in seen.most_common()
        if count >= _LEAST_SEEN and word not in pieces and not word.isdigit()
    ]


def plain(pieces: Iterable[str]) -> list[str]:
    """Return the pieces that are words or beginnings of words."""
    return [piece for piece in pieces if _WORD.fullmatch(piece)]
