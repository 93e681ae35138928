"""Dialects of ONNX for a model's graph: operators, number formats, opset."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Dialect:
    """The operators and number formats of a graph."""

    name: str
    # ONNX operator set, which a provider's compiler must support
    opset: int = 20
    # uses ONNX Runtime's own operators too, mainly attention as one operator
    is_contrib: bool = True
    # uses ONNX Runtime's largest fused operators: each operator costs a GPU kernel launch and a
    # transfer of all values to the GPU's memory and back
    is_fused: bool = False
    # rows of tokens are counted in steps, for compilers that make code for each count
    is_rounded: bool = False
    # rounds the number of token rows up, for compilers that make code for each number
    is_half: bool = False
    # How dense layers are written: `float`; `weights` (int8 weights that the runtime may multiply
    # with activations that it quantizes itself); `dynamic` (ONNX Runtime's own operator, with one
    # scale for all activations of a run, so that only one text may run at a time); or `blocks` (its
    # operator with a scale for each block of weights and of activations).
    dense: str = "float"


DIALECTS: Final = {
    dialect.name: dialect
    for dialect in (
        Dialect("float"),
        Dialect("fused", is_fused=True),
        Dialect("fused-half", is_fused=True, is_half=True),
        Dialect("rounded", is_rounded=True),
        Dialect("rounded-int8", is_rounded=True, dense="weights"),
        Dialect("int8-dynamic", dense="dynamic"),
        Dialect("int8-blocks", dense="blocks"),
        # 17 added LayerNormalization; compilers in drivers lag years behind
        Dialect("standard", opset=17, is_contrib=False),
        Dialect("standard-half", opset=17, is_contrib=False, is_half=True),
    )
}
FLOAT: Final = DIALECTS["float"]
