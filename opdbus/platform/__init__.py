"""Helpers for the operating system that all rooms use: tasks, files, lines, memory, the journal.

Owns no state but the journal's thread. Imports only `errors` of op-dbus.
"""
