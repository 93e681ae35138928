"""Postings of words in memory, recent words, and BM25 scores.

Owns the word index; the full-text tables of SQLite belong to the database. Imports the catalogue,
snapshots and storage.
"""
