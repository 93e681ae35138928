"""Vectors of objects: the embedding loop, exact and quantized rows, and two-stage search.

Owns the vectors in memory and in files. Imports the state store and serving.
"""
