"""The generated parts of README.md and docs/: settings, figures, the bus, the map of modules."""
