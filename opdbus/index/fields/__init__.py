"""Columnar index of the fields of all objects, for conditions on many objects at once.

Owns the column index. Imports the catalogue and storage.
"""
