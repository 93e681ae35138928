"""Entry point of `python -m opdbus`, the same as `op-dbus`."""

from opdbus.cli import main

main()
