"""Ways around imports of other packages that take memory and that the daemon does not use."""

import sys
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

_Integer = TypeVar("_Integer", bound=np.integer)


def import_structlog() -> None:
    """Import structlog without rich (4.5 MiB), which only its console output would use.

    Importing a module whose entry is None raises ImportError, which structlog expects. A later
    `import rich` works as ever.
    """
    if not {"rich", "structlog"} & sys.modules.keys():
        sys.modules["rich"] = None  # type: ignore[assignment]
        try:
            import structlog  # noqa: F401 -- imported for the modules that follow
        finally:
            del sys.modules["rich"]


def distinct(values: NDArray[_Integer]) -> NDArray[_Integer]:
    """Return the distinct values in ascending order.

    numpy.unique does the same, and imports numpy.ma (3.5 MiB).
    """
    ordered: NDArray[_Integer] = np.sort(values, axis=None)
    is_first = np.ones(len(ordered), np.bool_)
    is_first[1:] = ordered[1:] != ordered[:-1]
    return ordered[is_first]
