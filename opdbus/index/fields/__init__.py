"""Fields of all objects in columns: conditions are met by rows, not by objects.

Owns the column index. Imports the catalogue and storage.
"""
