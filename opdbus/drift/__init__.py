"""Drift: differences of declared and observed objects; `rule_table.py` pairs them."""
