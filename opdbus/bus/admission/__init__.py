"""Admission: limits of concurrent work for each caller, and the order of calls."""
