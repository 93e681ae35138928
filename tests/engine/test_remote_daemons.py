"""Two daemons, one of which is the other's provider by its gateway: killed, and back again."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from harness.gateways import Gateway
from harness.running import Caller, Make, ask

pytest.importorskip(
    "fastapi", reason="the gateway needs the extra http: `pip install op-dbus[http]`"
)

CPU = "cpu:onnxruntime"
TEXTS = [f"mail server {number}" for number in range(40)]


async def vectorize(caller: Caller) -> np.ndarray:
    """Ask for vectors of many texts."""
    rows, _, _, data = await caller.ask("VectorizeMany", TEXTS, {})
    return np.frombuffer(bytes(data), "<f4").reshape(rows, -1)


@pytest.mark.parametrize("victim", ["gateway", "daemon"])
def test_every_call_is_answered_where_the_remote_is_killed(
    daemons: Make, tmp_path: Path, victim: str
) -> None:
    """Answer every call rightly while the remote's gateway or daemon is killed under load."""

    async def work(caller: Caller) -> None:
        await caller.vectorized()
        assert await caller.read("Provider") == name
        assert await caller.read("Precision") == "fp32"
        before = await vectorize(caller)
        killed, under_load, answered = asyncio.Event(), asyncio.Event(), [0]

        async def asks() -> None:
            # until the other provider has served some calls
            left = 5
            while left:
                found = await vectorize(caller)
                assert np.abs(found - before).max() < 1e-5
                answered[0] += 1
                if answered[0] == 8:
                    under_load.set()
                left -= killed.is_set() and await caller.read("Provider") == CPU

        asking = [asyncio.ensure_future(asks()) for _ in range(4)]
        await under_load.wait()
        os.kill(gateway.pid if victim == "gateway" else remote.pid, signal.SIGKILL)
        killed.set()
        await asyncio.gather(*asking)
        fallbacks = await caller.read("Fallbacks")
        assert [each[0] for each in fallbacks] == [name]
        assert "stopped working" in fallbacks[0][1]
        assert await caller.read("State") == "degraded"

    with daemons("remote") as remote, Gateway(remote.vectorized(), tmp_path) as gateway:
        name = f"remote:unix:{gateway.socket}"
        with daemons("local", EXECUTION_PROVIDER=f"{name},{CPU}") as local:
            ask(local, work)
            assert "Traceback" not in local.log
            assert local.stop() == 0
