"""Child process of `op-dbus map`: reads vectors from standard input, writes positions."""

import mmap
import sys
from typing import Final

import numpy as np

from opdbus.picture.layout import place
from opdbus.picture.table import header_of

_TYPES: Final = {"F16": "<f2", "F32": "<f4"}


def main() -> None:
    """Read a file of State1.Vectors, and write two float32, from 0 to 1, for each row."""
    with mmap.mmap(sys.stdin.fileno(), 0, prot=mmap.PROT_READ) as content:
        header, begin = header_of(content)
        tensor = header["vectors"]
        first, last = (begin + offset for offset in tensor["data_offsets"])
        flat = np.frombuffer(content[first:last], _TYPES[tensor["dtype"]])
        vectors = flat.reshape(tensor["shape"]).astype(np.float32)
    sys.stdout.buffer.write(place(vectors).astype("<f4").tobytes())


if __name__ == "__main__":
    main()
