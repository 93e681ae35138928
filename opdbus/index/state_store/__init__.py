"""The state store: all entries on disk and in memory, kept in agreement. Read `state_store` first.

Owns transactions, events, erasure and retention of history.
Imports the catalogue, database, fields, fulltext and storage rooms of the index.
"""
