"""The tables of docs/ that code decides: settings, metrics, the bus, limits, volatile fields."""
