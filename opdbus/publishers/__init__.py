"""Programs of their own that publish what the daemon has no right to see."""
