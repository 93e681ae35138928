"""Trains a static table: each text's sum of rows is to point where the teacher's vector points.

Runs where torch is. Tables are chosen by dev.json alone; test.json and the check sets are for the
report.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import tokenizers
import torch
from numpy.typing import NDArray
from torch.nn import functional

from opdbus.bench import machine
from opdbus.engine import static_proof
from opdbus.engine.static_encoder import StaticEncoder
from opdbus.models import static_table
from opdbus.models.static_table import StaticTable

SEED: Final = 14
MAX_TOKENS: Final = 512
# The start of a row is this much shorter the more often the piece is seen: Arora et al., "A Simple
# but Tough-to-Beat Baseline for Sentence Embeddings".
_RARE: Final = 1e-3


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a table is trained."""

    dimension: int = 256
    epochs: int = 12
    batch: int = 1024
    rate: float = 0.01
    # of the pieces of a text, those left out at random
    dropped: float = 0.0
    # how much it counts that the texts of a batch are as alike as the teacher finds them
    relations: float = 0.0
    words: int = 1 << 20


@dataclass(frozen=True, slots=True)
class Corpus:
    """Texts as ids, one after the other, and the teacher's vectors of them."""

    ids: NDArray[np.int64]
    first: NDArray[np.int64]
    targets: NDArray[np.float32]
    # the ids of texts that are one piece only
    single: dict[int, int]

    def batch(self, chosen: NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the ids, offsets and targets of some texts."""
        counts = self.first[chosen + 1] - self.first[chosen]
        offsets = counts.cumsum() - counts
        at = np.repeat(self.first[chosen] - offsets, counts) + np.arange(counts.sum())
        return (
            torch.from_numpy(self.ids[at]),
            torch.from_numpy(offsets),
            torch.from_numpy(self.targets[chosen]),
        )


def words_of(tokenizer: Path, more: Sequence[str]) -> dict[str, Any]:
    """Return the teacher's tokenizer with more words, without a limit of its own."""
    words: dict[str, Any] = json.loads(tokenizer.read_bytes())
    vocabulary = words["model"]["vocab"]
    for word in more:
        vocabulary.setdefault(word, len(vocabulary))
    words["truncation"] = words["padding"] = None
    return words


def read(folder: Path, words: dict[str, Any], dimension: int) -> Corpus:
    """Read the texts that the teacher has embedded, its vectors in their main directions."""
    parts = sorted((folder / "vectors").glob("[0-9]*[0-9].npy"))
    vectors = np.concatenate([np.load(part) for part in parts]).astype(np.float32)
    texts = json.loads((folder / "texts.json").read_text("utf-8"))["texts"][: len(vectors)]
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(words))
    rows = [encoding.ids for encoding in tokenizer.encode_batch_fast(texts)]
    targets = vectors @ directions(vectors, dimension)
    targets /= np.linalg.norm(targets, axis=1, keepdims=True)
    return Corpus(
        np.concatenate([np.array(row) for row in rows]),
        np.concatenate(([0], np.cumsum([len(row) for row in rows]))),
        targets,
        {row[1]: number for number, row in enumerate(rows) if len(row) == 3},
    )


def directions(vectors: NDArray[np.float32], dimension: int) -> NDArray[np.float32]:
    """Return the main directions (384, dimension) of vectors, around 0: cosines are kept."""
    _, found = np.linalg.eigh(vectors.T @ vectors)
    main: NDArray[np.float32] = found[:, ::-1][:, :dimension].astype(np.float32)
    return main


def start(corpus: Corpus, pieces: int) -> torch.Tensor:
    """Return rows to begin with: the teacher's vector of the word, shorter if it is frequent."""
    shares = np.bincount(corpus.ids, minlength=pieces) / len(corpus.ids)
    rows = np.random.default_rng(SEED).standard_normal((pieces, corpus.targets.shape[1]))
    rows *= 0.3 / np.linalg.norm(rows, axis=1, keepdims=True)
    for piece, text in corpus.single.items():
        rows[piece] = corpus.targets[text]
    rows *= (_RARE / (_RARE + shares))[:, None]
    return torch.from_numpy(rows.astype(np.float32))


