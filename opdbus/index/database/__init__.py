"""The SQLite file: schema, statements, and the records of objects.

Owns every SQL statement on objects, words and vectors. All functions run on the thread that holds
the connection. Imports language, state and history.
"""
