"""The two kinds of students, as sentence-transformers trains them, and how each is written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tokenizers
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding, Transformer

from opdbus.engine import static_proof
from opdbus.engine.static_encoder import StaticEncoder
from opdbus.models import formats, static_table
from opdbus.models.catalogue import LEVELS
from opdbus.models.static_table import StaticTable

if TYPE_CHECKING:
    from opdbus.distil.recipe import Recipe
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


def table(words: dict[str, Any], rows: NDArray[np.float32], recipe: Recipe) -> Student:
    """Return a student that is a static table with this tokenizer and these initial rows."""
    bag = _Bag(tokenizers.Tokenizer.from_str(json.dumps(words)), rows)
    bag.dropped = recipe.dropped
    model = SentenceTransformer(modules=[bag])

    def write(into: Path) -> None:
        made = bag.embedding.weight.detach().cpu().numpy().astype(np.float64)
        static_table.write(into, made, words)
        limit = LEVELS["static"].max_tokens
        static_proof.record(StaticEncoder(StaticTable.read(into, limit)))

    return Student(model, _ByRow(model.parameters(), lr=recipe.rate), write)


def layers(teacher: Model, recipe: Recipe) -> Student:
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
        for name in formats.TRANSFORMER.files:
            if name != formats.WEIGHTS and (teacher.folder / name).is_file():
                (into / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(teacher.folder / name, into / name)
        config = json.loads((into / "config.json").read_bytes()) | {"num_hidden_layers": count}
        (into / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
        # the teacher's limit may come from its level, so it is written here
        (into / formats.LIMIT).write_text(json.dumps({"max_seq_length": limit}) + "\n", "utf-8")
        tensors = inner.state_dict().items()
        # the pooler is not part of these models, even if their files contain one
        state = {name: each.cpu().contiguous() for name, each in tensors if "pooler" not in name}
        save_file(state, into / formats.WEIGHTS)

    return Student(model, None, write)
