"""The conformance tests of MCP against the fixture server on our route.

python -m harness.conformance REPORT.json
"""

import json
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from harness.running import read_lines

CLIENTS = Path(__file__).parents[2] / ".clients" / "node" / "node_modules"
PACKAGE = CLIENTS / "@modelcontextprotocol" / "conformance"
# The tests need a newer Node than Debian's.
NODE = next(CLIENTS.glob("node-linux-*/bin/node"), CLIENTS / "node")
REVISIONS = ("2026-07-28", "2025-11-25")
# Scenarios of what op-dbus does not offer, and why.
_ASKS = "op-dbus asks nothing of its clients"
NOT_OFFERED: Mapping[str, str] = {
    "input-required-result-": _ASKS,
    "tools-call-sampling": _ASKS,
    "tools-call-elicitation": _ASKS,
    "elicitation-": _ASKS,
    "logging-set-level": "no log is sent to clients",
    "tools-call-with-logging": "no log is sent to clients",
    "tasks-": "no tool runs longer than a call",
    "json-schema-2020-12": "a tool that only the scenario has",
    "http-custom-header-server-validation": "no argument is sent as a header",
    "server-sse-polling": "no stream is resumed",
}
# Checks of the same inside other scenarios.
CHECKS_NOT_OFFERED = frozenset(
    ("sep-2575-server-rejects-undeclared-capability", "sep-2575-missing-capability-http-400")
)


def why_missing() -> str:
    """Return what has to be installed first, empty if nothing has."""
    return "" if PACKAGE.exists() and NODE.exists() else "needs `make clients`"


def run(revision: str) -> dict[str, dict[str, list[str]]]:
    """Run all that a revision requires, and return the checks of each scenario by status."""
    server = subprocess.Popen(
        [sys.executable, "-m", "harness.conformance_server", "0"],
        cwd=Path(__file__).parents[1],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with server, tempfile.TemporaryDirectory() as folder:
        try:
            port = read_lines(server, lambda text: "listening" in text).split()[-1]
            url = f"http://127.0.0.1:{port}/mcp"
            command = [NODE, PACKAGE / "dist" / "index.js", "server", "--url", url]
            more = ["--requirements", revision, "--timeout", "10000", "--output-dir", folder]
            subprocess.run([*command, *more], capture_output=True, timeout=300, check=False)
        finally:
            server.kill()
        return {
            re.sub(r"^server-|-\d{4}-\d\d-\d\dT.*$", "", path.parent.name): _by_status(path)
            for path in sorted(Path(folder).glob("*/checks.json"))
        }


def reason_of(scenario: str) -> str:
    """Return why a scenario does not apply; empty if it does."""
    return next((why for start, why in NOT_OFFERED.items() if scenario.startswith(start)), "")


def _by_status(path: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for check in json.loads(path.read_text()):
        found.setdefault(check["status"].lower(), []).append(check["id"])
    return found


def report() -> dict[str, Any]:
    """Return how all revisions went."""
    package = json.loads((PACKAGE / "package.json").read_text())
    found: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(),
        "conformance": package["version"],
        "mcp": version("mcp"),
        "python": platform.python_version(),
    }
    for revision in REVISIONS:
        scenarios = run(revision)
        found[revision] = {
            name: {status: sorted(ids) for status, ids in checks.items() if status != "info"}
            | ({"not offered": reason} if (reason := reason_of(name)) else {})
            for name, checks in scenarios.items()
        }
    return found


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(report(), indent=1) + "\n")
