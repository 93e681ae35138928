"""Remote provider: embedding servers that run a level's model, proven and watched.

It owns the connections to the servers and the known texts that they are checked with. It may import
the engine's proof and tokenizer; the provider chain imports it. Read `server_pool.py` first.
"""
