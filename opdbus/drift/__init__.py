"""Drift: what is observed other than the state file declares it; `table.py` says who meets whom."""
