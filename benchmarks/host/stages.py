"""Search quality on a whole host in two stages, beside that of the level's vectors alone.

As root: `python benchmarks/host/stages.py [--json FILE]`. One host is booted, and asked the
questions of tests/data/host_questions.json twice while every vector is there: with
`OP_DBUS_CASCADE=never`, and with `always`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from inside import ASKER, asked_by_a_member, parser, python, report
from questions import answered, figures
from system.service import STATE

if TYPE_CHECKING:
    from system.host import Host


def measure(host: Host) -> dict[str, Any]:
    """Return how well and how fast a populated host is searched, in each way."""
    service = asked_by_a_member(host)
    python(host, "populate.py")
    found: dict[str, Any] = {}
    for cascade in ("never", "always"):
        service.configure(OBSERVE="auto", CASCADE=cascade)
        service.systemctl("restart")
        found[cascade] = figures(answered(host)) | {"objects": service.get("Count", STATE)}
        found[cascade]["ms"] = json.loads(python(host, "search.py", user=ASKER))
    return found


if __name__ == "__main__":
    report(parser(__doc__).parse_args(), measure)
