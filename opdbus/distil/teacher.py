"""Teacher's vectors of texts, stored in files so that an interrupted run continues."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from opdbus.api import Embedder
from opdbus.models import folder
from opdbus.models.catalogue import LEVELS

if TYPE_CHECKING:
    from opdbus.bench.measures import Notify
    from opdbus.config import Config
    from opdbus.models.folder import Model

PART: Final = 4096


def read(path: Path) -> Model:
    """Read a teacher's folder; raises ModelError if op-dbus cannot run the model."""
    named = (level for level in LEVELS.values() if level.folder == path.absolute().name)
    return folder.read(path.absolute(), next(named, LEVELS["medium"]))


def opened(level: str, path: Path, given: Config) -> Embedder:
    """Return an engine for a model's folder, not yet open; on the given provider, in fp32."""
    return Embedder(
        level,
        str(given.execution_provider),
        model=path,
        precision="fp32",
        threads=given.threads,
        gpu_device=",".join(given.gpu_device),
        state_dir=given.state_dir,
    )


def vectors(
    engine: Embedder, texts: Sequence[str], work: Path, notify: Notify
) -> NDArray[np.float32]:
    """Return vectors (texts, dimension); each finished part is stored in `work`."""

    def part(first: int, some: Sequence[str]) -> NDArray[np.float16]:
        began = time.monotonic()
        # float16 halves the size; its error is a thousandth of a student's
        found = engine.embed(some).astype(np.float16)
        rate = len(some) / (time.monotonic() - began)
        notify(f"teacher: {first + len(some)} of {len(texts)} texts, {rate:.0f} texts/s")
        return found

    model, found = engine.engine.model.weights_sha256, []
    for first in range(0, len(texts), PART):
        some = texts[first : first + PART]
        found.append(kept(work / f"{key(model, some)}.npy", partial(part, first, some)))
    return np.concatenate(found)


def kept(path: Path, make: Callable[[], NDArray[Any]]) -> NDArray[np.float32]:
    """Return the array of a file; make and store it atomically if there is none."""
    if not path.exists():
        part = path.with_suffix(".part.npy")
        np.save(part, make())
        part.rename(path)
    found: NDArray[np.float32] = np.load(path).astype(np.float32, copy=False)
    return found


def key(model: str, texts: Sequence[str]) -> str:
    """Return the file name for the vectors of texts by a model."""
    return hashlib.sha256("\0".join([model, *texts]).encode()).hexdigest()[:24]
