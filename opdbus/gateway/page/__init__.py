"""Page for a browser: its files, their routes, and the listener of `op-dbus page`.

It owns three static files, which ask the gateway's other routes. It may import the standard
library and the web libraries of the gateway.
"""
