"""Objects and vectors kept: the database, vectors in memory, search, and the vectorizing loop."""
