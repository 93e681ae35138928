"""Random calls, broken messages and state files for a running daemon: `python -m fuzz`."""
