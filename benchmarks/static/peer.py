"""The library model2vec with our table, on one core, in an environment of its own.

It cannot import op-dbus. Reads the folder of a table and a file of texts; writes JSON to stdout.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import model2vec
import numpy as np
import tokenizers

_ROUNDS = 7


def opened(folder: Path) -> model2vec.StaticModel:
    """Make the library's model of our rows and words."""
    table = np.load(folder / "table.npy")
    rows = table["row"] * table["scale"][:, None]
    words = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    return model2vec.StaticModel(rows, words, normalize=True)


def seconds(model: model2vec.StaticModel, texts: list[str]) -> float:
    """Return the least seconds that all texts take."""
    taken = []
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        model.encode(texts, use_multiprocessing=False)
        taken.append(time.perf_counter() - began)
    return min(taken)


def main() -> None:
    """Print texts a second of each kind."""
    folder, kinds = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_bytes())
    model = opened(folder)
    rates = {kind: round(len(texts) / seconds(model, texts)) for kind, texts in kinds.items()}
    print(json.dumps({"version": model2vec.__version__, **rates}))


if __name__ == "__main__":
    main()