def train(corpus: Corpus, pieces: int, recipe: Recipe) -> NDArray[np.float32]:
    """Return the rows (pieces, dimension)."""
    torch.manual_seed(SEED)
    bag = torch.nn.EmbeddingBag.from_pretrained(
        start(corpus, pieces), freeze=False, mode="sum", sparse=True
    )
    texts = len(corpus.first) - 1
    steps = recipe.epochs * -(-texts // recipe.batch)
    optimizer = torch.optim.SparseAdam(bag.parameters(), lr=recipe.rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    for number, chosen in enumerate(_batches(texts, recipe)):
        ids, offsets, targets = corpus.batch(chosen)
        kept = (torch.rand(len(ids)) >= recipe.dropped).float() if recipe.dropped else None
        found = functional.normalize(bag(ids, offsets, per_sample_weights=kept))
        loss = _loss(found, targets, recipe)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call] -- torch's
        optimizer.step()
        schedule.step()
        if number % 200 == 0:
            print(f"step {number} of {steps}, loss {loss.item():.4f}", flush=True)
    return bag.weight.detach().numpy()


def _batches(texts: int, recipe: Recipe) -> Iterator[NDArray[np.int64]]:
    random = np.random.default_rng(SEED)
    for _ in range(recipe.epochs):
        order = random.permutation(texts)
        for first in range(0, texts, recipe.batch):
            yield order[first : first + recipe.batch]


def _loss(found: torch.Tensor, targets: torch.Tensor, recipe: Recipe) -> torch.Tensor:
    loss = (1 - (found * targets).sum(dim=1)).mean()
    if recipe.relations:
        alike = functional.mse_loss(found @ found.T, targets @ targets.T)
        loss = loss + recipe.relations * alike
    return loss


def mean_reciprocal_rank(
    objects: NDArray[np.float32], questions: NDArray[np.float32], wanted: NDArray[np.int64]
) -> float:
    """Return the mean of 1 / rank of the object that each question asks for."""
    found = questions.astype(np.float32) @ objects.astype(np.float32).T
    own = found[np.arange(len(wanted)), wanted][:, None]
    return round(float((1 / (1 + (found > own).sum(axis=1))).mean()), 4)


def grade(folder: Path, encoder: StaticEncoder) -> dict[str, dict[str, float]]:
    """Return the mean reciprocal ranks of a table and of its teacher on the sets of questions."""
    figures = {}
    for name, objects in (("dev", "dev"), ("asked", "dev"), ("test", "test")):
        sets = json.loads((folder / f"{name}.json").read_text("utf-8"))
        texts = json.loads((folder / f"{objects}.json").read_text("utf-8"))["objects"]
        wanted = np.array(sets.get("wanted", range(len(texts))))
        ours = [encoder.encode(part).vectors for part in (texts, sets["questions"])]
        paths = (f"vectors/{objects}-objects.npy", f"vectors/{name}-questions.npy")
        theirs = [np.load(folder / path) for path in paths]
        figures[name] = {
            "static": mean_reciprocal_rank(ours[0], ours[1], wanted),
            "teacher": mean_reciprocal_rank(theirs[0], theirs[1], wanted),
        }
    return figures


def main() -> None:
    """Train a table, write it into a folder, and say how it was made."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="what corpus.py and teacher.py wrote")
    parser.add_argument("tokenizer", type=Path, help="tokenizer.json of the teacher")
    parser.add_argument("into", type=Path)
    for name, value in asdict(Recipe()).items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    given = vars(parser.parse_args())
    folder, into = given.pop("folder"), given.pop("into")
    tokenizer, recipe = given.pop("tokenizer"), Recipe(**given)
    torch.set_num_threads(1)
    began = time.monotonic()
    more = json.loads((folder / "texts.json").read_text("utf-8"))["words"][: recipe.words]
    words = words_of(tokenizer, more)
    corpus = read(folder, words, recipe.dimension)
    rows = train(corpus, len(words["model"]["vocab"]), recipe)
    static_table.write(into, rows.astype(np.float64), words)
    encoder = StaticEncoder(StaticTable.read(into, MAX_TOKENS))
    static_proof.record(encoder)
    about = {
        "recipe": asdict(recipe),
        "seed": SEED,
        "texts": len(corpus.first) - 1,
        "pieces": len(rows),
        "seconds": round(time.monotonic() - began),
        "machine": asdict(machine.describe()),
        "torch": torch.__version__,
        "ranks": grade(folder, encoder),
    }
    (into / "about.json").write_text(json.dumps(about, indent=1) + "\n", "utf-8")
    print(json.dumps(about))


if __name__ == "__main__":
    main()
