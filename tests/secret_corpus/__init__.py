"""A corpus of secrets, made at run time, and of harmless values of real hosts."""
