"""What was observed of a booted host, as the service tells of it."""

import json
from typing import Any

from opdbus.bus import paths
from system.host import Host
from system.service import CHANGES, NAME, STATE, STATE_PATH, STORE, Service

_ROWS = """
import json, sqlite3, sys
reader = sqlite3.connect(f"file:{sys.argv[1]}/memory.db?mode=ro", uri=True)
rows = reader.execute("SELECT what, kind, name, cause FROM history ORDER BY seq")
print(json.dumps(list(rows)))
"""


def shown(host: Host, name: str) -> dict[str, Any]:
    """Give what was observed of the object plugin/kind/name; nothing where it is not."""
    get = ["busctl", "--json=short", "call", NAME, STATE_PATH, STATE, "Get", "oa{sv}"]
    done = host.run(*get, paths.of(*name.split("/", 2)), "0")
    return json.loads(json.loads(done.stdout)["data"][0])["observed"] if not done.returncode else {}


def until_shown(service: Service, name: str, **values: object) -> None:
    """Wait until an object has these values, None for none; without any, until it is gone."""

    def is_so() -> bool:
        found = shown(service.host, name)
        return bool(found) == bool(values) and all(found.get(k) == v for k, v in values.items())

    with service.host.monitor(*CHANGES) as heard:
        heard.until(is_so)


def forget_journal(host: Host) -> None:
    """Withdraw what op-dbus-journal.service published; it is stopped."""
    # nothing is listed where it published nothing
    host.run("sh", "-c", "op-dbus list -q --plugin journal | xargs -rd '\\n' op-dbus withdraw")


def rows(host: Host) -> list[tuple[str, ...]]:
    """Give the rows of history: what happened to which object, and why."""
    # by its path inside: SQLite follows links, also that to the host
    return [tuple(row) for row in json.loads(host.ask("/usr/bin/python3", "-c", _ROWS, STORE))]
