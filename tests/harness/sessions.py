"""Real sessions that tests alter: what they give, or whether they run at all."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from opdbus.errors import ProviderError

if TYPE_CHECKING:
    import numpy as np

    from opdbus.engine.provider import RunRecord, Session

TWO_RUNTIMES = pytest.mark.skipif(
    find_spec("openvino") is None, reason="it needs a second runtime: `pip install openvino`"
)


class Wrapped:
    """A real session behind a test's own; what a test does not alter is as it is."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def run(self, ids: np.ndarray) -> np.ndarray:
        """Embed."""
        return self.session.run(ids)

    def renew(self) -> bool:
        """Open the model anew, as the real one does."""
        return self.session.renew()

    def finish_profile(self) -> RunRecord:
        """Count nodes truly."""
        return self.session.finish_profile()


class Mortal(Wrapped):
    """The session of a provider that works until that provider is dead."""

    def __init__(self, session: Session, provider: str, dead: set[str]) -> None:
        super().__init__(session)
        self._provider = provider
        self._dead = dead

    def run(self, ids: np.ndarray) -> np.ndarray:
        """Run, if the provider lives."""
        if self._provider in self._dead:
            raise ProviderError("CUDA failure 719: unspecified launch failure")
        return super().run(ids)
