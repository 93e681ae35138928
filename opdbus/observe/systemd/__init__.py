"""Observer of units: PID 1's properties, unit files, jobs, and the causes of changes.

Owns the subscription to PID 1. Read `unit_observer` first. Imports the core and packages.
"""
