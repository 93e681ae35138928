"""Tests of the fleet: its database, sender, workers and questions."""
