"""Trains the table of the level `static` towards a teacher's vectors, and ranks both.

`python training/table.py FOLDER MODEL INTO`: FOLDER is what corpus.py wrote, MODEL the teacher's
folder. Needs torch (extra `train`). Tables are chosen by the ranks on dev and asked alone.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np
import tokenizers
import torch
from numpy.typing import NDArray

from opdbus import config
from opdbus.api import Embedder
from opdbus.engine import check_set, static_encoder
from opdbus.engine.host import versions
from opdbus.models import level_table, static_table
from opdbus.models.level_table import LEVELS
from opdbus.models.static_table import StaticTable

# Texts of a part of the teacher's vectors, which is kept in FOLDER for the next run.
PART: Final = 4096
# Initial rows are weighted by a / (a + frequency): Arora et al., "A Simple but Tough-to-Beat
# Baseline for Sentence Embeddings".
_RARE: Final = 1e-3
# Initial length of a row whose piece the teacher has not embedded alone.
_UNSEEN: Final = 0.3
_SPECIAL: Final = ("[CLS]", "[SEP]", "[UNK]")
_TELL_SECONDS: Final = 10.0
_WORD: Final = re.compile(r"[a-z0-9]+")
# Each set of questions, and the set whose objects they ask for.
_SETS: Final = {"dev": "dev", "asked": "dev", "test": "test"}


@dataclass(frozen=True, slots=True)
class Recipe:
    """Training parameters: the length of a row, and the share of pieces dropped in a step."""

    epochs: int = 12
    batch: int = 1024
    rate: float = 0.01
    dimension: int = 256
    dropped: float = 0.2
    seed: int = 14
    # no more texts than that; 0 for all
    most: int = 0


def open_engine(level: str, folder: Path) -> Embedder:
    """Return an engine for a model's folder, not yet open, in fp32."""
    return Embedder(level, "cpu", model=folder.absolute(), precision="fp32")


def teacher_vectors(engine: Embedder, texts: Sequence[str], folder: Path) -> NDArray[np.float32]:
    """Return the vectors (texts, dimension) of the teacher; finished parts are kept in `folder`."""
    folder.mkdir(exist_ok=True)
    model, found = engine.engine.model.weights_sha256, []
    for first in range(0, len(texts), PART):
        some = texts[first : first + PART]
        key = hashlib.sha256("\0".join([model, *some]).encode()).hexdigest()[:24]
        path = folder / f"{key}.npy"
        if not path.exists():
            # float16 halves the size; its error is a thousandth of the table's
            np.save(folder / "part.npy", engine.embed(some).astype(np.float16))
            (folder / "part.npy").rename(path)
            print(f"teacher: {first + len(some)} of {len(texts)} texts", file=sys.stderr)
        found.append(np.load(path).astype(np.float32))
    return np.concatenate(found)


def frequent_words(texts: Iterable[str], pieces: Collection[str], least: int = 9) -> list[str]:
    """Return words seen `least` times that are not among the pieces, the most frequent first."""
    seen = Counter(word for text in texts for word in _WORD.findall(text.lower()))
    return [
        word
        for word, count in seen.most_common()
        if count >= least and word not in pieces and not word.isdigit()
    ]


def make_tokenizer(teacher: Path, texts: Sequence[str]) -> dict[str, Any]:
    """Return the tokenizer of the table: the teacher's, with frequent words of the texts added."""
    words: dict[str, Any] = json.loads((teacher / level_table.TOKENIZER).read_bytes())
    vocabulary = words["model"]["vocab"]
    for word in frequent_words(texts, vocabulary):
        vocabulary.setdefault(word, len(vocabulary))
    # a table has a limit of its own
    words["truncation"] = words["padding"] = None
    return words


def project(vectors: NDArray[np.float32], dimension: int) -> NDArray[np.float32]:
    """Return vectors in their main directions, uncentred to keep cosines, again of length 1."""
    _, directions = np.linalg.eigh(vectors.T @ vectors)
    found = vectors @ directions[:, ::-1][:, :dimension].astype(np.float32)
    return np.asarray(found / np.linalg.norm(found, axis=1, keepdims=True), np.float32)


def first_rows(
    pieces: Sequence[Sequence[int]], count: int, targets: NDArray[np.float32], seed: int
) -> NDArray[np.float32]:
    """Return initial rows: the teacher's vector of the piece, shorter if it is frequent.

    `pieces` are the ids of each text; a text of one piece, between [CLS] and [SEP], gives its row.
    """
    counts = np.bincount([*chain.from_iterable(pieces)], minlength=count)
    rows = np.random.default_rng(seed).standard_normal((count, targets.shape[1]))
    rows *= _UNSEEN / np.linalg.norm(rows, axis=1, keepdims=True)
    for number, row in enumerate(pieces):
        if len(row) == len(_SPECIAL):
            rows[row[1]] = targets[number]
    rows *= (_RARE / (_RARE + counts / counts.sum()))[:, None]
    return rows.astype(np.float32)


