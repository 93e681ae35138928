"""Other programs that embed texts, each a script that runs in a virtual environment of its own.

A script has `PACKAGES`, whose versions are reported, and `load`. It cannot import op-dbus.
"""
