"""The ONNX graph against the plain numpy model."""

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from harness.tiny import shape_of, write_tiny_model
from harness.tiny import weights as tiny_weights
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from opdbus.engine.proof import Probe
from opdbus.engine.provider import Placement
from opdbus.engine.providers import PROVIDERS
from opdbus.engine.sessions import OnnxSession
from opdbus.errors import ProviderError
from opdbus.models import build, folder, graph, reference, weights
from opdbus.models.dialects import DIALECTS, Dialect
from opdbus.models.level_table import LEVELS
from opdbus.models.shape import FAMILIES, Shape
from opdbus.models.weights import read_weights

Tiny = tuple[OnnxSession, Shape, dict[str, np.ndarray]]


def opened(made: Path) -> OnnxSession:
    """Open a built graph, recording nothing."""
    session = OnnxSession(build.Built(made).graph, PROVIDERS["cpu:onnxruntime"], Placement())
    session.run(np.zeros((1, 2), np.int64))
    session.finish_profile()
    return session


@pytest.fixture(scope="module", params=list(FAMILIES))
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """Build and open a tiny model of each family, with what the reference needs."""
    home = tmp_path_factory.mktemp("graphs")
    model = write_tiny_model(home / "model", family=request.param)
    shape = folder.read_model(model, LEVELS["medium"]).shape
    build.write_graph(model / "model.safetensors", home / "tiny", shape)
    return opened(home / "tiny"), shape, dict(read_weights(model / "model.safetensors"))


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


def counting(family: str) -> list[str]:
    """List the weights that can change a vector."""
    # a constant added to all keys of a row changes no softmax
    still = ("k.bias", "key.bias", "token_type_embeddings.weight")
    return [name for name in tiny_weights(30, family=family) if not name.endswith(still)]


@pytest.mark.parametrize(
    ("family", "name"), [(family, name) for family in FAMILIES for name in counting(family)]
)
def test_every_weight_counts(family: str, name: str) -> None:
    """Change the reference's vectors with each of the weights, so that none can be mixed up."""
    shape, weights = shape_of(family), tiny_weights(30, family=family)
    rows = [[1, 2, 3, 4, 5]]
    changed = weights | {name: weights[name] * np.float32(1.5) + np.float32(0.1)}
    change = reference.forward(shape, changed, rows) - reference.forward(shape, weights, rows)
    assert np.abs(change).max() > 1e-5


def test_only_type_zero_is_read() -> None:
    """Add the first row of the token types, and never the second."""
    shape, weights = shape_of("bert"), tiny_weights(30)
    types = weights["embeddings.token_type_embeddings.weight"]
    before = reference.forward(shape, weights, [[1, 2, 3]])
    for row, matters in ((0, True), (1, False)):
        other = types.copy()
        other[row, 0] += 1
        changed = weights | {"embeddings.token_type_embeddings.weight": other}
        assert (reference.forward(shape, changed, [[1, 2, 3]]) != before).any() == matters


def moved(ids: list[int], row: int) -> bool:
    """Tell whether a row of MPNet's position embeddings counts for a text."""
    shape, weights = shape_of("mpnet"), tiny_weights(30, family="mpnet")
    name = "embeddings.position_embeddings.weight"
    table = weights[name].copy()
    table[row, 0] += 1
    before, after = (
        reference.forward(shape, {**weights, name: positions}, [ids])
        for positions in (weights[name], table)
    )
    return bool((before != after).any())


def test_mpnet_positions_begin_behind_the_padding() -> None:
    """Give the first of three tokens position 2, and the last 4."""
    assert [row for row in range(7) if moved([0, 7, 2], row)] == [2, 3, 4]


def test_mpnet_counts_no_padding_token() -> None:
    """Give a padding token within a text position 1, and its place to the next."""
    assert [row for row in range(7) if moved([0, 1, 7, 2], row)] == [1, 2, 3, 4]


def test_buckets_of_distances() -> None:
    """Sort distances as T5 does: one bucket each below 8, then wider ones, 32 for both sides."""
    distances = [0, -1, -7, -8, -11, -12, -15, -16, -22, -23, -31, -32, -63, -64, -90, -91, -127]
    own = [0, 1, 7, 8, 8, 9, 9, 10, 10, 11, 11, 12, 13, 14, 14, 15, 15]
    assert weights.distance_buckets(np.array(distances)).tolist() == own
    after = weights.distance_buckets(-np.array(distances)[1:])
    assert after.tolist() == [16 + bucket for bucket in own[1:]]
    assert weights.distance_buckets(np.array([-5000, 5000])).tolist() == [15, 31]


