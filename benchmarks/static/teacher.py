"""The teacher's vectors of all texts, in files of 4,096: goes on where it was stopped."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Final

import numpy as np

from opdbus.api import Embedder

PART: Final = 4096


def main() -> None:
    """Write the vectors of texts.json, and of the objects and questions of dev and test."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", help="the teacher's folder", required=True)
    parser.add_argument("--level", default="medium")
    given = parser.parse_args()
    into = given.folder / "vectors"
    into.mkdir(exist_ok=True)
    wanted = {}
    for name in ("dev", "test", "asked"):
        found = json.loads((given.folder / f"{name}.json").read_text("utf-8"))
        wanted |= {f"{name}-{key}": found[key] for key in ("objects", "questions") if key in found}
    texts = json.loads((given.folder / "texts.json").read_text("utf-8"))["texts"]
    for first in range(0, len(texts), PART):
        wanted[f"{first // PART:04}"] = texts[first : first + PART]
    with Embedder(given.level, model=given.model, precision="fp32", threads=1) as teacher:
        for name, part in wanted.items():
            path, began = into / f"{name}.npy", time.monotonic()
            if not path.exists():
                vectors = teacher.embed(part).astype(np.float16)
                np.save(path.with_suffix(".part.npy"), vectors)
                path.with_suffix(".part.npy").rename(path)
                print(name, round(len(part) / (time.monotonic() - began)), "texts/s", flush=True)


if __name__ == "__main__":
    main()
