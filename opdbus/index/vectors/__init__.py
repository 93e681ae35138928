"""Vectors of objects: the indexing loop, exact and quantized rows, and two-stage search.

Owns the vectors in memory and in files. Imports the state store and serving.
"""