def test_the_bias_is_the_key_against_the_query() -> None:
    """Put queries in rows, keys in columns, and a head's own column of the table in each."""
    table = np.arange(64, dtype=np.float32).reshape(32, 2)
    bias = weights.relative_bias(table, 3)
    assert bias.shape == (2, 3, 3)
    assert bias[0, 0].tolist() == [table[0, 0], table[17, 0], table[18, 0]]
    assert bias[1, 2].tolist() == [table[2, 1], table[1, 1], table[0, 1]]


def test_the_graph_is_valid_onnx(tiny: Tiny) -> None:
    """Pass onnx's own checker, and name one input and one output."""
    _, shape, weights = tiny
    made = onnx.load_from_string(graph.build_graph(shape, weights).encode())
    onnx.checker.check_model(made)
    (given,), (found,) = made.graph.input, made.graph.output
    assert (given.name, found.name) == ("input_ids", "sentence_embedding")
    assert found.type.tensor_type.shape.dim[1].dim_value == shape.hidden


ONNX, MICROSOFT = "", "com.microsoft"
# largest deviation of any component, and smallest cosine, from plain numpy
EXACTNESS = {
    "float": (1e-5, 0.999999),
    "rounded": (1e-5, 0.999999),
    "standard": (1e-5, 0.999999),
    "fused": (1e-5, 0.999999),
    "fused-half": (0.05, 0.999),
    "standard-half": (0.05, 0.999),
    "rounded-int8": (0.2, 0.95),
    "int8-dynamic": (0.2, 0.95),
    "int8-blocks": (0.05, 0.995),
}


@pytest.fixture(scope="module", params=[(f, d) for f in FAMILIES for d in DIALECTS], ids="-".join)
def written(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Dialect, Shape, dict[str, np.ndarray]]:
    """Write a tiny model of each family in each dialect."""
    family, name = request.param
    home, shape = tmp_path_factory.mktemp(name), shape_of(family)
    weights = home / "model.safetensors"
    save_file(tiny_weights(60, family=family), weights)
    build.fill(weights, home, shape, DIALECTS[name])
    return home, DIALECTS[name], shape, dict(read_weights(weights))


def test_every_dialect_is_the_model(
    written: tuple[Path, Dialect, Shape, dict[str, np.ndarray]],
) -> None:
    """Give numpy's vectors in each dialect, as near as its number format is, for any batch."""
    home, dialect, shape, weights = written
    deviation, cosine = EXACTNESS[dialect.name]
    session = opened(home)
    random = np.random.default_rng(1)
    for rows, length in ((1, 1), (3, 2), (5, 17), (2, shape.max_tokens)):
        ids = random.integers(0, 60, (rows, length))
        found, expected = session.run(ids), reference.forward(shape, weights, ids.tolist())
        assert found.dtype == np.float32
        assert np.abs(found - expected).max() < deviation
        assert (found * expected).sum(axis=1).min() > cosine
        assert np.abs(np.linalg.norm(found, axis=1) - 1).max() < 1e-6


def test_a_row_does_not_depend_on_its_batch(
    written: tuple[Path, Dialect, Shape, dict[str, np.ndarray]],
) -> None:
    """Give a text its vector whatever runs with it, in every dialect that may run several."""
    home, dialect, _, _ = written
    session = opened(home)
    ids = np.random.default_rng(4).integers(0, 60, (8, 9))
    ids[3] = 7  # a row with activations unlike the others'
    alone = np.concatenate([session.run(row[np.newaxis]) for row in ids])
    difference = np.abs(session.run(ids) - alone).max()
    # one scale for all activations of a run: why the engine runs its texts one by one
    may_differ = dialect.dense == "dynamic"
    assert (difference > 1e-6) if may_differ else difference < (1e-3 if dialect.is_half else 1e-6)


