"""Parts that all observers share: reports, differences, causes, pace, and reading of files.

Owns the path from a report to the state store. Read `report` first. Imports bus transport and the
state store.
"""
