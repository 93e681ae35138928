"""Drift: what is observed other than declared; `table.py` says which objects meet."""
