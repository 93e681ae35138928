"""Clients that mean harm, one that does not, and what both see of a daemon."""
