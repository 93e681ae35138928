"""How many texts a second op-dbus can feed to a model, and how many the level static embeds.

The pipeline is measured with a model that takes no time: all is as when op-dbus serves, tokenizer,
queue, batches and threads, but the session. It is proven with the real model, and then gives the
same vectors at once. Needs the medium model.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import structlog

sys.path.insert(0, str(Path(__file__).parent / "static"))
from speed import best, peer, speed

from opdbus import api, config
from opdbus.bench import machine
from opdbus.bench.texts import kinds
from opdbus.engine.opening import open_embedder
from opdbus.engine.sessions import open_session
from opdbus.engine.tokenizer import Tokenizer
from opdbus.models import folder
from opdbus.models.level_table import LEVELS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from opdbus.engine.provider import Placement, Provider, RunRecord, Session

_DIFFERENT: Final = 16384
_ENCODED: Final = 8192
# Rows that no batch has more of; and tokens of a batch, as many as a GPU has.
_ROWS: Final = 1 << 16


class Null:
    """A session that computes while it is proven, and then gives the same vectors at once."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._vectors: NDArray[np.float32] | None = None

    def run(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Give vectors of the right shape."""
        if self._vectors is None:
            return self._session.run(ids)
        return self._vectors[: len(ids)]

    def finish_profile(self) -> RunRecord:
        """Say where the model ran; from now on none runs."""
        ran = self._session.finish_profile()
        dimension = self._session.run(np.array([[0, 1]])).shape[1]
        self._vectors = np.full((_ROWS, dimension), dimension**-0.5, np.float32)
        return ran

    def renew(self) -> bool:
        """Return False: there is nothing to open again."""
        return False


def opener(graph: Path, provider: Provider, placement: Placement) -> Null:
    """Open a session, and put the one that takes no time before it."""
    return Null(open_session(graph, provider, placement))


def pipeline(kinds: Mapping[str, list[str]], seconds: float) -> dict[str, Any]:
    """Stream texts of each kind for some seconds."""
    # the library has no way in for another runtime
    api.open_embedder = partial(open_embedder, opener=opener)
    with api.Embedder("medium", precision="fp32", batch_tokens=_ROWS) as embedder:
        return {kind: _streamed(embedder, texts, seconds) for kind, texts in kinds.items()}


def _streamed(embedder: api.Embedder, texts: list[str], seconds: float) -> dict[str, float]:
    """Stream texts without end, and count vectors once all were seen."""
    stream = embedder.stream(itertools.cycle(texts))
    seen = count = 0
    while seen < 2 * len(texts):
        seen += len(next(stream))
    began, used = time.perf_counter(), time.process_time()
    while time.perf_counter() - began < seconds:
        count += len(next(stream))
    used, taken = time.process_time() - used, time.perf_counter() - began
    stream.close()
    return {"texts_per_second": round(count / taken), "cpu_us": round(1e6 * used / count, 2)}


def tokenizers(kinds: Mapping[str, list[str]]) -> dict[str, Any]:
    """Return texts a second on one core by the tokenizer and by its library, which agree."""
    model = folder.load_model(LEVELS["medium"], config.load(os.environ))
    tokenizer = Tokenizer.of(model)
    figures = {}
    for kind, texts in kinds.items():
        found, wanted = tokenizer.encode(texts), tokenizer.library.encode(texts)
        alike = sum(map(np.array_equal, found, wanted))
        [ours] = best([partial(tokenizer.encode, texts)])
        [library] = best([partial(tokenizer.library.encode, texts)], rounds=3)
        figures[kind] = {
            "texts": len(texts),
            "alike": alike,
            "texts_per_second": round(len(texts) / ours),
            "library": round(len(texts) / library),
        }
    return figures


def bulk(texts: int) -> dict[str, Any]:
    """Return what a file of short texts takes over the bus, in a process of its own."""
    script = Path(__file__).with_name("bulk.py")
    # a call's vectors may take 512 MiB
    options = ["--level", "static", "--kind", "short", "--dtype", "float16"]
    command = [sys.executable, script, "--texts", str(texts), *options]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    """Write the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each kind of texts")
    parser.add_argument("--bulk", type=int, default=1_000_000, help="texts over the bus")
    parser.add_argument("--model2vec", type=Path, help="the python that has model2vec installed")
    parser.add_argument("--json", type=Path, help="a file for the report (standard output)")
    given = parser.parse_args()
    # one core is one core
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    few = kinds(_ENCODED)
    report: dict[str, Any] = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": asdict(machine.describe()),
        "tokenizer": tokenizers(few),
        "static": speed(few),
        "model2vec": peer(given.model2vec, few) if given.model2vec else None,
        "pipeline": pipeline(kinds(_DIFFERENT), given.seconds),
        "bulk": bulk(given.bulk),
    }
    written = json.dumps(report, indent=1) + "\n"
    if given.json:
        given.json.write_text(written, encoding="utf-8")
    else:
        print(written, end="")


if __name__ == "__main__":
    main()
