"""Imports that the daemon does without."""

import subprocess
import sys

import numpy as np
import pytest
from numpy.typing import NDArray

from opdbus.platform.lean_imports import distinct

_DAEMON = """
import sys
from opdbus.platform.lean_imports import distinct, import_structlog
import_structlog()
import opdbus.daemon
import numpy as np
distinct(np.array([2, 1, 2]))
print(sorted({"rich", "pygments", "attr", "tokenizers", "numpy.ma"} & sys.modules.keys()))
import rich.console
print(rich.console.Console.__name__)
"""


def test_the_daemon_imports_none_of_these_and_can_do_so_later() -> None:
    """Import the daemon without rich, tokenizers and numpy.ma, and rich afterwards."""
    done = subprocess.run(
        [sys.executable, "-c", _DAEMON], capture_output=True, text=True, check=True
    )

    assert done.stdout.split("\n") == ["[]", "Console", ""]


@pytest.mark.parametrize(
    "values",
    [
        np.array([], np.int64),
        np.array([7]),
        np.array([3, 1, 3, 2, 1], np.int32),
        np.array([0, 255, 0, 1], np.uint8),
        np.array([[1, 2], [2, np.iinfo(np.int64).min]]),
    ],
)
def test_distinct_values_are_those_of_numpy(values: NDArray[np.integer]) -> None:
    """Give the values of numpy.unique in the same type."""
    found = distinct(values)

    assert found.tolist() == np.unique(values).tolist()
    assert found.dtype == values.dtype
