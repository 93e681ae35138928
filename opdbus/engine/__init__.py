"""Turns texts into vectors: providers, proof, tokenizing, batching, scheduling."""
