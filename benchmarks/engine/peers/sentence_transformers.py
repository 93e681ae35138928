"""Contender sentence-transformers, with backend torch or openvino in the requested precision."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from child import At, Embed, Facts

PACKAGES = ("sentence-transformers", "transformers", "torch", "optimum-intel", "openvino")


def load(folder: Path, _: Path, threads: int, options: dict[str, str]) -> tuple[At, Facts]:
    """Load the model; the library sorts texts by length and batches them."""
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(threads)
    backend = options["backend"]
    settings: dict[str, Any] = {"dtype": getattr(torch, options.get("dtype", "float32"))}
    if backend == "openvino":
        settings = {"ov_config": {"INFERENCE_NUM_THREADS": str(threads)}}
    model = SentenceTransformer(
        str(folder),
        backend=backend,
        device=options.get("device", "cpu"),
        model_kwargs=settings,
        local_files_only=True,
    )

    if compiler := options.get("compile"):
        # weights become constants of the compiled code, in its own layout
        torch._inductor.config.freezing = True
        model[0].auto_model = torch.compile(model[0].auto_model, backend=compiler)

    def at(batch: int) -> Embed:
        return lambda texts: model.encode(texts, batch_size=batch, show_progress_bar=False)

    precision = options.get("dtype", "") or _openvino_precision(model)
    settled = f"{backend} backend" + (f", torch.compile with {compiler}" if compiler else "")
    return at, {"precision": precision, "threads": str(threads), "settings": settled}


def _openvino_precision(model: Any) -> str:  # noqa: ANN401 -- untyped
    """Return the precision in which the compiled model computes."""
    inner = model[0].auto_model
    if inner.request is None:
        inner.compile()
    compiled = getattr(inner.request, "get_compiled_model", lambda: inner.request)()
    return str(compiled.get_property("INFERENCE_PRECISION_HINT")).strip("<>").split("'")[1]
