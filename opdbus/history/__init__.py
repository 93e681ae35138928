"""History: every change of an object, as a row of a hash chain."""
