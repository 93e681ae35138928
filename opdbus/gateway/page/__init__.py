"""Page for a browser: its files, their routes, and the listener of `op-dbus page`.

It owns static files, which ask the gateway's other routes. It may import the gateway's connection
and its limits, the standard library, and the web libraries.
"""
