"""Makes the check sets of answers of what Debian ships: none of their questions is hand-picked.

`python benchmarks/answers/sets.py FOLDER`, where training/corpus.py has written, writes data/:
packages, questions with typos and about foreign topics, and what is taken out with each answer, so
that a question has none: its near copies. Halves are by the place of the question that another one
was made of: one is fitted on, the other reported.

Two sets were written by hand: states.json asks the hosts of all exams whether programs run or are
installed, and for what no host is observed to have; routes.json has questions of every command, of
which half were not looked at when the forms of opdbus/tables/routes.tsv were written.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import string
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

sys.path.append(str(Path(__file__).parents[2] / "training"))
from corpus import packages, questions

from opdbus import config
from opdbus.engine.opening import open_embedder
from opdbus.language.object_text import render
from opdbus.models import folder
from opdbus.models.level_table import LEVELS
from opdbus.state.file import StateFile

ROOT: Final = Path(__file__).parents[2]
DATA: Final = Path(__file__).parent / "data"
SEED: Final = 15
TYPOS, FOREIGN = 100, 100
# One in so many words has a typing error, and at least one.
_ONE_IN: Final = 3
_SHORTEST: Final = 5
# What says the same as an answer: of the same source package, or as alike as this.
NEAR_COPY: Final = 0.6
# WordNet's files of fields that are not about computers.
_FIELDS: Final = {"05": "animal", "08": "body", "12": "feeling", "13": "food", "20": "plant"}
_GLOSS_WORDS: Final = range(4, 13)

Question = dict[str, Any]


def of_packages(corpus: Path) -> tuple[list[dict[str, str]], list[Question]]:
    """Return packages as a state file has them, and a question about each: see corpus.questions."""
    names = set(json.loads((corpus / "test.json").read_text(encoding="utf-8"))["names"])
    chosen = [package for package in packages(corpus) if package.name in names]
    made = questions(chosen)
    sources = {package.name: package.source for package in chosen}
    items = [
        {"name": name, "description": short, "source_package": sources[name]}
        for name, short in zip(made["names"], made["shorts"], strict=True)
    ]
    asked = [
        {"question": question, "object": f"packages/package/{name}"}
        for question, name in zip(made["questions"], made["names"], strict=True)
    ]
    return items, _halved(asked)


def of_the_example() -> list[Question]:
    """Return the questions about state.example.json."""
    asked = json.loads((ROOT / "tests/data/questions.json").read_text(encoding="utf-8"))
    return _halved([{key: row[key] for key in ("question", "object")} for row in asked])


def _halved(asked: list[Question]) -> list[Question]:
    return [{**row, "half": ("fit", "told")[at % 2]} for at, row in enumerate(asked)]


def mistyped(random: Random, question: str) -> str:
    """Return a question with typing errors in some of its longer words."""
    words = question.split()
    long = [at for at, word in enumerate(words) if _is_long(word)]
    for at in random.sample(long, min(len(long), 1 + len(long) // _ONE_IN)):
        words[at] = _edited(random, words[at])
    return " ".join(words)


def _is_long(word: str) -> bool:
    return word.isalpha() and len(word) >= _SHORTEST


def _edited(random: Random, word: str) -> str:
    """Swap two letters, or leave one out, or add one, or take another; not the first one."""
    at = random.randrange(1, len(word) - 1)
    letter = random.choice(string.ascii_lowercase)
    return random.choice(
        (
            word[:at] + word[at + 1] + word[at] + word[at + 2 :],
            word[:at] + word[at + 1 :],
            word[:at] + letter + word[at:],
            word[:at] + letter + word[at + 1 :],
        )
    )


def typos(random: Random, asked: dict[str, list[Question]]) -> list[Question]:
    """Return questions of each set with typing errors, as many of one as of another."""
    found = []
    for name, rows in asked.items():
        several = [row for row in rows if any(map(_is_long, row["question"].split()))]
        found += [
            {"set": name, **row, "question": mistyped(random, row["question"])}
            for row in random.sample(several, TYPOS // len(asked))
        ]
    return found


def foreign(corpus: Path, random: Random) -> list[Question]:
    """Return words of other fields, what they mean, and questions about them, in turns."""
    by_field: dict[str, list[tuple[str, str]]] = {name: [] for name in _FIELDS.values()}
    for line in (corpus / "wordnet/usr/share/wordnet/data.noun").read_text().splitlines():
        fields, _, gloss = line.partition(" | ")
        parts = fields.split()
        said = re.sub(r"\([^)]*\)", "", gloss.partition(";")[0]).strip()
        if not line.startswith("  ") and parts[1] in _FIELDS and len(said.split()) in _GLOSS_WORDS:
            by_field[_FIELDS[parts[1]]].append((parts[4].replace("_", " "), said))
    found = []
    for name, pairs in by_field.items():
        for at, (word, said) in enumerate(random.sample(pairs, FOREIGN // len(by_field))):
            asked = (word, said, f"what is {word}?", f"where can I find {said}")[at % 4]
            found.append({"question": asked, "field": name})
    return _halved(found)


async def near_copies(texts: dict[str, str], sources: dict[str, str]) -> dict[str, Any]:
    """Return all names, and for each the places of those that say the same, its own included."""
    settings = config.load({**os.environ, "OP_DBUS_PRECISION": "fp32"})
    async with open_embedder(folder.load_model(LEVELS["medium"], settings), settings) as embedder:
        vectors = (await embedder.embed([*texts.values()])).vectors
    names = [*texts]

    def alike(at: int) -> Iterator[int]:
        source = sources.get(names[at], names[at])
        for place, cosine in enumerate(vectors @ vectors[at]):
            if cosine >= NEAR_COPY or sources.get(names[place], names[place]) == source:
                yield place

    return {"names": names, "copies": [" ".join(map(str, alike(at))) for at in range(len(names))]}


def _write(name: str, content: dict[str, Any] | list[Question]) -> None:
    path = DATA / f"{name}.json"
    path.write_text(json.dumps(content, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")
    print(path, len(content))


def main() -> None:
    """Write the sets."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path, help="what training/corpus.py wrote")
    given = parser.parse_args()
    DATA.mkdir(exist_ok=True)
    random = Random(SEED)  # noqa: S311 -- no secret
    items, about_packages = of_packages(given.corpus)
    asked = {"example": of_the_example(), "packages": about_packages}
    sources = {f"packages/package/{item['name']}": item.pop("source_package") for item in items}
    state = DATA / "packages.json"
    _write("packages", {"version": 1, "plugins": {"packages": {"packages": items}}})
    copies = {}
    for name, path in (("example", ROOT / "state.example.json"), ("packages", state)):
        _, objects = StateFile(path).read()
        texts = {"/".join(item.identity[1:]): render(item).text for item in objects}
        copies[name] = asyncio.run(near_copies(texts, sources))
    _write("questions", asked)
    _write("typos", typos(random, asked))
    _write("foreign", foreign(given.corpus, random))
    _write("copies", copies)


if __name__ == "__main__":
    main()
