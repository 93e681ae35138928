"""State objects and their sources: the state file, publishers, redaction."""
