"""Each .deb package alone on a fresh host of Debian: its program starts, and answers.

`PYTHONPATH=tests python -m system.packages_alone --json FILE` installs each one, with what it
depends on and no other, on a host of its own. It ends with 1 if an answer is wrong.
"""

import argparse
import json
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from system import http_calls, packaged
from system.alone import Outcome, report, tried
from system.host import PATIENCE_SECONDS, Host
from system.service import SETTINGS

BASE: Final = ("op-dbus", "op-dbus-model-medium")
_HELLO = """
import json, subprocess, sys
calls = [
    {"id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {},
        "clientInfo": {"name": "probe", "version": "1"}}},
    {"method": "notifications/initialized"},
    {"id": 2, "method": "tools/call", "params": {
        "name": "ask", "arguments": {"question": sys.argv[1]}}},
]
lines = "".join(json.dumps({"jsonrpc": "2.0", **call}) + "\\n" for call in calls)
own = subprocess.Popen(
    ["op-dbus", "mcp"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
own.stdin.write(lines)
own.stdin.flush()
print(own.stdout.readline(), own.stdout.readline())
own.stdin.close()
"""
_OPEN_PAGE = """
import subprocess, urllib.request
own = subprocess.Popen(["op-dbus", "page", "--print"], stdout=subprocess.PIPE, text=True)
print(urllib.request.urlopen(own.stdout.readline()).status)
own.terminate()
"""


def answers(host: Host) -> str:
    """Wait until the service gives the right answer."""
    packaged.until_answered(host)
    return packaged.ANSWER


def answers_on_openvino(host: Host) -> str:
    """Wait until the service serves on OpenVINO, as asked, and gives the right answer."""
    # one precision, since comparing all of them takes minutes on a busy machine
    settings = "OP_DBUS_EXECUTION_PROVIDER=cpu:openvino\nOP_DBUS_PRECISION=fp32\n"
    host.write(SETTINGS, host.path(SETTINGS).read_text() + settings)
    host.ask("systemctl", "restart", "op-dbus.service")
    packaged.until_ready(host)
    status = json.loads(host.ask("op-dbus", "status", "--json"))
    assert status["Provider"] == "cpu:openvino", status
    return answers(host)


def answers_over_http(host: Host) -> str:
    """Switch HTTP on, and ask over it, by MCP and on the page."""
    packaged.until_answered(host)
    host.ask("systemctl", "enable", "--now", "op-dbus-gateway.socket")
    query = packaged.QUESTION.replace(" ", "+").replace("?", "%3F")
    status, text = http_calls.ask(host, f"/search?q={query}&kind=unit&limit=1")
    assert status == 200, text
    (hit,) = json.loads(text)["hits"]
    assert host.ask("python3", "-c", _OPEN_PAGE) == "200"
    told = host.ask("python3", "-c", _HELLO, packaged.QUESTION)
    assert packaged.ANSWER in told, told
    return f"{hit['plugin']}/{hit['kind']}/{hit['name']}"


def answers_of_all_hosts(host: Host) -> str:
    """Run a server and a sender by their units, and search over all hosts."""
    packaged.until_answered(host)
    host.ask("systemctl", "enable", "--now", "op-dbus-fleet-server.service")
    host.ask("op-dbus", "fleet", "add", "here", "--out", "/etc/op-dbus-fleet")
    host.ask("systemctl", "enable", "--now", "op-dbus-fleet.service")
    end = time.monotonic() + PATIENCE_SECONDS
    while not json.loads(host.ask("op-dbus", "fleet", "hosts", "--json"))[0]["compared_at"]:
        assert time.monotonic() < end, host.log()
        time.sleep(0.2)
    words = ("search", "-n", "1", "dbus.service", "--json")
    (hit,) = json.loads(host.ask("op-dbus", "fleet", *words))["hits"]
    return "/".join(hit["found"]["object_id"].values())


# The packages that each one needs besides `BASE`, itself included.
PACKAGES: Final[dict[str, tuple[tuple[str, ...], Callable[[Host], str]]]] = {
    "op-dbus": ((), answers),
    "op-dbus-openvino": (("op-dbus-openvino",), answers_on_openvino),
    "op-dbus-gateway": (("op-dbus-gateway",), answers_over_http),
    "op-dbus-fleet": (("op-dbus-gateway", "op-dbus-fleet"), answers_of_all_hosts),
}


def try_package(root: Path, folder: Path, suite: str, name: str) -> Outcome:
    """Install a package on a fresh host with what it needs, and ask its programs."""
    more, ask = PACKAGES[name]
    with packaged.boot(
        root, [packaged.find_one(folder, suite, each) for each in (*BASE, *more)]
    ) as host:

        def install_and_ask() -> str:
            packaged.install(host)
            return ask(host)

        return tried(f"{name} {suite}", install_and_ask, packaged.ANSWER)


def main() -> int:
    """Try the packages that were named, or all; return 1 if one of them has failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suite", action="append", choices=packaged.SUITES)
    parser.add_argument("--packages", type=Path, default=Path("dist"))
    parser.add_argument("--only", action="append", choices=PACKAGES)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    names = given.only or [*PACKAGES]
    with tempfile.TemporaryDirectory(prefix="op-dbus-packages-") as scratch:

        def try_all() -> Iterator[Outcome]:
            own = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
            for suite in given.suite or [own]:
                root = packaged.make_root(suite, Path(scratch))
                yield from (try_package(root, given.packages, suite, name) for name in names)

        return report("package", try_all(), (), given.json)


if __name__ == "__main__":
    sys.exit(main())
