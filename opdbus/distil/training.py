"""Training of a student, a table or layers, towards the teacher's vectors, and how it is written.

Only this module needs torch and sentence-transformers (extra `train`).
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import datasets
import numpy as np
import tokenizers
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
    losses,
)
from sentence_transformers.base.sampler import DefaultBatchSampler
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding, Transformer
from transformers import PrinterCallback, TrainerCallback
from transformers.utils import logging

from opdbus.engine import static_encoder
from opdbus.engine.static_encoder import StaticEncoder
from opdbus.models import level_table, static_table
from opdbus.models.level_table import LEVELS
from opdbus.models.static_table import StaticTable

if TYPE_CHECKING:
    from opdbus.bench.measures import Notify
    from opdbus.distil.lesson import Lesson, Recipe, Request
    from opdbus.models.folder import Model


@dataclass(frozen=True, slots=True)
class Student:
    """A model to train, its optimizer, and a function that writes the engine's folder."""

    model: Any
    # None for the trainer's own optimizer
    optimizer: Any
    write: Callable[[Path], None]


class _Bag(StaticEmbedding):  # type: ignore[misc]  # untyped where torch is not
    """A table that is summed as in the engine: [CLS] and [SEP] count too.

    In training, a share of each text's pieces is dropped, so that the others learn to represent it.
    """

    dropped = 0.0

    def preprocess(self, inputs: list[str], prompt: str | None = None, **_: Any) -> dict[str, Any]:  # noqa: ANN401, ARG002
        """Return the concatenated pieces of texts, and the start of each text."""
        found = [encoded.ids for encoded in self.tokenizer.encode_batch_fast(inputs)]
        counts = torch.tensor([len(each) for each in found])
        ids = torch.tensor([*chain.from_iterable(found)])
        return {"input_ids": ids, "offsets": counts.cumsum(0) - counts}

    def forward(self, features: dict[str, Any], **more: Any) -> Any:  # noqa: ANN401 -- torch's
        """Return the sums of texts; in training, without the dropped pieces."""
        # Drop here and not in `preprocess`: batches are prepared ahead of a checkpoint's random
        # state.
        if self.training and self.dropped:
            ids, first = features["input_ids"], features["offsets"]
            kept = torch.rand(len(ids), device=ids.device) >= self.dropped
            before = torch.nn.functional.pad(kept.cumsum(0), (1, 0))
            features = features | {"input_ids": ids[kept], "offsets": before[first]}
        return super().forward(features, **more)


class _ByRow(torch.optim.SparseAdam):  # type: ignore[misc]  # untyped where torch is not
    """Adam that changes only rows with a piece in the batch, so that rare pieces learn as well.

    It takes the dense gradients that the trainer measures.
    """

    def step(self, closure: Any = None) -> Any:  # noqa: ANN401 -- torch's
        """Update the rows that have a gradient."""
        for group in self.param_groups:
            for weights in group["params"]:
                whole = weights.grad
                # torch's own `to_sparse` takes 300 times as long
                rows = whole.abs().amax(1).nonzero().squeeze(1)
                weights.grad = torch.sparse_coo_tensor(
                    rows[None], whole[rows], whole.shape, check_invariants=False
                )
        return super().step(closure)


def table_student(words: dict[str, Any], rows: NDArray[np.float32], recipe: Recipe) -> Student:
    """Return a student that is a static table with this tokenizer and these initial rows."""
    bag = _Bag(tokenizers.Tokenizer.from_str(json.dumps(words)), rows)
    bag.dropped = recipe.dropped
    model = SentenceTransformer(modules=[bag])

    def write(into: Path) -> None:
        made = bag.embedding.weight.detach().cpu().numpy().astype(np.float64)
        static_table.write_table(into, made, words)
        limit = LEVELS["static"].max_tokens
        static_encoder.write_static_proof(StaticEncoder(StaticTable.read(into, limit)))

    return Student(model, _ByRow(model.parameters(), lr=recipe.rate), write)


def layer_student(teacher: Model, recipe: Recipe) -> Student:
    """Return a student of some of the teacher's layers, evenly spread, the last among them."""
    limit = teacher.shape.max_tokens
    transformer = Transformer(str(teacher.folder), max_seq_length=limit)
    inner = transformer.auto_model
    count, all_ = recipe.layers, teacher.shape.layers
    kept = [(number + 1) * all_ // count - 1 for number in range(count)]
    inner.encoder.layer = torch.nn.ModuleList(inner.encoder.layer[number] for number in kept)
    inner.config.num_hidden_layers = count
    model = SentenceTransformer(modules=[transformer, Pooling(teacher.shape.hidden, "mean")])

    def write(into: Path) -> None:
        for name in level_table.TRANSFORMER.files:
            if name != level_table.WEIGHTS and (teacher.folder / name).is_file():
                (into / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(teacher.folder / name, into / name)
        config = json.loads((into / "config.json").read_bytes()) | {"num_hidden_layers": count}
        (into / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
        # the teacher's limit may come from its level, so it is written here
        (into / level_table.LIMIT).write_text(json.dumps({"max_seq_length": limit}) + "\n", "utf-8")
        tensors = inner.state_dict().items()
        # the pooler is not part of these models, even if their files contain one
        state = {name: each.cpu().contiguous() for name, each in tensors if "pooler" not in name}
        save_file(state, into / level_table.WEIGHTS)

    return Student(model, None, write)


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


def seed_torch(seed: int) -> None:
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
