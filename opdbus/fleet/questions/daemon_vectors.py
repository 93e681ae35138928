"""The vector of a question from the daemon of this host: for the command line and the gateway."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from opdbus.client import Client
from opdbus.client.embedding import embed
from opdbus.errors import OpDbusError

_DTYPE: Final = "float32"


async def ask_daemon(client: Client, words: str) -> Mapping[str, Sequence[float]]:
    """Return the vector of a text by the name of the daemon's numerics; none without a model."""
    try:
        # a call would start a service that was stopped
        if not await client.is_served():
            return {}
        embedded = await embed(client, [words], {"dtype": _DTYPE, "wait": False})
    except OpDbusError:
        return {}  # no model: the answer says what was not compared
    vector: list[float] = np.frombuffer(embedded.rows[0], "<f4").tolist()
    return {str(embedded.details.get("numerics", "")): vector}
