"""The texts that a static table is trained on: made of what Debian ships, without the check sets.

Packages and their descriptions, manual pages, units and WordNet's glosses; questions are made of
them by templates. Fetches what is missing, and writes texts.json, dev.json, test.json.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import re
import subprocess
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from opdbus.bench.texts import objects, shorts
from opdbus.language.object_text import render
from opdbus.observe.packages.documents import describe_page
from opdbus.state.file import StateFile
from opdbus.state.object import Identity, StateObject

ROOT: Final = Path(__file__).parents[1]
SEED: Final = 14
APT_HELPER: Final = "/usr/lib/apt/apt-helper"
# Of a hundred source packages, those by which tables are chosen, and those that are reported.
DEV: Final = range(3)
TEST: Final = range(3, 6)
# Packages of these names are very many, and much alike: one in four is enough.
_MANY: Final = re.compile(
    r"lib.*-(?:dev|dbg|java|perl|ruby)|python3-.*|librust-.*|golang-.*|.*-doc"
)
_SENTENCE: Final = re.compile(r"(.{30,240}?[.!])(?:\s|$)")
_EXAMPLE: Final = re.compile(r'"([^"]{20,200})"')
# An object's name in a check set: the last part of its path, or of a condition.
_NAMED: Final = re.compile(r"\w+/\w+/([^\"]+)\"|name=([^\", ]+)")
_MOST_GLOSSES: Final = 40_000
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


@dataclass(frozen=True, slots=True)
class Package:
    """A binary package of Debian."""

    name: str
    source: str
    short: str
    long: str

    @property
    def share(self) -> int:
        """A number below 100, the same for all packages of one source."""
        return int(hashlib.sha256(f"{SEED} {self.source}".encode()).hexdigest(), 16) % 100

    @property
    def text(self) -> str:
        """The text of the package as an observed object."""
        identity = Identity("live:packages", "packages", "package", self.name)
        return render(StateObject(identity, {"description": self.short})).text

    @property
    def sentence(self) -> str:
        """The first sentence of the long description; empty where there is none."""
        found = _SENTENCE.match(" ".join(self.long.split()))
        return found[1] if found else ""


def held_out() -> frozenset[str]:
    """Return the names of what check sets ask for, whole and without endings such as `.service`."""
    _, items = StateFile(ROOT / "state.example.json").read()
    found = {item.name for item in items}
    for path in (ROOT / "tests/data").glob("*questions.json"):
        text = path.read_text(encoding="utf-8")
        found.update(name for pair in _NAMED.findall(text) for name in pair if name)
    names = {name.rpartition("/")[2].lower() for name in found}
    stems = {re.split(r"[.@:*]", name)[0] for name in names}
    return frozenset(names | stems | {stem.removesuffix("d") for stem in stems})


def fetch(folder: Path) -> None:
    """Get the package lists with descriptions, and WordNet's package, as apt does."""
    lists, wordnet = folder / "apt/lists", folder / "wordnet"
    options = [
        f"--option={name}"
        for name in (
            "Acquire::Languages=en",
            f"Dir::State::lists={lists}",
            f"Dir::Cache={folder / 'apt/cache'}",
        )
    ]
    if not lists.is_dir():
        for needed in (lists / "partial", folder / "apt/cache/archives/partial"):
            needed.mkdir(parents=True)
        subprocess.run(["apt-get", "update", "--quiet", *options], check=True)
    if not wordnet.is_dir():
        command = ["apt-get", "download", "--quiet", *options, "wordnet-base"]
        subprocess.run(command, check=True, cwd=folder)
        (archive,) = folder.glob("wordnet-base*.deb")
        subprocess.run(["dpkg-deb", "--extract", str(archive), str(wordnet)], check=True)


def _paragraphs(lists: Path, pattern: str) -> Iterator[dict[str, str]]:
    for path in sorted(lists.glob(pattern)):
        done = subprocess.run(
            [APT_HELPER, "cat-file", str(path)], check=True, stdout=subprocess.PIPE
        )
        for part in done.stdout.decode().split("\n\n"):
            yield dict(re.findall(r"^([A-Z][\w-]*): ?(.*(?:\n .*)*)", part, re.MULTILINE))


def packages(folder: Path) -> list[Package]:
    """Return all packages, each name once."""
    sources = {
        each["Package"]: each.get("Source", each["Package"]).split()[0]
        for each in _paragraphs(folder / "apt/lists", "*debian_dists*_main_binary-*_Packages*")
        if "Package" in each
    }
    found = {}
    for each in _paragraphs(folder / "apt/lists", "*debian_dists*_main_i18n_Translation-en*"):
        if name := each.get("Package"):
            short, _, rest = each["Description-en"].partition("\n")
            long = rest.replace("\n .", "\n")
            found[name] = Package(name, sources.get(name, name), short.strip(), long)
    return list(found.values())


