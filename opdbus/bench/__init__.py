"""Benchmark of the engine on this host: how fast each level is, on each provider."""
