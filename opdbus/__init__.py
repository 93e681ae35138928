"""op-dbus: a host's semantic memory over D-Bus."""

__version__ = "0.1.0"