def test_a_dialect_uses_what_it_says(
    written: tuple[Path, Dialect, Shape, dict[str, np.ndarray]],
) -> None:
    """Write only the operators, opset and number formats that the dialect names."""
    home, dialect, _, _ = written
    made = onnx.load(build.Built(home).graph)
    onnx.checker.check_model(made, full_check=not dialect.is_contrib)
    domains = {node.domain for node in made.graph.node}
    imported = {opset.domain: opset.version for opset in made.opset_import}
    assert imported[ONNX] == dialect.opset
    assert domains == ({ONNX, MICROSOFT} if dialect.is_contrib else {ONNX})
    assert imported.keys() == domains
    known = {
        schema.name
        for schema in onnx.defs.get_all_schemas_with_history()
        if schema.domain == ONNX and schema.since_version <= dialect.opset
    }
    assert {node.op_type for node in made.graph.node if node.domain == ONNX} <= known
    kinds = {constant.data_type for constant in made.graph.initializer}
    floats = onnx.TensorProto.FLOAT16 if dialect.is_half else onnx.TensorProto.FLOAT
    whole = {onnx.TensorProto.INT64}
    int8 = onnx.TensorProto.UINT8 if dialect.dense == "blocks" else onnx.TensorProto.INT8
    whole |= {int8} if dialect.dense != "float" else set()
    assert kinds == {floats, *whole}


def test_int8_does_not_saturate(tiny_model: Path) -> None:
    """Keep two products of activations and weights in 16 bits, as processors without VNNI do."""
    shape, weights = (
        folder.read_model(tiny_model, LEVELS["medium"]).shape,
        read_weights(tiny_model / "model.safetensors"),
    )
    constants = graph.build_graph(shape, weights, DIALECTS["int8-dynamic"]).constants.values()
    kernels = [constant.astype(int) for constant in constants if constant.dtype == np.int8]
    largest = max(np.abs(kernel).max() for kernel in kernels)
    assert 2 * 255 * largest <= np.iinfo(np.int16).max
    assert largest == 63


def test_the_dialects_are_many() -> None:
    """Hold every dialect to an exactness, so that none is written untested."""
    assert EXACTNESS.keys() == DIALECTS.keys()


def test_positions_end_at_the_limit(tiny: Tiny) -> None:
    """Keep the positions and distances up to the limit only."""
    _, shape, weights = tiny
    constants = graph.build_graph(shape, weights).constants
    sizes = {name: list(constant.shape) for name, constant in constants.items()}
    first = FAMILIES[shape.family].first_position
    limit = shape.max_tokens
    assert sizes["positions"] == [first + limit, shape.hidden]
    assert sizes.get("relative_bias", [1, shape.heads, limit, limit])[2:] == [limit, limit]


def test_nothing_is_run_past_the_limit(tiny: Tiny) -> None:
    """Refuse a row that is longer than the positions kept."""
    session, shape, _ = tiny
    assert session.run(np.ones((1, shape.max_tokens), np.int64)).shape == (1, shape.hidden)
    with pytest.raises(ProviderError, match="the model's run failed"):
        session.run(np.full((1, shape.max_tokens + 1), 5))


def test_the_shipped_proof_is_the_references(medium_model: folder.Model, tmp_path: Path) -> None:
    """Ship for the medium model the rows and vectors that the numpy reference computes now."""
    build.write_proof(
        tmp_path / "proof.npz", medium_model.shape, read_weights(medium_model.weights)
    )
    made, shipped = (
        Probe.read(path)
        for path in (tmp_path / "proof.npz", build.shipped_proof(build.identify(medium_model)))
    )
    advice = "run tests/scripts/make_proof.py"
    assert [row.tolist() for row in made.rows] == [row.tolist() for row in shipped.rows], advice
    assert np.abs(made.vectors - shipped.vectors).max() < 1e-6, advice


def test_every_user_may_read_a_graph(tmp_path: Path, tiny_model: Path) -> None:
    """Let the daemon read what root has built with a command, however root's umask is."""
    shape = folder.read_model(tiny_model, LEVELS["medium"]).shape
    before = os.umask(0o077)
    try:
        build.write_graph(tiny_model / "model.safetensors", tmp_path / "tiny", shape)
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "tiny").iterdir()}
    assert (tmp_path / "tiny").stat().st_mode & 0o777 == 0o755
    assert set(modes.values()) == {0o644}
    assert build.PROOF in modes
