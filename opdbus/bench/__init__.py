"""Benchmark of the engine on this host: rates, latencies, memory, and the device's ceiling."""
