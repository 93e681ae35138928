"""Query parsing: conditions, comparisons, dates, extremes, question patterns and spelling.

Owns the grammar of questions; its word tables are in `language`. Read `query_parser` first. Imports
the state store and vectors.
"""
