"""`python -m opdbus` is `op-dbus`."""

from opdbus.cli import main

main()
