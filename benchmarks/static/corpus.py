"""The texts that a static table is trained on: made of what Debian ships, without the check sets.

Packages and their descriptions, manual pages, units and WordNet's glosses; questions are made of
them by templates. Fetches what is missing, and writes texts.json, dev.json, test.json.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from opdbus.bench.texts import objects, shorts
from opdbus.distil import host_texts
from opdbus.language.object_text import render
from opdbus.state.file import StateFile
from opdbus.state.object import Identity, StateObject

ROOT: Final = Path(__file__).parents[2]
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
        made += [*host_texts.of_package(random, package.name, package.short), package.sentence]
        if package.name.endswith("d") or "daemon" in package.short:
            made.append(f"systemd service {package.name}: {package.short}")
    for name, said in host_texts.manual_pages(excluded=excluded):
        if not name.startswith("gcloud"):
            made += host_texts.of_manual_page(random, name, said)
    made += [*host_texts.unit_texts(excluded=excluded), *glosses(folder)]
    made += [*objects(2000, SEED), *shorts(4000, SEED)]
    return host_texts.shuffled(random, made)


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
