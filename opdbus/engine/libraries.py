"""Shared libraries that providers load, with the major versions that they were built for."""

import ctypes
from typing import Final, NamedTuple

from opdbus.engine.host import Host


class SharedLibrary(NamedTuple):
    """A library that a provider loads by a file name that ends with the major version."""

    name: str
    file: str
    # Function that returns the version, or with `by_reference` writes it into a reference, as
    # CUDA's does. Without a function, the version is that of the file name.
    function: str = ""
    by_reference: bool = False

    @property
    def wanted(self) -> str:
        """The major version that the provider was built for."""
        return self.file.rpartition(".")[2]

    def version(self, host: Host) -> str:
        """Load the library and return its version; raises OSError if it is missing."""
        library, number = host.library(self.file), ctypes.c_int(0)
        if not self.function:
            return self.wanted
        ask = getattr(library, self.function)
        if self.by_reference:
            # 13.0 is written as 13000
            ask(ctypes.byref(number))
            return f"{number.value // 1000}.{number.value % 1000 // 10}"
        # 9.10.2 is written as 91002
        rest, patch = divmod(int(ask()), 100)
        return f"{rest // 100}.{rest % 100}.{patch}"


CUDA: Final = (
    SharedLibrary("CUDA", "libcudart.so.13", "cudaRuntimeGetVersion", by_reference=True),
    SharedLibrary("cuBLASLt", "libcublasLt.so.13", "cublasLtGetVersion"),
    SharedLibrary("cuBLAS", "libcublas.so.13"),
    SharedLibrary("cuRAND", "libcurand.so.10"),
    # Loaded by the first attention node: without this check only the first run would fail.
    SharedLibrary("cuDNN", "libcudnn.so.9", "cudnnGetVersion"),
)
TENSORRT: Final = (*CUDA, SharedLibrary("TensorRT", "libnvinfer.so.10", "getInferLibVersion"))
