"""Export of a model's folder to ONNX with torch, for peers that read nothing else.

Run as `VENV/bin/python export.py FOLDER TARGET` where torch and transformers are installed.
onnxruntime's offline optimizer made nothing faster.
"""

from __future__ import annotations

import sys
from pathlib import Path


def export(folder: Path, target: Path) -> None:
    """Write `model.onnx`, from tokens to the last hidden states, and the tokenizer's files."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModel.from_pretrained(folder, local_files_only=True).eval()
    example = dict(tokenizer(["one", "and another one"], padding=True, return_tensors="pt"))
    any_size = torch.export.Dim.DYNAMIC
    program = torch.onnx.export(
        model,
        kwargs=example,
        dynamic_shapes={name: {0: any_size, 1: any_size} for name in example},
        output_names=["last_hidden_state"],
        dynamo=True,
        verbose=False,
    )
    target.mkdir(parents=True)
    program.save(str(target / "model.onnx"))
    tokenizer.save_pretrained(target)
    model.config.save_pretrained(target)


if __name__ == "__main__":
    export(Path(sys.argv[1]), Path(sys.argv[2]))
