"""Observers of services on the system bus: any ObjectManager, logind and machined.

Owns the mirrored objects. Read `mirror` first. Imports the core.
"""
