"""The names that op-dbus has on the bus, for both sides of it."""

from typing import Final

BUS_NAME: Final = "org.opdbus"
VECTORIZER: Final = f"{BUS_NAME}.Vectorizer1"
STATE: Final = f"{BUS_NAME}.State1"
OBJECT: Final = f"{BUS_NAME}.Object1"
HISTORY: Final = f"{BUS_NAME}.History1"
JOB: Final = f"{BUS_NAME}.Job1"
# systemd's, for any service
LOG_CONTROL: Final = "org.freedesktop.LogControl1"
# What a caller may be allowed to do; polkit knows each as org.opdbus.ACTION.
VECTORIZE: Final = "vectorize"
ACTIONS: Final = ("read", VECTORIZE, "publish", "manage")
