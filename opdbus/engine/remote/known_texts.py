"""Known texts: made at random on this host, with their vectors by the numpy reference."""

from __future__ import annotations

import asyncio
import hashlib
import json
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from opdbus.engine import check_set
from opdbus.engine.tokenizer import LibraryTokenizer
from opdbus.errors import ModelError
from opdbus.models import build, child
from opdbus.models.shape import Shape
from opdbus.platform.regular_files import read_regular, replace_file

if TYPE_CHECKING:
    from opdbus.models.folder import Model

# Words of the texts. The last one is longer than the limit of a model, and is cut there. The
# reference takes milliseconds for a token.
_SIZES: Final = (1, 1, 2, 2, 3, 3, 4, 4, *range(5, 25), 32, 48, 400)
# Share of words that are made up, as host names, addresses and versions are.
_MADE_UP: Final = 0.2
_SIGNS: Final = "abcdefghijklmnopqrstuvwxyz0123456789.-/é"
# One known text for so many others, and at least one in each batch.
_EVERY: Final = 20
# Known texts from which those of a small batch are drawn: the shortest ones.
_SHORT: Final = 12
# Characters of a text that is no question of a user's.
_UNMISTAKABLE: Final = 24

_random: Final = SystemRandom()


@dataclass(frozen=True)
class KnownTexts:
    """Texts, shortest first, and their right vectors (texts, dimension); of the empty text too.

    They are made anew for each host and model, so that a server cannot tell them from others.
    """

    texts: tuple[str, ...]
    vectors: NDArray[np.float32]
    empty: NDArray[np.float32]

    @property
    def dimension(self) -> int:
        """The length of every vector."""
        return len(self.empty)

    @cached_property
    def unmistakable(self) -> frozenset[str]:
        """The texts that nobody else would ask for; a word alone somebody might."""
        return frozenset(text for text in self.texts if len(text) >= _UNMISTAKABLE)

    def draw(self, count: int) -> list[int]:
        """Draw the numbers of known texts to send with a batch of `count` texts."""
        most = len(self.texts) if count >= _EVERY else _SHORT
        return _random.sample(range(most), self.share(count))

    def share(self, count: int) -> int:
        """Return the number of known texts for `count` texts."""
        return max(1, count // _EVERY)


def shuffled(numbers: Sequence[int]) -> list[int]:
    """Return numbers in a random order."""
    return _random.sample(numbers, len(numbers))


def mix(texts: list[str], known: list[str]) -> tuple[list[str], NDArray[np.bool_]]:
    """Put known texts at random places; return all texts, and where they are known ones."""
    places = [True] * len(known) + [False] * len(texts)
    is_known = np.array(_random.sample(places, len(places)), np.bool_)
    sources = iter(texts), iter(known)
    return [next(sources[each]) for each in is_known.astype(int).tolist()], is_known


async def ensure(model: Model, cache: Path) -> KnownTexts:
    """Return a model's known texts; a child process makes them at first, which takes seconds.

    Raises ModelError.
    """
    identity = f"{build.identify(model)} {model.tokenizer_sha256}"
    path = cache / f"{hashlib.sha256(identity.encode()).hexdigest()[:32]}.json"
    known = await asyncio.to_thread(_read, path)
    if known is None:
        try:
            await child.run(
                "opdbus.engine.remote.known_texts",
                weights=str(model.weights),
                tokenizer=str(model.tokenizer),
                shape=asdict(model.shape),
                path=str(path),
            )
        except child.ChildFailed as fault:
            raise ModelError(f"cannot make known texts for {model.name}: {fault}") from None
        known = await asyncio.to_thread(_read, path)
    if known is None:
        raise ModelError(f"cannot read {path}; delete it, it is then made again")
    return known


def _read(path: Path) -> KnownTexts | None:
    """Read a file of known texts; None if it is missing or damaged."""
    try:
        saved = json.loads(read_regular(path))
        vectors = np.frombuffer(b64decode(saved["vectors"]), "<f4").reshape(len(saved["texts"]), -1)
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    return KnownTexts(tuple(saved["texts"][1:]), vectors[1:], vectors[0])


def make_texts(random: SystemRandom = _random) -> list[str]:
    """Make texts of all sizes from the words of the check set, the empty text first."""
    texts, questions, _ = check_set.read_questions()
    words = " ".join([*texts, *questions]).split(" ")
    made = [""]
    for size in _SIZES:
        drawn = random.choices(words, k=size)
        for number in range(size):
            if random.random() < _MADE_UP:
                drawn[number] = "".join(random.choices(_SIGNS, k=random.randint(2, 9)))
        made.append(" ".join(drawn))
    return made


def _make(request: dict[str, Any]) -> str:
    """Write the file that `ensure` requests, in the child; raises ModelError, OSError."""
    # imported here, because only the child process needs copies of the weights
    from opdbus.models import reference, weights

    child.go_second()
    shape = Shape(**request["shape"])
    tokenizer = LibraryTokenizer(Path(request["tokenizer"]), shape.max_tokens)
    texts = [tokenizer.cut(text) for text in make_texts()]
    rows = [ids.tolist() for ids in tokenizer.encode(texts)]
    arrays = weights.read_weights(Path(request["weights"]))
    vectors = np.concatenate([reference.forward(shape, arrays, [row]) for row in rows])
    packed = b64encode(vectors.astype("<f4").tobytes()).decode()
    path = Path(request["path"])
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace_file(path, json.dumps({"texts": texts, "vectors": packed}))
    return ""


if __name__ == "__main__":
    child.answer(_make)
