"""Questions over all hosts: each is a function of a connection that returns frozen values.

The command line, the gateway and MCP print the same values. Every answer holds the hosts that were
asked, with the age of each one's part. Read `fleet_scope.py` first, then `fleet_search.py`.
"""
