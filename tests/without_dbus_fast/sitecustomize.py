"""On PYTHONPATH, as if dbus-fast were not installed, in child processes too."""

import sys

sys.modules["dbus_fast"] = None  # type: ignore[assignment] -- importing it raises then
