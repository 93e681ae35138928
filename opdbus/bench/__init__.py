"""Benchmarks of the engine, also side by side with other programs that embed texts."""
