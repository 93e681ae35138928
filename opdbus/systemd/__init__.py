"""op-dbus as a systemd service: notifications, its own unit, and reloads.

Owns the notify socket. Imports settings, config, serving and the loader of the state file.
"""
