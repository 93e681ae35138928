"""Scripts of other programs that embed texts, each run in a virtual environment of its own.

A script has `PACKAGES`, whose versions are reported, and `load`. It cannot import op-dbus.
"""
