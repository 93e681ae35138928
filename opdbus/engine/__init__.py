"""Embedding engine: provider choice, proof, tokenizing, batching and scheduling."""
