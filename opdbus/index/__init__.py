"""The stored objects and their index: database, in-memory tables, vectors and search."""
