"""Separate programs that publish objects that the daemon has no right to read."""
