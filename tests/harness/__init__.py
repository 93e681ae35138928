"""Harnesses that tests of several rooms share: a daemon on a private bus, models, hosts, users."""
