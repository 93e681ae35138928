"""Adds 192.0.2.77/32 to the loopback interface, or deletes it: `address.py add|del|link`.

`link` only lets the interface be up, as on any host.
"""

import sys

from pyroute2 import IPRoute

with IPRoute() as route:
    (index,) = route.link_lookup(ifname="lo")
    if sys.argv[1] == "link":
        route.link("set", index=index, state="up")
    else:
        route.addr(sys.argv[1], index=index, address="192.0.2.77", prefixlen=32)
