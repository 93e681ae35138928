"""Insight: topics of the host's objects, objects unlike their kind, and similarities of two."""
