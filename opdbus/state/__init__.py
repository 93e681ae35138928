"""Where state objects come from: the value, the state file, watching, publishers, drift."""
