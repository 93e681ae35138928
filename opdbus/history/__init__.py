"""What changed: every change of an object, in a chain of hashes."""