def train(
    rows: NDArray[np.float32],
    pieces: Sequence[Sequence[int]],
    targets: NDArray[np.float32],
    recipe: Recipe,
) -> NDArray[np.float64]:
    """Fit the direction of each text's sum of rows to the teacher's vector; return the rows.

    A share of each text's pieces is left out at each step, so that the others learn to represent
    it. Only rows with a piece in the batch change, so that rare pieces learn as well.
    """
    torch.manual_seed(recipe.seed)
    random = np.random.default_rng(recipe.seed)
    bag = torch.nn.EmbeddingBag.from_pretrained(
        torch.tensor(rows), freeze=False, mode="sum", sparse=True
    )
    optimizer = torch.optim.SparseAdam(bag.parameters(), lr=recipe.rate)
    steps = recipe.epochs * -(-len(pieces) // recipe.batch)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
    wanted, step, told = torch.from_numpy(targets), 0, time.monotonic()
    for _ in range(recipe.epochs):
        order = random.permutation(len(pieces))
        for first in range(0, len(order), recipe.batch):
            some = order[first : first + recipe.batch]
            sizes = torch.tensor([len(pieces[number]) for number in some])
            ids = torch.tensor([*chain.from_iterable(pieces[number] for number in some)])
            kept = torch.rand(len(ids)) >= recipe.dropped
            before = torch.nn.functional.pad(kept.cumsum(0), (1, 0))
            sums = bag(ids[kept], before[sizes.cumsum(0) - sizes])
            loss = 1.0 - torch.cosine_similarity(sums, wanted[torch.from_numpy(some)]).mean()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch's
            optimizer.step()
            schedule.step()
            step += 1
            if time.monotonic() - told > _TELL_SECONDS:
                told = time.monotonic()
                print(f"step {step} of {steps}, loss {loss.item():.4f}", file=sys.stderr)
    return bag.weight.detach().numpy().astype(np.float64)


def rank(engine: Embedder, folder: Path) -> dict[str, float]:
    """Return the mean reciprocal ranks of a model on the sets of questions, by vectors alone."""
    found = {}
    for name, of in _SETS.items():
        objects = json.loads((folder / f"{of}.json").read_text("utf-8"))["objects"]
        asked = json.loads((folder / f"{name}.json").read_text("utf-8"))
        wanted = np.array(asked.get("wanted", range(len(objects))))
        texts, questions = engine.embed(objects), engine.embed(asked["questions"])
        found[name] = round(float(check_set.reciprocal_ranks(texts, questions, wanted).mean()), 4)
    return found


def make_table(folder: Path, model: Path, into: Path, recipe: Recipe) -> dict[str, Any]:
    """Write the table into a new folder; return what its about.json has."""
    into.mkdir(parents=True)
    texts = json.loads((folder / "texts.json").read_text("utf-8"))["texts"]
    texts = texts[: recipe.most or None]
    words = make_tokenizer(model, texts)
    vocabulary = words["model"]["vocab"]
    # each word of the table is a text too: its vector is where its row begins
    every = list(dict.fromkeys([*texts, *filter(_WORD.fullmatch, vocabulary)]))
    began = time.monotonic()
    with open_engine("medium", model) as engine:
        targets = project(teacher_vectors(engine, every, folder / "vectors"), recipe.dimension)
        ranks = {"teacher": rank(engine, folder)}
    taught = time.monotonic()
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(words))
    pieces = [each.ids for each in tokenizer.encode_batch_fast(every)]
    rows = first_rows(pieces, len(vocabulary), targets, recipe.seed)
    static_table.write_table(into, train(rows, pieces, targets, recipe), words)
    table = StaticTable.read(into, LEVELS["static"].max_tokens)
    static_encoder.write_static_proof(static_encoder.StaticEncoder(table))
    seconds = {"teacher": round(taught - began), "training": round(time.monotonic() - taught)}
    with open_engine("static", into) as engine:
        ranks["static"] = rank(engine, folder)
    about = {"recipe": asdict(recipe), "texts": len(every), "pieces": len(vocabulary)}
    about |= {"seconds": seconds, "libraries": versions(("torch",)), "ranks": ranks}
    (into / "about.json").write_text(json.dumps(about, indent=1) + "\n", "utf-8")
    return about


def main() -> None:
    """Train a table with the parameters that are given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("into", type=Path)
    for each in fields(Recipe):
        parser.add_argument(f"--{each.name}", type=type(each.default), default=each.default)
    given = vars(parser.parse_args())
    paths = [given.pop(name) for name in ("folder", "model", "into")]
    config.load(os.environ)  # a misspelt setting is an error before hours of work
    print(json.dumps(make_table(*paths, Recipe(**given))))


if __name__ == "__main__":
    main()
