"""The dialects of large operators: few nodes, and no number too large for them."""

from collections import Counter

import numpy as np
import onnx
import onnxruntime
import pytest
from harness.tiny import LAYERS, shape_of, weights

from opdbus.models import graph, reference
from opdbus.models.dialects import DIALECTS
from opdbus.models.graph_writer import INPUT
from opdbus.models.shape import FAMILIES


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", ["fused", "fused-half"])
def test_a_layer_is_seven_operators(family: str, name: str) -> None:
    """Write attention with its three dense layers, and what follows a dense layer, as one node."""
    made = graph.build_graph(shape_of(family), weights(60, family=family), DIALECTS[name])
    nodes = onnx.load_from_string(made.encode()).graph.node
    kinds = Counter(node.op_type for node in nodes)
    assert kinds["Attention"] == kinds["BiasGelu"] == LAYERS
    assert kinds["MatMul"] == 3 * LAYERS
    # one more after the embeddings
    assert kinds["SkipLayerNormalization"] == 2 * LAYERS + 1
    assert not kinds.keys() & {"LayerNormalization", "Gelu", "ReduceMean", "MultiHeadAttention"}


def test_sums_of_large_halves_stay_finite() -> None:
    """Pool tokens whose sum is past float16's largest number."""
    shape, drawn = shape_of("bert"), weights(60)
    # every token's last layer ends in numbers near 3,000: 48 of them are past 65,504
    last = f"encoder.layer.{LAYERS - 1}.output.LayerNorm."
    drawn[last + "bias"] += 3000
    ids = np.arange(48)[np.newaxis]
    made = graph.build_graph(shape, drawn, DIALECTS["fused-half"])
    session = onnxruntime.InferenceSession(made.encode(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {INPUT: ids})
    expected = reference.forward(shape, drawn, ids.tolist())
    assert np.isfinite(found).all()
    assert (found * expected).sum() > 0.999
