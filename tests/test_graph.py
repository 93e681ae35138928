"""The ONNX graph against the plain numpy model."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import weights as tiny_weights

from opdbus.engine.providers import PROVIDERS
from opdbus.engine.session import OnnxSession
from opdbus.models import build, folder, graph, reference
from opdbus.models.catalogue import LEVELS
from opdbus.models.folder import Shape
from opdbus.models.weights import read

Tiny = tuple[OnnxSession, Shape, dict[str, np.ndarray]]


def opened(made: Path) -> OnnxSession:
    """Open a built graph, recording nothing."""
    session = OnnxSession(
        build.Built(made).graph, PROVIDERS["cpu:onnxruntime"], threads=1, device=0
    )
    session.run(np.zeros((1, 2), np.int64))
    session.finish_profile()
    return session


@pytest.fixture(scope="module")
def tiny(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """Build and open the tiny model, with what the reference needs."""
    made = tmp_path_factory.mktemp("graphs") / "tiny"
    shape = folder.read(tiny_model, LEVELS["medium"]).shape
    build.write(tiny_model / "model.safetensors", made, shape)
    return opened(made), shape, dict(read(tiny_model / "model.safetensors"))


@settings(deadline=None, max_examples=60)
@given(rows=st.integers(1, 6), length=st.integers(1, 48), seed=st.integers(0, 2**32 - 1))
def test_graph_equals_numpy(tiny: Tiny, rows: int, length: int, seed: int) -> None:
    """Give numpy's vectors for any batch of any length."""
    session, shape, weights = tiny
    words = len(weights["embeddings.word_embeddings.weight"])
    ids = np.random.default_rng(seed).integers(0, words, (rows, length))
    found = session.run(ids)
    assert found.dtype == np.float32
    assert np.abs(found - reference.forward(shape, weights, ids.tolist())).max() < 1e-6


def test_unit_length(tiny: Tiny) -> None:
    """Give vectors of length 1."""
    found = tiny[0].run(np.arange(40).reshape(4, 10))
    assert np.abs(np.linalg.norm(found, axis=1) - 1).max() < 1e-6


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in tiny_weights(30)
        # a constant added to all keys of a row changes no softmax
        if not name.endswith("key.bias") and "token_type" not in name
    ],
)
def test_every_weight_counts(tiny_model: Path, tiny: Tiny, name: str) -> None:
    """Change the reference's vectors with each of the weights, so that none can be mixed up."""
    _, shape, weights = tiny
    rows = [[1, 2, 3, 4, 5]]
    changed = weights | {name: weights[name] * np.float32(1.5) + np.float32(0.1)}
    change = reference.forward(shape, changed, rows) - reference.forward(shape, weights, rows)
    assert np.abs(change).max() > 1e-5, tiny_model


def test_only_type_zero_is_read(tiny: Tiny) -> None:
    """Add the first row of the token types, and never the second."""
    _, shape, weights = tiny
    types = weights["embeddings.token_type_embeddings.weight"]
    before = reference.forward(shape, weights, [[1, 2, 3]])
    for row, matters in ((0, True), (1, False)):
        other = types.copy()
        other[row, 0] += 1
        changed = weights | {"embeddings.token_type_embeddings.weight": other}
        assert (reference.forward(shape, changed, [[1, 2, 3]]) != before).any() == matters


def test_the_graph_is_valid_onnx(tiny: Tiny) -> None:
    """Pass onnx's own checker, and name one input and one output."""
    _, shape, weights = tiny
    made = graph.build(shape, weights)
    onnx.checker.check_model(made)
    (given,), (found,) = made.graph.input, made.graph.output
    assert (given.name, found.name) == ("input_ids", "sentence_embedding")
    assert found.type.tensor_type.shape.dim[1].dim_value == shape.hidden


def test_positions_end_at_the_limit(tiny: Tiny) -> None:
    """Keep the positions up to the limit only."""
    _, shape, weights = tiny
    (table,) = [
        constant
        for constant in graph.build(shape, weights).graph.initializer
        if constant.name == "positions"
    ]
    assert list(table.dims) == [shape.max_tokens, shape.hidden]
