"""The D-Bus names of op-dbus, for the service and its clients."""

from typing import Final

BUS_NAME: Final = "org.opdbus"
VECTORIZER: Final = f"{BUS_NAME}.Vectorizer1"
STATE: Final = f"{BUS_NAME}.State1"
OBJECT: Final = f"{BUS_NAME}.Object1"
HISTORY: Final = f"{BUS_NAME}.History1"
JOB: Final = f"{BUS_NAME}.Job1"
# defined by systemd for any service
LOG_CONTROL: Final = "org.freedesktop.LogControl1"
# Actions of the authorization; polkit's ids are org.opdbus.ACTION.
VECTORIZE: Final = "vectorize"
ACTIONS: Final = ("read", VECTORIZE, "publish", "manage")
# The condition that failed units meet, and not those that only the state file calls failed; it
# names no plugin to list, since there may be none.
FAILED_UNITS: Final = "plugin=systemd, kind=unit, active_state=failed, source!=file"
