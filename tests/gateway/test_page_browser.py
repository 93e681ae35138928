"""The page in Chromium, with axe-core, while objects change and the daemon comes and goes."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from harness.gateways import Gateway
from harness.running import PATIENCE_SECONDS, Running

from gateway.test_page import open_page

ROOT = Path(__file__).parents[2]
NODE = Path(os.environ.get("OP_DBUS_TEST_NODE", ROOT / ".clients/node"))
pytestmark = pytest.mark.clients
# milliseconds from typing to the first answer
ANSWER: list[float] = []


class Browser:
    """The script that drives Chromium: waits for its steps, and lets it go on."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def until(self, step: str) -> Any:
        """Return the value of a step, and skip those before it."""
        assert self._process.stdout
        for line in self._process.stdout:
            found = json.loads(line)
            if found["step"] == step:
                return found["value"]
        raise AssertionError(f"it ended before {step}: {self._process.communicate()[1]}")

    def go_on(self) -> None:
        """Let the script go on."""
        assert self._process.stdin
        self._process.stdin.write("\n")
        self._process.stdin.flush()


@pytest.fixture(scope="module")
def browser(gateway: Gateway) -> Iterator[Browser]:
    """Open the page in Chromium."""
    if not (NODE / "node_modules/axe-core").exists() or not shutil.which("chromium"):
        pytest.skip("needs `make clients`, and chromium: `apt install chromium`")
    with open_page(gateway) as (link, _):
        process = subprocess.Popen(
            ["node", str(ROOT / "tests/clients/page.mjs"), link, str(NODE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        yield Browser(process)
        process.kill()
        process.communicate(timeout=PATIENCE_SECONDS)


def test_a_browser_sees_what_the_host_answers(browser: Browser, served: Running) -> None:
    """Ask, show an object, drift, the map and a change as it comes; come back with the daemon."""
    ANSWER.append(browser.until("ask"))
    assert browser.until("object")
    assert "declared" in browser.until("drift")
    assert browser.until("map")
    browser.until("wait for change")
    job = {"plugin": "backup", "kind": "job", "name": "live-change", "properties": {"state": "on"}}
    assert served.cli("publish", "probe", stdin=json.dumps([job])).returncode == 0
    browser.go_on()
    assert browser.until("live change")
    served.send(signal.SIGSTOP)
    browser.go_on()
    try:
        assert "does not answer" in browser.until("gone")
    finally:
        served.send(signal.SIGCONT)
    browser.go_on()
    assert browser.until("back")


def test_no_view_violates_a_rule_of_accessibility(browser: Browser) -> None:
    """Have axe-core find nothing in any view, light and dark, and the script no fault."""
    found = [browser.until("axe") for _ in range(18)]
    assert [each for each in found if each["violations"]] == []
    assert browser.until("faults") == []
    if os.environ.get("CLIENTS_RECORD"):
        seen = [f"{each['view']} {each['colorScheme']}" for each in found]
        day = datetime.now(UTC).strftime("%Y-%m-%d")
        report = {"date": day, "axe-core, no violation": seen, "answer ms": ANSWER}
        (ROOT / f"benchmarks/results/{day}-page.json").write_text(
            json.dumps(report, indent=1) + "\n"
        )
