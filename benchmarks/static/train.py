"""Trains a student on the texts of corpus.py, as `op-dbus distil` does, and ranks dev and asked.

Students are chosen by dev and asked alone; test is for the report. Runs where torch is.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from opdbus import config
from opdbus.api import Embedder
from opdbus.distil import distillation, loss_report, teacher
from opdbus.distil.lesson import RECIPES, Recipe, Request

# Each set of questions, and the set whose objects they ask for.
SETS = {"dev": "dev", "asked": "dev", "test": "test"}


def ranks(engine: Embedder, folder: Path) -> dict[str, float]:
    """Return the mean reciprocal ranks of a model on the sets of questions, by vectors alone."""
    found = {}
    for name, of in SETS.items():
        texts = json.loads((folder / f"{of}.json").read_text("utf-8"))["objects"]
        asked = json.loads((folder / f"{name}.json").read_text("utf-8"))
        wanted = np.array(asked.get("wanted", range(len(texts))))
        questions = loss_report.Questions(texts, asked["questions"], wanted)
        found[name] = round(float(questions.ranks(engine).mean()), 4)
    return found


def arguments() -> dict[str, Any]:
    """Read the arguments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="what corpus.py wrote")
    parser.add_argument("teacher", type=Path, help="the folder of the model to imitate")
    parser.add_argument("into", type=Path)
    parser.add_argument("--most", type=int, help="no more texts than that")
    for name, value in asdict(RECIPES["static"]).items():
        parser.add_argument(f"--{name}", type=type(value))
    return vars(parser.parse_args())


def main() -> None:
    """Train a student, and add its ranks and its teacher's to what it says about itself."""
    given, settings = arguments(), config.load(os.environ)
    folder, model, into = (given.pop(name) for name in ("folder", "teacher", "into"))
    texts = json.loads((folder / "texts.json").read_text("utf-8"))["texts"][: given.pop("most")]
    chosen = {name: value for name, value in given.items() if value is not None}
    recipe: Recipe = replace(RECIPES[chosen.get("to", "static")], **chosen)
    request = Request(model, into, recipe, tuple(texts), work=folder / "work")
    about = distillation.distil(request, settings, partial(print, file=sys.stderr, flush=True))
    level = teacher.read_teacher(model).level
    about["sets"] = {}
    for name, its, path in (
        ("teacher", level, model),
        ("student", "static" if recipe.to == "static" else level, into),
    ):
        with teacher.make_engine(its, path, settings) as engine:
            about["sets"][name] = ranks(engine, folder)
    (into / distillation.ABOUT).write_text(json.dumps(about, indent=1) + "\n", "utf-8")
    print(json.dumps(about))


if __name__ == "__main__":
    main()
