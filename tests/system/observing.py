"""What was observed of a booted host, as its commands show it."""

import json
from typing import Any

from system.host import Host
from system.service import CHANGES, STORE, Service

_ROWS = """
import json, sqlite3, sys
reader = sqlite3.connect(f"file:{sys.argv[1]}/memory.db?mode=ro", uri=True)
rows = reader.execute("SELECT what, kind, name, cause FROM history ORDER BY seq")
print(json.dumps(list(rows)))
"""


def shown(host: Host, name: str) -> dict[str, Any]:
    """Give what was observed of an object; nothing where it is not."""
    done = host.run("op-dbus", "show", name, "--json")
    return json.loads(done.stdout)["Observed"] or {} if done.returncode == 0 else {}


def until_shown(service: Service, name: str, **values: object) -> None:
    """Wait until an object has these values; without any, until it is gone."""
    with service.host.monitor(*CHANGES) as heard:
        if values:
            heard.until(lambda: shown(service.host, name).items() >= values.items())
        else:
            heard.until(lambda: not shown(service.host, name))


def rows(host: Host) -> list[tuple[str, ...]]:
    """Give the rows of history: what happened to which object, and why."""
    # by its path inside: SQLite follows links, also that to the host
    return [tuple(row) for row in json.loads(host.ask("/usr/bin/python3", "-c", _ROWS, STORE))]
