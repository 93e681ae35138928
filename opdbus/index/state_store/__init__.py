"""The state store: all entries on disk and in memory, kept in agreement. Read `state_store` first.

Owns transactions, events, the writing of snapshots, erasure and retention of history.
Imports the catalogue, database, fields, fulltext, snapshot and storage rooms of the index.
"""
