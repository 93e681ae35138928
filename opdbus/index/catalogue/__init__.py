"""Entries of all objects in memory: identities, names, texts, and listing order.

Owns the in-memory tables of entries, updated after each committed transaction. Imports the
database's records.
"""
