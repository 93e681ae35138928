"""Formats of vectors as bytes: number of dimensions and type. Pure."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from opdbus.bus.service.options import Options, one_of
from opdbus.errors import InvalidArgs

FLOAT32: Final = "float32"
UBINARY: Final = "ubinary"
# Bits of a component.
BITS: Final = {FLOAT32: 32, "float16": 16, "int8": 8, UBINARY: 1}
# Components of a vector of length 1 are within -1..1.
_INT8_SCALE: Final = 127


@dataclass(frozen=True, slots=True)
class Format:
    """A format of vectors: `dimensions` components of the type `dtype`."""

    dtype: str
    dimensions: int

    @property
    def row_bytes(self) -> int:
        """The bytes of a vector; unused bits of its last byte are 0."""
        return (self.dimensions * BITS[self.dtype] + 7) // 8

    def shorten(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        """Cut vectors (n, d) of length 1 to (n, dimensions), and scale them to length 1."""
        if vectors.shape[1] == self.dimensions:
            return vectors
        cut = vectors[:, : self.dimensions]
        lengths = np.linalg.norm(cut, axis=1, keepdims=True).astype(np.float32)
        # a vector that is zero in these dimensions stays zero
        lengths[lengths == 0] = 1
        shortened: NDArray[np.float32] = cut / lengths
        return shortened

    def encode(self, vectors: NDArray[np.float32]) -> bytes:
        """Return vectors (n, d) of length 1 as row-major bytes, little-endian."""
        cut = self.shorten(vectors)
        if self.dtype == UBINARY:
            return np.packbits(cut > 0, axis=1).tobytes()
        if self.dtype == "int8":
            scaled = np.rint(cut * _INT8_SCALE)
            return np.clip(scaled, -_INT8_SCALE, _INT8_SCALE).astype(np.int8).tobytes()
        return cut.astype("<f2" if self.dtype == "float16" else "<f4").tobytes()


def chosen(options: Options, dimension: int) -> Format:
    """Return the format of the options `dtype` and `dimensions`; raise InvalidArgs.

    `dimension` is that of the model's vectors.
    """
    dtype = one_of("dtype", options.get("dtype", FLOAT32), BITS)
    dimensions = options.get("dimensions", dimension)
    if not 1 <= dimensions <= dimension:
        raise InvalidArgs(
            f"dimensions must be from 1 to {dimension}, which this model's vectors have, not"
            f" {dimensions}"
        )
    return Format(dtype, dimensions)
