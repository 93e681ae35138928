"""Starts a daemon whose open sessions of a model all fail from a SIGUSR1 on; new ones run.

It stands for a device that is lost. The daemon is as it is: only the sessions that it opens are
wrapped here, where the engine opens them.
"""

from __future__ import annotations

import runpy
import signal
import sys
from typing import TYPE_CHECKING, Any, cast

from opdbus.engine import sessions

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from opdbus.engine.provider import Session

_open = sessions.open_session
_killed = 0


class Mortal:
    """A session that fails after the first signal since it was opened."""

    def __init__(self, inner: Session) -> None:
        self._inner, self._born = inner, _killed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def run(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Embed, unless killed."""
        if self._born != _killed:
            raise RuntimeError("the device was lost, as the run asked")
        return self._inner.run(ids)


def _kill(*_: object) -> None:
    global _killed  # noqa: PLW0603 -- a signal's handler has no other place
    _killed += 1


def main() -> None:
    """Run the module that the rest of the command line names."""
    _python, _, module, *arguments = sys.argv[1:]
    # before anything imports it by name
    sessions.open_session = lambda *given: cast("Session", Mortal(_open(*given)))
    signal.signal(signal.SIGUSR1, _kill)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
