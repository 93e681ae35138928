"""Table of the compared programs, op-dbus among them, and how each is started."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

PEERS: Final = Path(__file__).parent / "peers"
# The row that all others are compared with, and the one whose vectors are the reference.
OURS: Final = "op-dbus"
REFERENCE: Final = "op-dbus fp32"
# The environment with torch, which exports the model for peers that read only ONNX.
TORCH: Final = "torch"


@dataclass(frozen=True, slots=True)
class Contender:
    """A program to compare: its script, its virtual environment, and the options of its `load`."""

    name: str
    script: Path
    # name under the folder of the peers' environments; empty for this process's own
    venv: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    # true if it needs the model as an ONNX file
    exported: bool = False
    # true if it chooses its batches itself: one call for all texts then has only one figure
    own_batches: bool = False

    def python(self, venvs: Path) -> Path:
        """Return the interpreter that runs the script."""
        return python_of(venvs, self.venv) if self.venv else Path(sys.executable)


def python_of(venvs: Path, name: str) -> Path:
    """Return the interpreter of one of the peers' environments."""
    below = ("Scripts", "python.exe") if sys.platform == "win32" else ("bin", "python")
    return venvs.joinpath(name, *below)


def _sentence_transformers(name: str, **options: str) -> Contender:
    return Contender(
        f"sentence-transformers {name}", PEERS / "sentence_transformers.py", TORCH, options
    )


CONTENDERS: Final = (
    Contender(OURS, PEERS / "ours.py", options={"precision": "auto"}, own_batches=True),
    Contender(REFERENCE, PEERS / "ours.py", options={"precision": "fp32"}, own_batches=True),
    _sentence_transformers("fp32", backend="torch", dtype="float32"),
    _sentence_transformers("bf16", backend="torch", dtype="bfloat16"),
    _sentence_transformers("openvino", backend="openvino"),
    Contender("fastembed", PEERS / "fastembed.py", "fastembed", exported=True),
    Contender("infinity", PEERS / "infinity.py", "infinity"),
)
