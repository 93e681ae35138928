"""Full-text search in memory: postings, terms of recently changed entries, and BM25 scores.

Owns the word index; the FTS5 tables belong to the database room. Imports the catalogue
and storage.
"""
