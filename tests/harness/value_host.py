"""A host of some 400 objects in the shapes that observers report, for questions about values."""

import json
from pathlib import Path

from opdbus.state.object import Identity, StateObject

_FILE = Path(__file__).parents[1] / "data" / "value_host.json"


def objects() -> list[StateObject]:
    """Return every object."""
    return [
        StateObject(Identity(f"live:{plugin}", plugin, kind, name), properties)
        for plugin, kind, name, properties in json.loads(_FILE.read_text())
    ]
