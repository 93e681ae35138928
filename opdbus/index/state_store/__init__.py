"""All objects, on disk and in memory, kept in agreement: read `state_store` first.

Owns transactions, events, snapshots to be written, migration, erasure and retention of history.
Imports all rooms of the index above it.
"""
