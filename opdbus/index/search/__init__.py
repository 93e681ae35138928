"""Search for objects: hybrid, lexical and vector search, and explanations of hits.

Owns hits and their order. Read `finder` first. Imports every other room of the index.
"""
