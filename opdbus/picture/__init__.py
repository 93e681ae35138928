"""Map of a host's objects in two dimensions, where near means similar."""
