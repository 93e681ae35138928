"""docs/openapi.json: the routes of the writing socket, which has all routes of the reading one."""

import json

from docs_parts.tables import ROOT
from opdbus.gateway.daemon_link import DaemonLink
from opdbus.gateway.server import write_app

FILE = ROOT / "docs/openapi.json"


def openapi() -> str:
    """Return the file."""
    # nothing is connected for it
    return json.dumps(write_app(DaemonLink("none")).openapi(), indent=1, ensure_ascii=False) + "\n"
