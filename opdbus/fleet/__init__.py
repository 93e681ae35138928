"""Fleet: objects and changes of many hosts in one PostgreSQL database, and questions about them.

It owns the schema `opdbus` and the processes that fill it: a sender on each host, a client of the
bus like any other, and workers with an engine. It may import the client, the engine and what reads
states; asyncpg, Ray and the embedded server are imported only here. Read `postgres.py` first.
"""
