"""The programs that are compared, op-dbus among them: one row each, and how each is started."""

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
# Where torch is, which exports the model for peers that read ONNX only.
TORCH: Final = "torch"


@dataclass(frozen=True, slots=True)
class Contender:
    """One row: its script, the virtual environment it runs in, and the options of its `load`."""

    name: str
    script: Path
    # under the folder of the peers' environments; empty for the one that we run in
    venv: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    # whether it needs the model as an ONNX file
    exported: bool = False
    # whether it chooses its batches itself: one call for all texts then has one figure only
    own_batches: bool = False

    def python(self, venvs: Path) -> Path:
        """Give the interpreter that runs the script."""
        return python_of(venvs, self.venv) if self.venv else Path(sys.executable)


def python_of(venvs: Path, name: str) -> Path:
    """Give the interpreter of one of the peers' environments."""
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
