"""Objects found for a question: hybrid, lexical and vector search, and explanations.

Owns hits and their order. Read `finder` first. Imports every other room of the index.
"""
