"""Values of settings: parsers, files of variables, and the permissions of /etc/op-dbus.

Owns the syntax of a value; the table of settings is `config`. Imports errors and platform.
"""
