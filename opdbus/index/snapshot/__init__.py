"""Snapshots of in-memory tables in files, so that a restart reads only what changed since.

Owns the snapshot files in the state directory; a damaged file is ignored. Imports the catalogue's
columns and the database.
"""
