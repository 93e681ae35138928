"""The dialects of ONNX that a model's graph can be written in: operators, formats, opset."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Dialect:
    """One row: the operators and number formats that a graph uses."""

    name: str
    # ONNX's operator set, which a provider's compiler must know
    opset: int = 20
    # ONNX Runtime's operators too, of which attention as one operator is worth having
    is_contrib: bool = True
    # as few and as large operators as ONNX Runtime has: each is one more start of a GPU's kernels,
    # and one more way of every number to the GPU's memory and back
    is_fused: bool = False
    # rows of tokens are counted in steps, for compilers that make code for each count
    is_rounded: bool = False
    # the floats are float16, but for the pooling
    is_half: bool = False
    # how dense layers are written: `float`, `weights` (int8 weights that the runtime may multiply
    # with activations that it quantizes itself), `dynamic` (ONNX Runtime's own operator, with one
    # scale for all activations of a run, so that only one text may run at a time) or `blocks` (its
    # operator with a scale for each few weights, and for as few activations)
    dense: str = "float"


DIALECTS: Final = {
    dialect.name: dialect
    for dialect in (
        Dialect("float"),
        Dialect("half", is_half=True),
        Dialect("fused", is_fused=True),
        Dialect("fused-half", is_fused=True, is_half=True),
        Dialect("rounded", is_rounded=True),
        Dialect("rounded-int8", is_rounded=True, dense="weights"),
        Dialect("int8-dynamic", dense="dynamic"),
        Dialect("int8-blocks", dense="blocks"),
        # 17 brought LayerNormalization; compilers of drivers lag years behind
        Dialect("standard", opset=17, is_contrib=False),
        Dialect("standard-half", opset=17, is_contrib=False, is_half=True),
    )
}
FLOAT: Final = DIALECTS["float"]
