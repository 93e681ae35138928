"""The trainer: makes smaller models that give about the vectors of a larger one."""
