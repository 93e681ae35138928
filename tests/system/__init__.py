"""A real systemd, booted in namespaces on this machine: op-dbus as an administrator has it."""
