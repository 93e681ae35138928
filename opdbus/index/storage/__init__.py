"""Access to the database from the event loop: writing and reading threads, recovery, migration.

Owns the connections. Imports the database.
"""
