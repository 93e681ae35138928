"""Changes in plain words and grouped into lines, as the command line and the gateway list them.

It owns the sentences of changes and their causes, no files and no connections. It may import the
tables of history and drift that the sentences need, and nothing of the bus.
"""
