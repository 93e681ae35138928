"""Observers of the host's files: its facts, accounts, cron jobs and configuration files.

Owns nothing but what it reads. Imports the core, packages and systemd.
"""
