"""MCP server: the host's objects and changes for assistants, by the official SDK.

It serves read-only tools, resources with live changes, and prompts, over stdio and as a route of
the gateway. The SDK is imported only here. Read `mcp_server.py` first.
"""
