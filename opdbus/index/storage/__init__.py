"""The database used from the event loop: one writing thread, readers, recovery and migration.

Owns the connections. Imports the database and snapshots.
"""
