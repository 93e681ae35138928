"""Training of a student towards the teacher's vectors, with sentence-transformers' trainer.

This module and `student` are the only parts of op-dbus that need torch (extra `train`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import datasets
import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import (
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
    losses,
)
from sentence_transformers.base.sampler import DefaultBatchSampler
from transformers import PrinterCallback, TrainerCallback
from transformers.utils import logging

if TYPE_CHECKING:
    from opdbus.bench.measures import Notify
    from opdbus.distil.lesson import Lesson
    from opdbus.distil.recipe import Recipe, Request
    from opdbus.distil.student import Student

# Interval of progress reports; each checkpoint is reported too.
_TELL_SECONDS: Final = 10.0
# Number of batches whose texts are sorted by length together: enough for little padding, and few
# enough for random batches.
_SORTED: Final = 50


class _ToTeacher(losses.EmbedDistillLoss):  # type: ignore[misc]  # untyped where torch is not
    """Cosine loss to the teacher's vectors; labels are their indexes."""

    def __init__(self, student: Any, targets: NDArray[np.float32]) -> None:  # noqa: ANN401 -- torch's
        super().__init__(student, distance_metric="cosine")
        self.register_buffer("targets", torch.from_numpy(targets), persistent=False)

    def forward(self, sentence_features: Any, labels: Any) -> Any:  # noqa: ANN401 -- torch's
        """Return the loss of a batch."""
        return super().forward(sentence_features, self.targets[labels])


class _ByLength(DefaultBatchSampler):  # type: ignore[misc]  # untyped where torch is not
    """Sampler of batches of similar length: padding is the largest waste of a transformer."""

    def __init__(self, dataset: Any, batch_size: int, seed: int = 0, **more: Any) -> None:  # noqa: ANN401
        super().__init__(range(len(dataset)), batch_size=batch_size, seed=seed, **more)
        column = dataset.column_names[0]
        self._lengths = np.array([len(text) for text in dataset[column]])

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the text indexes of each batch; they depend on seed and epoch only."""
        random = np.random.default_rng((self.seed or 0, self.epoch))
        order, size = random.permutation(len(self._lengths)), self.batch_size
        batches: list[list[int]] = []
        for first in range(0, len(order), size * _SORTED):
            some = order[first : first + size * _SORTED]
            some = some[np.argsort(self._lengths[some], kind="stable")]
            batches += [some[at : at + size].tolist() for at in range(0, len(some), size)]
        for number in random.permutation(len(batches)):
            yield batches[number]


class _Progress(TrainerCallback):  # type: ignore[misc]  # untyped where torch is not
    """Callback that reports progress, and requests a checkpoint every `keep` seconds."""

    def __init__(self, notify: Notify, keep: float) -> None:
        self._notify, self._keep = notify, keep
        self._told = self._kept = self._began = time.monotonic()
        self._first = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ANN401, ARG002
        """Remember the step at which training starts or continues."""
        self._first = state.global_step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ANN401, ARG002
        """Request a checkpoint or a report if it is due."""
        now = time.monotonic()
        if now - self._kept >= self._keep:
            control.should_save, self._kept = True, now
        if control.should_save or now - self._told >= _TELL_SECONDS:
            control.should_log, self._told = True, now

    def on_log(self, args: Any, state: Any, control: Any, logs: Any, **_: Any) -> None:  # noqa: ANN401, ARG002
        """Report the step, the loss and the remaining time."""
        if "loss" in logs:
            pace = (time.monotonic() - self._began) / max(1, state.global_step - self._first)
            left = (state.max_steps - state.global_step) * pace
            self._notify(
                f"training: step {state.global_step} of {state.max_steps},"
                f" loss {logs['loss']:.4f}, {left:.0f} s left"
            )


class _Trainer(SentenceTransformerTrainer):  # type: ignore[misc]  # untyped where torch is not
    """The trainer without its model card, for which it would embed some of the texts."""

    def add_model_card_callback(self, default_args_dict: dict[str, Any]) -> None:
        """Add no callback."""


def prepare(seed: int) -> None:
    """Seed torch's random numbers, and silence the libraries."""
    torch.manual_seed(seed)
    logging.set_verbosity_error()
    logging.disable_progress_bar()


def train(
    student: Student,
    lesson: Lesson,
    vectors: NDArray[np.float32],
    request: Request,
    work: Path,
    notify: Notify,
) -> int:
    """Train a student on a lesson; `vectors` are those of all its texts; return the steps.

    Continues from the last checkpoint in `work`.
    """
    texts = [lesson.every[number] for number in lesson.learned]
    data = {"texts": datasets.Dataset.from_dict({"text": texts, "label": range(len(texts))})}
    loss = {"texts": _ToTeacher(student.model, vectors[lesson.learned])}
    if lesson.pairs:
        questions, answers = zip(*lesson.pairs, strict=True)
        data["pairs"] = datasets.Dataset.from_dict({"question": questions, "answer": answers})
        loss["pairs"] = losses.MultipleNegativesRankingLoss(student.model)
    trainer = _Trainer(
        student.model,
        _arguments(request.recipe, work),
        train_dataset=data,
        loss=loss,
        optimizers=(student.optimizer, None),
        callbacks=[_Progress(notify, request.keep_seconds)],
    )
    # it prints what `_Progress` reports already
    trainer.remove_callback(PrinterCallback)
    last = _last_checkpoint(work)
    if last:
        notify(f"training: goes on from {last}")
    return int(trainer.train(resume_from_checkpoint=str(last) if last else None).global_step)


def _arguments(recipe: Recipe, work: Path) -> Any:  # noqa: ANN401 -- sentence-transformers'
    return SentenceTransformerTrainingArguments(
        output_dir=str(work),
        num_train_epochs=recipe.epochs,
        per_device_train_batch_size=recipe.batch,
        learning_rate=recipe.rate,
        warmup_steps=recipe.warm_up,
        lr_scheduler_type="linear",
        batch_sampler=_ByLength if recipe.to == "layers" else "batch_sampler",
        seed=recipe.seed,
        data_seed=recipe.seed,
        logging_strategy="no",
        save_strategy="no",
        save_total_limit=1,
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=torch.cuda.is_available(),
    )


def _last_checkpoint(work: Path) -> Path | None:
    """Return the last complete checkpoint: the file that is written last can be read."""
    for path in sorted(work.glob("checkpoint-*"), key=_step, reverse=True):
        try:
            json.loads((path / "trainer_state.json").read_bytes())
        except (OSError, ValueError):
            continue
        return path
    return None


def _step(path: Path) -> int:
    return int(path.name.rpartition("-")[2])
