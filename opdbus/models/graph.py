"""ONNX graph of a sentence transformer, BERT or MPNet, built from its weights.

One graph goes from token ids to unit vectors: embeddings, layers, mean pooling, normalization. All
rows of a batch have one length, so the graph needs no mask and no padding.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from opdbus import __version__
from opdbus.models import onnx_file
from opdbus.models.dialects import FLOAT, Dialect
from opdbus.models.graph_writer import INPUT, Writer
from opdbus.models.shape import FAMILIES, PADDING
from opdbus.models.weights import RELATIVE, relative_bias

if TYPE_CHECKING:
    from opdbus.models.shape import Shape
    from opdbus.models.weights import Weights

OUTPUT: Final = "sentence_embedding"
# The first constant, so that it stands at the begin of the weights' file.
WORDS: Final = "embeddings.word_embeddings.weight"
_MICROSOFT: Final = "com.microsoft"
# Weight of each token in the fused sum over a text: so small that no sum comes near float16's
# largest number, and a power of 2, so that nothing is rounded.
_PART: Final = 2.0**-6
# Pairs (tokens, multiple): past this many tokens, round up to this multiple. Past 64 tokens at most
# a sixteenth of the work is padding, and 2,048 tokens need 68 different counts.
STEPS: Final = ((0, 4), (64, 8), (128, 16), (512, 64))


def build_graph(shape: Shape, weights: Weights, dialect: Dialect = FLOAT) -> onnx_file.Graph:
    """Build the graph: `input_ids` int64 (batch, tokens) to `sentence_embedding` (batch, dim).

    Vectors are float32 of length 1. `weights` has the parameter names of the reference
    implementations. Sources of the architectures: Devlin et al. 2018, Song et al. 2020.
    """
    writer = Writer(weights, dialect)
    writer.op("LpNormalization", _Model(writer, shape).vectors(), axis=-1, p=2, output=OUTPUT)
    return onnx_file.Graph(
        writer.nodes,
        writer.constants,
        [onnx_file.encode_value(INPUT, onnx_file.INT64, ["batch", "tokens"])],
        [onnx_file.encode_value(OUTPUT, onnx_file.FLOAT, ["batch", shape.hidden])],
        {"": dialect.opset} | ({_MICROSOFT: 1} if dialect.is_contrib else {}),
        __version__,
    )


class _Model:
    """Parts of a model's graph in the writer's dialect.

    Fused dialects use ONNX Runtime's fused operators. Each of them has a kernel for CUDA and one
    for the CPU, so these graphs can be tested on a CPU.

    Rounded dialects are for OpenVINO, which compiles CPU code for each new shape: the tokens of a
    whole batch are stacked as rows, zero rows round their number up, and only attention, which must
    separate the texts, sees the exact shape.
    """

    def __init__(self, writer: Writer, shape: Shape) -> None:
        self._writer = writer
        self._shape = shape
        self._family = FAMILIES[shape.family]

    def vectors(self) -> str:
        """Write the model up to the pooled vectors."""
        hidden = self._embeddings()
        bias = self._bias() if self._family.relative else ""
        for number in range(self._shape.layers):
            hidden = self._layer(hidden, f"encoder.layer.{number}.", bias)
        return self._pooled(hidden)

    def _embeddings(self) -> str:
        writer, name = self._writer, "embeddings.LayerNorm"
        words = writer.op("Gather", writer.weight(WORDS), INPUT)
        places = self._mpnet_positions() if self._family.relative else self._bert_positions()
        if writer.dialect.is_fused:
            return self._fused_norm((words, places), name)
        total = writer.op("Add", words, places)
        if writer.dialect.is_rounded:
            total = self._begin_rounded(total)
        return writer.norm(total, name, self._shape.epsilon)

    def _bert_positions(self) -> str:
        """Return BERT's positions, the same for every row: (tokens, hidden)."""
        # All tokens have type 0, so that row is added to the positions once, here.
        table = (
            self._writer.weights["embeddings.position_embeddings.weight"][: self._shape.max_tokens]
            + self._writer.weights["embeddings.token_type_embeddings.weight"][0]
        )
        return self._writer.start(self._writer.constant("positions", table), axis=0)

    def _mpnet_positions(self) -> str:
        """Return MPNet's positions, which skip padding tokens that occur in a text."""
        writer = self._writer
        end = self._family.first_position + self._shape.max_tokens
        table = writer.weights["embeddings.position_embeddings.weight"][:end]
        padding = writer.ints("padding", [PADDING])
        counts = writer.op("Not", writer.op("Equal", INPUT, padding))
        ones = writer.op("Cast", counts, to=onnx_file.INT64)
        numbers = writer.op("Mul", writer.op("CumSum", ones, writer.ints("row_axis", [1])), ones)
        rows = writer.op("Add", numbers, padding)
        return writer.op("Gather", writer.constant("positions", table), rows)

    def _bias(self) -> str:
        """Return the bias of all layers, (1, heads, tokens, tokens): a table's left corner."""
        table = relative_bias(self._writer.weights[RELATIVE], self._shape.max_tokens)
        whole = self._writer.constant("relative_bias", table[np.newaxis])
        return self._writer.start(self._writer.start(whole, axis=2), axis=3)

    def _layer(self, hidden: str, prefix: str, bias: str) -> str:
        writer, names = self._writer, self._family
        mixed = self._attention(hidden, prefix, bias)
        middle = self._residual(mixed, prefix + names.mixed, hidden, prefix + names.mixed_norm)
        dense = prefix + "intermediate.dense"
        if writer.dialect.is_fused:
            product, dense_bias = writer.product(middle, dense), writer.weight(f"{dense}.bias")
            wide = writer.op("BiasGelu", product, dense_bias, domain=_MICROSOFT)
        else:
            wide = writer.gelu(writer.linear(middle, dense), f"{prefix}gelu")
        return self._residual(wide, prefix + "output.dense", middle, prefix + "output.LayerNorm")

    def _residual(self, value: str, dense: str, skip: str, norm: str) -> str:
        """Apply the layer `dense`, add `skip`, and normalize by `norm`."""
        writer = self._writer
        if writer.dialect.is_fused:
            product, bias = writer.product(value, dense), writer.weight(f"{dense}.bias")
            return self._fused_norm((product, skip), norm, bias)
        total = writer.op("Add", writer.linear(value, dense), skip)
        return writer.norm(total, norm, self._shape.epsilon)

    def _fused_norm(self, added: tuple[str, str], name: str, *bias: str) -> str:
        writer = self._writer
        inputs = (*added, writer.weight(f"{name}.weight"), writer.weight(f"{name}.bias"), *bias)
        return writer.op(
            "SkipLayerNormalization", *inputs, domain=_MICROSOFT, epsilon=self._shape.epsilon
        )

    def _attention(self, hidden: str, prefix: str, bias: str) -> str:
        writer, shape, names = self._writer, self._shape, self._family
        dense = (prefix + names.query, prefix + names.key, prefix + names.value)
        if writer.dialect.is_fused:
            return self._fused_attention(hidden, dense, bias)
        if writer.dialect.is_rounded:
            together = self._unround(writer.linear(hidden, *dense), "whole_packed")
            return self._round_up(writer.attention(shape, writer.split(together), bias))
        if writer.dialect.is_contrib:
            return writer.attention(shape, writer.split(writer.linear(hidden, *dense)), bias)
        return self._plain_attention([writer.linear(hidden, name) for name in dense], bias)

    def _fused_attention(self, hidden: str, dense: tuple[str, ...], bias: str) -> str:
        """Apply attention with the dense layers of queries, keys and values in one product."""
        writer = self._writer
        kernels = np.concatenate([writer.weights[f"{name}.weight"].T for name in dense], axis=1)
        biases = np.concatenate([writer.weights[f"{name}.bias"] for name in dense])
        inputs = (
            hidden,
            writer.constant(f"{dense[0]}.kernels", kernels),
            writer.constant(f"{dense[0]}.biases", biases),
        )
        # the two inputs between, a mask and past keys, are not used
        biased = ("", "", bias) if bias else ()
        heads = self._shape.heads
        return writer.op("Attention", *inputs, *biased, domain=_MICROSOFT, num_heads=heads)

    def _plain_attention(self, parts: list[str], bias: str) -> str:
        """Write attention with operators that every opset has."""
        writer, shape, prefix = self._writer, self._shape, parts[0]
        size = shape.hidden // shape.heads
        apart = writer.ints(f"{prefix}_apart", [0, 0, shape.heads, size])
        q, k, v = (
            writer.op("Transpose", writer.op("Reshape", part, apart), perm=order)
            for part, order in zip(parts, ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]), strict=True)
        )
        root = writer.number(f"{prefix}_root", 1 / math.sqrt(size))
        scores = writer.op("MatMul", writer.op("Mul", q, root), k)
        if bias:
            scores = writer.op("Add", scores, bias)
        mixed = writer.op("MatMul", writer.op("Softmax", scores, axis=-1), v)
        together = writer.ints(f"{prefix}_together", [0, 0, shape.hidden])
        return writer.op("Reshape", writer.op("Transpose", mixed, perm=[0, 2, 1, 3]), together)

    def _pooled(self, hidden: str) -> str:
        """Pool the tokens in float32, by mean or sum: normalization removes the factor."""
        writer = self._writer
        if writer.dialect.is_rounded:
            hidden = self._unround(hidden, "whole")
        if writer.dialect.is_fused:
            # As a matrix product, which GPUs compute fast. A reduction over a middle axis goes
            # through cuDNN, which is slow at it.
            ones = np.full((self._shape.max_tokens, 1), _PART, np.float32)
            parts = writer.start(writer.constant("parts", ones), axis=0)
            # batch axis first, so that this is one strided product without a list of addresses
            summed = writer.op("FusedMatMul", hidden, parts, domain=_MICROSOFT, transA=1)
            flat = writer.op("Squeeze", summed, writer.ints("last_axis", [2]))
            return writer.op("Cast", flat, to=onnx_file.FLOAT) if writer.dialect.is_half else flat
        if writer.dialect.is_half:
            hidden = writer.op("Cast", hidden, to=onnx_file.FLOAT)
        return writer.mean(hidden, axis=1)

    def _begin_rounded(self, value: str) -> str:
        """Stack the tokens of (batch, tokens, hidden) and round up: (rows, hidden)."""
        writer, width = self._writer, self._shape.hidden
        ids = writer.op("Shape", "input_ids", output="batch_and_tokens")
        for name, size in (("whole", width), ("whole_packed", 3 * width)):
            sizes = (ids, writer.ints(f"{name}_width", [size]))
            writer.op("Concat", *sizes, axis=0, output=name)
        writer.ints("flat", [-1, width])
        writer.ints("nothing", [0])
        tokens = writer.op("ReduceProd", ids, keepdims=1, output="row_count")
        step = writer.ints("step", [STEPS[0][1]])
        for bound, size in STEPS[1:]:
            is_past = writer.op("Greater", tokens, writer.ints(f"past_{bound}", [bound]))
            step = writer.op("Where", is_past, writer.ints(f"step_{size}", [size]), step)
        missing = writer.op("Mod", writer.op("Neg", tokens), step)
        writer.op("Concat", *("nothing",) * 2, missing, "nothing", axis=0, output="row_padding")
        return self._round_up(value)

    def _round_up(self, value: str) -> str:
        return self._writer.op("Pad", self._writer.op("Reshape", value, "flat"), "row_padding")

    def _unround(self, value: str, whole: str) -> str:
        """Restore the shape `whole`: (batch, tokens, hidden) or three times as wide."""
        real = self._writer.op("Slice", value, "nothing", "row_count", "nothing")
        return self._writer.op("Reshape", real, whole)
