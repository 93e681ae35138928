"""Description of the machine that figures were measured on."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from opdbus.engine import cpus

# Processor features that decide which engine is fastest, and in which precision.
FEATURES: Final = (
    "avx2 avx512f avx512_vnni avx_vnni avx512_bf16 avx512_fp16 amx_tile amx_bf16 amx_int8".split()
)


@dataclass(frozen=True, slots=True)
class Machine:
    """Processor, number of usable processors, their features, kernel and Python."""

    processor: str
    processors: int
    features: tuple[str, ...]
    kernel: str
    python: str

    @property
    def line(self) -> str:
        """The machine in one line, for the heading of figures."""
        features = " ".join(self.features) or "no vector extensions known"
        return f"{self.processors} processors of {self.processor} ({features}), {self.kernel}"


def describe(root: Path = Path("/")) -> Machine:
    """Describe this machine; without /proc, only as far as Python can."""
    features = cpus.features(root)
    return Machine(
        processor=cpus.name(root),
        processors=cpus.usable(),
        features=tuple(name for name in FEATURES if name in features),
        kernel=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
    )
