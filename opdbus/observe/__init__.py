"""Observers: each lists a part of the host as it is, and follows its changes."""
