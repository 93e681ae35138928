"""Trainer of smaller models that reproduce the vectors of a larger one."""
