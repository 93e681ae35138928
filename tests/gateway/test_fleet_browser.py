"""The page's view of a fleet in Chromium, by keyboard, with axe-core."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from harness.running import PATIENCE_SECONDS

from gateway.test_page import open_page

if TYPE_CHECKING:
    from harness.gateways import Gateway

ROOT = Path(__file__).parents[2]
NODE = Path(os.environ.get("OP_DBUS_TEST_NODE", ROOT / ".clients/node"))
pytestmark = pytest.mark.clients
# What each view of the fleet shows.
SHOWN = {
    "?q=session+of+backup": "0 login1/session and 7 alike",
    "/host/web5": "What most others have and it lacks",
    "/changes?since=all": "redis upgraded",
    "/drift": "enabled declared yes, observed no",
    "/odd?tag=web": "not there: nginx.service",
    "/missing?of=web4": "nginx.service",
    "/compare?first=web1&second=web5": "packages/package",
    "/compare": "Choose two hosts.",
    "/object/packages/package/openssh": "Hosts differ in",
    "/odd?tag=db": "at least 3 are needed",
    "/no-such-part": "there is no view fleet/no-such-part",
}
# thirteen views in three contexts
VIEWS = 39


def steps_of(gateway: Gateway) -> dict[str, list[Any]]:
    """Drive the page in Chromium, and return the values of each step."""
    if not (NODE / "node_modules/axe-core").exists() or not shutil.which("chromium"):
        pytest.skip("needs `make clients`, and chromium: `apt install chromium`")
    with open_page(gateway) as (link, _):
        done = subprocess.run(
            ["node", str(ROOT / "tests/clients/fleet.mjs"), link, str(NODE)],
            capture_output=True,
            text=True,
            timeout=4 * PATIENCE_SECONDS,
            check=False,
        )
    found: dict[str, list[Any]] = {}
    for line in done.stdout.splitlines():
        step = json.loads(line)
        found.setdefault(step["step"], []).append(step["value"])
    assert done.returncode == 0, (found, done.stderr)
    return found


@pytest.fixture(scope="module")
def steps(fleet_gateway: Gateway) -> dict[str, list[Any]]:
    """Drive the page of a gateway with a fleet."""
    return steps_of(fleet_gateway)


def test_without_a_fleet_there_is_no_link(gateway: Gateway) -> None:
    """Load no script of the fleet, and name it nowhere."""
    assert steps_of(gateway)["linked"] == [{"visible": False, "script": False}]


def test_the_script_comes_with_the_view(steps: dict[str, list[Any]]) -> None:
    """Load the script only when somebody looks at the fleet."""
    assert steps["linked"] == [{"visible": True, "script": False}]
    (overview,) = steps["overview"]
    assert overview["script"]
    assert overview["current"] == "page"
    for text in ("6 hosts", "1 silent", "db1", "observer docker failed", "redis upgraded"):
        assert text in overview["text"]


def test_questions_are_asked_by_keyboard(steps: dict[str, list[Any]]) -> None:
    """Answer a question, and compare two chosen hosts, each at an address of its own."""
    (answer,) = steps["answer"]
    assert "on 1 of 6 hosts: db1" in answer["text"]
    assert answer["address"].startswith("#/fleet?q=stores+tables")
    (compared,) = steps["compared"]
    assert compared["before"] is True
    assert compared["address"] == "#/fleet/compare?first=web1&second=web5"
    assert "openssh" in compared["text"]
    assert "evil.service" in compared["text"]


def test_views_show_what_is_known(steps: dict[str, list[Any]]) -> None:
    """Show the differences of the hosts in each view."""
    shown = {each["view"]: each["text"] for each in steps["view"]}
    assert shown.keys() == SHOWN.keys()
    for view, text in SHOWN.items():
        assert text in shown[view], view


def test_no_view_violates_a_rule_of_accessibility(steps: dict[str, list[Any]]) -> None:
    """Have axe-core find nothing in any view, light, dark and small, and nothing too wide."""
    found = steps["axe"]
    assert len(found) == VIEWS
    assert [each for each in found if each["violations"] or each["wide"]] == []
    assert steps["faults"] == [{"faults": [], "breaches": []}]
