"""Distillation from texts to a proven folder; continues where it was stopped."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from opdbus.bench import machine
from opdbus.distil import loss_report, teacher
from opdbus.distil.host_texts import plain
from opdbus.distil.lesson import Lesson, Request
from opdbus.engine.host import versions
from opdbus.errors import ConfigError
from opdbus.models import files
from opdbus.platform import pip

if TYPE_CHECKING:
    from opdbus.bench.measures import Notify
    from opdbus.config import Config
    from opdbus.models.folder import Model

ABOUT: Final = "about.json"
# Folder of a student until it is proven.
MADE: Final = "made"
LEAST_TEXTS: Final = 100
_LIBRARIES: Final = ("torch", "sentence-transformers", "onnxruntime", "onnxruntime-gpu")


def distil(request: Request, given: Config, notify: Notify) -> dict[str, Any]:
    """Train a student, write its folder, and return the report, which is stored there too.

    Raises ConfigError if training is impossible, ModelError if the teacher cannot be read.
    """
    model = teacher.read_teacher(request.teacher)
    _require_possible(request, model)
    work = (request.work or request.into.with_name(request.into.name + ".part")).absolute()

    def refuse() -> None:
        raise ConfigError(f"another `op-dbus distil` works in {work}: wait for it, or end it")

    try:
        files.make_folder(work)
        with files.locked(work / "lock", refuse):
            made = _distil_in(work, request, model, given, notify)
        if request.work is None:
            shutil.rmtree(work)
    except OSError as error:
        where = error.filename or "a file"
        raise ConfigError(
            f"cannot use {where}: {error.strerror or error}; mend that and give the same command"
            " again: it goes on where it was stopped"
        ) from None
    return made


def _distil_in(
    work: Path, request: Request, model: Model, given: Config, notify: Notify
) -> dict[str, Any]:
    """Distil with `work` as the folder of vectors and checkpoints, which another run reuses."""
    began = time.monotonic()
    words = teacher.make_tokenizer(model, request.texts) if request.recipe.to == "static" else None
    lesson = Lesson.of(request, plain(words["model"]["vocab"]) if words else [])
    sets = {"check set": loss_report.Questions.check_set()}
    if lesson.asked:
        sets["pairs"] = loss_report.Questions.of_pairs(lesson.asked)
    with teacher.make_engine(model.level, model.folder, given) as engine:
        vectors = teacher.vectors(engine, lesson.every, work, notify)
        before = loss_report.measure(engine, lesson.measured, sets)
    taught = time.monotonic()
    # checkpoints depend on these inputs
    inputs = (model.weights_sha256, asdict(request.recipe), request.texts, request.pairs)
    place = work / f"steps-{hashlib.sha256(json.dumps(inputs).encode()).hexdigest()[:16]}"
    files.make_folder(place)
    main, targets = None, vectors
    if words:
        # when training continues, the stored directions are used
        directions = partial(teacher.main_directions, vectors, request.recipe.dimension)
        main = teacher.load_or_make(place / "directions.npy", directions)
        targets = teacher.project(vectors, main)
    steps = _train(request, model, lesson, targets, words, place, notify)
    trained = time.monotonic()
    with teacher.make_engine("static" if words else model.level, work / MADE, given) as engine:
        after = loss_report.measure(engine, lesson.measured, sets)
    about = {
        "teacher": {"name": model.name, "sha256": model.weights_sha256},
        "recipe": asdict(request.recipe),
        "texts": len(lesson.learned),
        "pairs": len(lesson.pairs),
        "machine": asdict(machine.describe()),
        "libraries": versions(_LIBRARIES),
        "steps": steps,
        **loss_report.compare(before, after, main),
        # seconds of this run, without those of an earlier one
        "seconds": {"teacher": round(taught - began), "training": round(trained - taught)},
    }
    files.write_whole(work / MADE / ABOUT, json.dumps(about, indent=1) + "\n")
    files.settle(work / MADE)
    shutil.move(work / MADE, request.into)
    shutil.rmtree(place)
    return about


def _train(
    request: Request,
    model: Model,
    lesson: Lesson,
    targets: NDArray[np.float32],
    words: dict[str, Any] | None,
    place: Path,
    notify: Notify,
) -> int:
    from opdbus.distil import training

    training.seed_torch(request.recipe.seed)
    if words:
        rows = teacher.first_rows(words, lesson.every, targets, request.recipe.seed)
        made = training.table_student(words, rows, request.recipe)
    else:
        made = training.layer_student(model, request.recipe)
    steps = training.train(made, lesson, targets, request, place, notify)
    into = place.with_name(MADE)
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir()
    made.write(into)
    return steps


def _require_possible(request: Request, model: Model) -> None:
    recipe, teaches = request.recipe, model.shape
    if request.into.exists():
        raise ConfigError(f"{request.into} is there already: remove it, or name another folder")
    if recipe.to == "layers" and recipe.layers >= teaches.layers:
        raise ConfigError(
            f"{model.folder} has {teaches.layers} layers: --layers must be less than that"
        )
    if recipe.to == "static" and recipe.dimension > teaches.hidden:
        raise ConfigError(
            f"{model.folder} gives vectors of {teaches.hidden} numbers: --dimension may be that at"
            " most"
        )
    if len(request.texts) < LEAST_TEXTS:
        raise ConfigError(
            f"{len(request.texts)} texts are too few to learn from: give {LEAST_TEXTS} at least, of"
            " the kind that will be searched, one a line, with --texts"
        )
    try:
        from opdbus.distil import training  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "training needs torch and sentence-transformers, which are not installed or too old"
            f" ({error}): {pip.install('--upgrade op-dbus[train]')}"
        ) from None
