"""HTTP gateway: routes of embedding servers, of the host's objects, of MCP, metrics and the page.

It is a process of its own and a client of the bus like any other, so the daemon survives its crash.
It owns counters and open streams, no state. It may import the client and what clients import;
Starlette, FastAPI, uvicorn, prometheus-client and the MCP SDK are imported only here. Read
`server.py` first.
"""