def glosses(folder: Path) -> Iterator[str]:
    """Yield WordNet's synonyms with what they mean; words that are tagged often come first."""
    found: list[tuple[int, str]] = []
    wordnet = folder / "wordnet/usr/share/wordnet"
    counts: Counter[str] = Counter()
    for line in (wordnet / "cntlist.rev").read_text().splitlines():
        key, _, count = line.split()
        counts[key.partition("%")[0]] += int(count)
    for path in sorted(wordnet.glob("data.*")):
        for line in path.read_text().splitlines():
            if line.startswith("  "):
                continue
            fields, _, gloss = line.partition(" | ")
            parts = fields.split()
            words = [parts[4 + 2 * n] for n in range(int(parts[3], 16))]
            plain = [re.sub(r"\(.\)$", "", word) for word in words]
            said = gloss.partition(";")[0].strip()
            text = f"{', '.join(plain)}: {said}".replace("_", " ")
            found.append((-max(counts[word.lower()] for word in plain), text))
    return (text for _, text in sorted(found)[:_MOST_GLOSSES])


def examples(folder: Path) -> Iterator[str]:
    """Yield the sentences in which WordNet uses words."""
    for path in sorted((folder / "wordnet/usr/share/wordnet").glob("data.*")):
        for line in path.read_text().splitlines():
            yield from _EXAMPLE.findall(line)


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


def more_texts(folder: Path, kept: list[Package]) -> list[str]:
    """Return sentences in random order: WordNet's, and the next ones of packages' descriptions."""
    made = [*examples(folder)]
    for package in kept:
        if not _MANY.fullmatch(package.name):
            made += _SENTENCE.findall(" ".join(package.long.split()))[1:3]
    made = sorted(set(made))
    Random(SEED).shuffle(made)  # noqa: S311 -- no secret
    return made


def texts(folder: Path, kept: list[Package]) -> list[str]:
    """Return the texts in random order."""
    random, excluded = Random(SEED), held_out()  # noqa: S311 -- no secret
    made: list[str] = []
    for package in kept:
        if _MANY.fullmatch(package.name) and random.random() > 0.25:
            continue
        made += [*of_package(random, package.name, package.short), package.sentence]
        if package.name.endswith("d") or "daemon" in package.short:
            made.append(f"systemd service {package.name}: {package.short}")
    for name, said in manual_pages(excluded=excluded):
        if not name.startswith("gcloud"):
            made += of_manual_page(random, name, said)
    made += [*unit_texts(excluded=excluded), *glosses(folder)]
    made += [*objects(2000, SEED), *shorts(4000, SEED)]
    return shuffled(random, made)


def _is_asked(package: Package) -> bool:
    return not _MANY.fullmatch(package.name) and bool(_without_name(package))


def _without_name(package: Package) -> str:
    names = {package.name, *package.name.split("-")}
    return " ".join(w for w in package.sentence.split() if w.lower().strip(".,") not in names)


def questions(chosen: list[Package]) -> dict[str, list[str]]:
    """Return objects' texts, and what is asked for each: its long description, without its name."""
    found = {each.text: _without_name(each) for each in chosen if _is_asked(each)}
    named = {each.text: each.name for each in chosen if _is_asked(each)}
    shorts = {each.text: each.short for each in chosen if _is_asked(each)}
    return {
        "objects": list(found),
        "questions": list(found.values()),
        "names": list(named.values()),
        "shorts": list(shorts.values()),
    }


def asked(chosen: list[Package]) -> dict[str, list[str] | list[int]]:
    """Return questions in other words, and which of the objects of dev each asks for."""
    names = list({package.text: package.name for package in chosen if _is_asked(package)}.values())
    lines = (Path(__file__).parent / "asked.tsv").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("\t") for line in lines]
    return {"questions": [said for _, said in pairs], "wanted": [names.index(n) for n, _ in pairs]}


def main() -> None:
    """Write the texts and the sets of questions into a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    fetch(given.folder)
    found, excluded = packages(given.folder), held_out()
    blocked = {package.source for package in found if package.name in excluded}
    every = [package for package in found if package.source not in blocked]
    kept = [p for p in every if p.share not in DEV and p.share not in TEST]
    dev = [package for package in every if package.share in DEV]
    made = list(dict.fromkeys([*texts(given.folder, kept), *more_texts(given.folder, kept)]))
    for name, content in (
        ("texts", {"texts": made}),
        ("dev", questions(dev)),
        ("asked", asked(dev)),
        ("test", questions([p for p in every if p.share in TEST])),
    ):
        path = given.folder / f"{name}.json"
        path.write_text(json.dumps(content), encoding="utf-8")
        print(path, {key: len(value) for key, value in content.items()})
    print(len(every), "packages,", len(blocked), "sources held out")


if __name__ == "__main__":
    main()
