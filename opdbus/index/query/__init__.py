"""Query parsing: conditions, times of schedules, extremes, question patterns and spelling.

Owns the grammar of questions about objects, as tables of rules with an example each; its word
tables are in `language`. Read `query_parser` first. Imports the state store and vectors.
"""
