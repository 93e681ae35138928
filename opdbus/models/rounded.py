"""Graph parts that round the number of rows up, for compilers that make code for each number.

OpenVINO compiles CPU code for each new shape. So the tokens of a whole batch are stacked as rows,
zero rows round their number up, and only attention, which must separate the texts, sees the exact
shape.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from opdbus.models.shape import Shape
    from opdbus.models.writer import Writer

# Pairs (tokens, multiple): past this many tokens, round up to this multiple. Past 64 tokens at most
# a sixteenth of the work is padding, and 2,048 tokens need 68 different counts.
_STEPS: Final = ((0, 4), (64, 8), (128, 16), (512, 64))


def begin(writer: Writer, shape: Shape, value: str) -> str:
    """Stack the tokens of (batch, tokens, hidden) and round up: (rows, hidden)."""
    ids = writer.op("Shape", "input_ids", output="batch_and_tokens")
    for name, width in (("whole", shape.hidden), ("whole_packed", 3 * shape.hidden)):
        sizes = (ids, writer.ints(f"{name}_width", [width]))
        writer.op("Concat", *sizes, axis=0, output=name)
    writer.ints("flat", [-1, shape.hidden])
    writer.ints("nothing", [0])
    tokens = writer.op("ReduceProd", ids, keepdims=1, output="row_count")
    step = writer.ints("step", [_STEPS[0][1]])
    for bound, size in _STEPS[1:]:
        is_past = writer.op("Greater", tokens, writer.ints(f"past_{bound}", [bound]))
        step = writer.op("Where", is_past, writer.ints(f"step_{size}", [size]), step)
    missing = writer.op("Mod", writer.op("Neg", tokens), step)
    writer.op("Concat", *("nothing",) * 2, missing, "nothing", axis=0, output="row_padding")
    return _round_up(writer, value)


def end(writer: Writer, value: str) -> str:
    """Restore the shape (batch, tokens, hidden)."""
    return _apart(writer, value, "whole")


def attention(writer: Writer, shape: Shape, hidden: str, dense: tuple[str, ...], bias: str) -> str:
    """Apply attention to (rows, hidden), with its three dense layers as one."""
    together = _apart(writer, writer.linear(hidden, *dense), "whole_packed")
    return _round_up(writer, writer.attention(shape, writer.split(together), bias))


def _round_up(writer: Writer, value: str) -> str:
    return writer.op("Pad", writer.op("Reshape", value, "flat"), "row_padding")


def _apart(writer: Writer, value: str, whole: str) -> str:
    real = writer.op("Slice", value, "nothing", "row_count", "nothing")
    return writer.op("Reshape", real, whole)
