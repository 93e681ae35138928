"""Parts of the operating system that every room uses: threads of work, files, lines, the journal.

Owns no state of its own but the journal's thread. Imports nothing of op-dbus but errors.
"""
