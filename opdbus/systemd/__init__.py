"""op-dbus as a systemd service: notifications, and its own unit.

Owns the notify socket. Imports settings and config.
"""
