"""The fleet's routes of /openapi.json, played against a gateway with a fleet."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from harness.gateways import TOKEN, Gateway

from gateway.test_host_schemathesis import CHECKS, PROGRAM

if TYPE_CHECKING:
    from harness.known_fleet import KnownFleet
    from harness.running import Running

pytestmark = pytest.mark.clients


def test_no_fault_and_no_undocumented_answer(
    served: Running, known: KnownFleet, tmp_path: Path
) -> None:
    """Answer all that schemathesis makes of the description with what that says, and never 5xx."""
    program = os.environ.get("SCHEMATHESIS", str(PROGRAM))
    if not Path(program).exists():
        pytest.skip("there is no schemathesis: `make clients`")
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    settings = {"HTTP_TOKEN_FILE": token, **known.settings}
    with Gateway(served, tmp_path, "--listen", "127.0.0.1:0", **settings) as gateway:
        command = [
            *(program, "run", f"http://127.0.0.1:{gateway.port('http')}/openapi.json"),
            *("-H", f"Authorization: Bearer {TOKEN}", "--include-path-regex", "^/fleet/"),
            *("--checks", CHECKS, "--max-examples", "30", "--phases", "coverage,fuzzing"),
            *("--request-timeout", "60", "--continue-on-failure", "--no-color"),
        ]
        ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert "Traceback" not in gateway.log.read_text()
    assert ran.returncode == 0, ran.stdout[-6000:]
    assert "Selected: 8/" in ran.stdout
