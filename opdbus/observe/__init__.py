"""Observers, each of which lists a part of the host and follows its changes."""
