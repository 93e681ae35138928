"""The OpenAPI description against the running routes, by schemathesis."""

import json
import os
import re
import subprocess
import time
from pathlib import Path

import httpx
import pytest
from conftest import ROOT
from harness.gateways import TOKEN, Gateway
from harness.running import PATIENCE_SECONDS, Running

pytestmark = pytest.mark.clients

PROGRAM = ROOT / ".clients/python/bin/st"
RESULT = ROOT / "benchmarks/results/2026-11-27-schemathesis.json"
CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,"
    "response_headers_conformance,response_schema_conformance"
)


def load_all(url: str) -> None:
    """Wait until all levels serve: while one loads, the documented answer is 503."""
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {TOKEN}"}) as client:
        until = time.monotonic() + PATIENCE_SECONDS
        for model in client.get("/v1/models").raise_for_status().json()["data"]:
            body = {"model": model["id"], "input": "a disk"}
            while client.post("/v1/embeddings", json=body, timeout=60).status_code == 503:
                assert time.monotonic() < until, model
                time.sleep(0.2)


def test_no_fault_and_no_undocumented_answer(served: Running, tmp_path: Path) -> None:
    """Answer all that schemathesis makes of the description with what that says, and never 5xx."""
    program = os.environ.get("SCHEMATHESIS", str(PROGRAM))
    if not Path(program).exists():
        pytest.skip("there is no schemathesis: `make clients`")
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    flags = ("--listen", "write=127.0.0.1:0")
    with Gateway(served, tmp_path, *flags, HTTP_WRITE_TOKEN_FILE=token) as gateway:
        url = f"http://127.0.0.1:{gateway.port('write')}"
        load_all(url)
        command = [
            *(program, "run", f"{url}/openapi.json"),
            *("-H", f"Authorization: Bearer {TOKEN}"),
            *("--checks", CHECKS, "--max-examples", "20", "--phases", "coverage,fuzzing"),
            *("--request-timeout", "120"),
            # a stream does not end
            *("--exclude-path", "/changes/stream", "--continue-on-failure", "--no-color"),
        ]
        ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert "Traceback" not in gateway.log.read_text()
    assert "Traceback" not in served.log
    assert ran.returncode == 0, ran.stdout[-6000:]
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    counts = re.findall(r"Selected: (\d+)/(\d+)|(\d+) generated", ran.stdout)
    result = {
        "program": version.stdout.strip(),
        "checks": CHECKS.split(","),
        "routes": int(counts[0][0]),
        "requests": int(counts[-1][2]),
        "failures": 0,
    }
    if "SCHEMATHESIS_RECORD" in os.environ:
        RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
