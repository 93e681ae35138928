"""Engine lifecycle: one owner of every engine, from its opening to its closing."""
