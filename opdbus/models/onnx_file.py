"""Encoding of an ONNX graph as a file, in protobuf's wire format.

The numbers of fields and types are those of onnx.proto. The package `onnx` would take 36 MiB and
most of a second to write these few messages.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

FLOAT: Final = 1
UINT8: Final = 2
INT64: Final = 7
FLOAT16: Final = 10
_TYPES: Final = {"float32": FLOAT, "uint8": UINT8, "int8": 3, "int64": INT64, "float16": FLOAT16}
# Runtimes that read opset 20 read this version, and so do those of older opsets.
_IR_VERSION: Final = 10
# Constants of at least this many bytes go into the file beside the graph, which is memory-mapped.
_LARGE: Final = 1024
# Alignment of constants in that file, in bytes: that of a cache line.
_ALIGNMENT: Final = 64

Value = int | float | str | bytes


def encode(*fields: tuple[int, Value]) -> bytes:
    """Encode a message: integers, float32 numbers, texts and encoded messages by field number."""
    return b"".join(_encode_field(number, value) for number, value in fields)


def _encode_field(number: int, value: Value) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    if isinstance(value, float):
        return _varint(number << 3 | 5) + struct.pack("<f", value)
    content = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    value &= 2**64 - 1  # two's complement of a negative number
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes((*encoded, value))


def encode_node(
    kind: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    *,
    name: str,
    domain: str = "",
    **attributes: float | list[int],
) -> bytes:
    """Encode an operator; attributes are integers, floats or lists of integers."""
    return encode(
        *((1, value) for value in inputs),
        *((2, value) for value in outputs),
        (3, name),
        (4, kind),
        *((5, _encode_attribute(*attribute)) for attribute in attributes.items()),
        (7, domain),
    )


def _encode_attribute(name: str, value: float | list[int]) -> bytes:
    if isinstance(value, list):
        return encode((1, name), *((8, each) for each in value), (20, 7))
    if isinstance(value, int):
        return encode((1, name), (3, value), (20, 2))
    return encode((1, name), (2, value), (20, 1))


def encode_value(name: str, kind: int, shape: Sequence[str | int]) -> bytes:
    """Encode an input or output; a dimension is a number, or a name where it may be any."""
    dimensions = [(1, encode((2 if isinstance(size, str) else 1, size))) for size in shape]
    return encode((1, name), (2, encode((1, encode((1, kind), (2, encode(*dimensions)))))))


@dataclass(frozen=True, slots=True)
class Graph:
    """Encoded nodes, inputs and outputs, and constants by name."""

    nodes: Sequence[bytes]
    constants: Mapping[str, NDArray[Any]]
    inputs: Sequence[bytes]
    outputs: Sequence[bytes]
    # versions of the sets of operators by domain
    opsets: Mapping[str, int]
    version: str = ""

    def encode(self) -> bytes:
        """Encode the model with all constants in it: at most 2 GB, the limit of protobuf."""
        return self._encode([_encode_tensor(*each, None) for each in self.constants.items()])

    def save(self, path: Path, data: Path) -> None:
        """Write the model, and large constants into a file beside it; raises OSError."""
        tensors = []
        with data.open("wb") as file:
            for name, array in self.constants.items():
                place = None
                if array.nbytes >= _LARGE:
                    file.write(bytes(-file.tell() % _ALIGNMENT))
                    place = (data.name, file.tell())
                    file.write(np.ascontiguousarray(array).data)
                tensors.append(_encode_tensor(name, array, place))
        path.write_bytes(self._encode(tensors))

    def _encode(self, tensors: Sequence[bytes]) -> bytes:
        graph = encode(
            *((1, node) for node in self.nodes),
            (2, "op-dbus"),
            *((5, tensor) for tensor in tensors),
            *((11, value) for value in self.inputs),
            *((12, value) for value in self.outputs),
        )
        opsets = [(8, encode((1, domain), (2, number))) for domain, number in self.opsets.items()]
        producer = ((2, "op-dbus"), (3, self.version))
        return encode((1, _IR_VERSION), *producer, (7, graph), *opsets)


def _encode_tensor(name: str, array: NDArray[Any], place: tuple[str, int] | None) -> bytes:
    """Encode a constant, whose numbers are at an offset of a file if it has a place."""
    dimensions = ((1, size) for size in array.shape)
    head = encode(*dimensions, (2, _TYPES[array.dtype.name]), (8, name))
    if place is None:
        return head + encode((9, array.tobytes()))
    stored = {"location": place[0], "offset": str(place[1]), "length": str(array.nbytes)}
    entries = ((13, encode((1, key), (2, value))) for key, value in stored.items())
    return head + encode(*entries, (14, 1))
