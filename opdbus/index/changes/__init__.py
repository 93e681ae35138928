"""Changes ranked for a question, and connections between objects.

Owns the ranking of history's rows. Read `change_finder` first. Imports query and vectors.
"""
