"""The page in Chromium, with axe-core, while objects change and the daemon comes and goes."""

import json
import os
import re
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
def browser(gateway: Gateway, served: Running) -> Iterator[Browser]:
    """Open the page in Chromium."""
    if not (NODE / "node_modules/axe-core").exists() or not shutil.which("chromium"):
        pytest.skip("needs `make clients`, and chromium: `apt install chromium`")
    publish(served, "systemd", "unit", "postfix.service", active_state="failed")
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


def publish(served: Running, plugin: str, kind: str, name: str, **properties: object) -> None:
    """Publish one object, as a program on the host does."""
    one = {"plugin": plugin, "kind": kind, "name": name, "properties": properties}
    assert served.cli("publish", f"probe-{plugin}", stdin=json.dumps([one])).returncode == 0


def test_a_browser_sees_what_the_host_answers(browser: Browser, served: Running) -> None:
    """Ask, show an object, drift, the map and a change as it comes; come back with the daemon."""
    ANSWER.extend(browser.until("ask"))
    both = browser.until("object")
    assert "active" in both
    assert "failed" in both
    drift = browser.until("drift")
    assert re.search(r"postfix\.service[\s\S]*declared active, observed failed", drift), drift
    drawn = browser.until("map")
    assert drawn["painted"], drawn
    assert f"{drawn['served']} objects" in drawn["shown"], drawn
    browser.until("wait for change")
    publish(served, "backup", "job", "live-change", state="on")
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


def test_the_page_outlives_the_daemon_and_the_gateway(
    browser: Browser, served: Running, gateway: Gateway
) -> None:
    """Say that nothing answers while one was killed, and show the same view when it is back."""
    browser.until("kill the daemon")
    served.kill()
    browser.go_on()
    assert "does not answer" in browser.until("no daemon")
    served.start().vectorized()
    publish(served, "systemd", "unit", "postfix.service", active_state="failed")
    browser.go_on()
    assert browser.until("the daemon again")
    browser.until("kill the gateway")
    gateway.__exit__()
    browser.go_on()
    assert "does not answer" in browser.until("no gateway")
    gateway.__enter__()
    browser.go_on()
    assert browser.until("the gateway again")


def test_other_sites_and_who_has_the_link_are_refused(browser: Browser) -> None:
    """Refuse another site in the browser that has the cookie, and one that has only the link."""
    foreign = browser.until("foreign origin")
    assert (foreign["read"], foreign["link"]) == ("refused", 403)
    assert foreign["post"] in {"nothing", "refused"}
    assert all(each.startswith("chrome-error:") for each in foreign["framed"])
    assert browser.until("without the cookie") == [403, 403, 403]


def test_no_view_violates_a_rule_of_accessibility(browser: Browser) -> None:
    """Have axe-core find nothing in any view, light, dark and on a phone, and no script a fault."""
    found = [browser.until("axe") for _ in range(27)]
    assert [each for each in found if each["violations"]] == []
    assert browser.until("faults") == []
    if os.environ.get("CLIENTS_RECORD"):
        seen = [f"{each['view']} {each['colorScheme']} {each['width']}" for each in found]
        day = datetime.now(UTC).strftime("%Y-%m-%d")
        report = {"date": day, "axe-core, no violation": seen, "answer ms": ANSWER}
        (ROOT / f"benchmarks/results/{day}-page.json").write_text(
            json.dumps(report, indent=1) + "\n"
        )
