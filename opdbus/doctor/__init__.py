"""Checks of all that op-dbus needs on this host, each with advice."""
