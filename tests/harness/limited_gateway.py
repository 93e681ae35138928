"""A gateway with other limits than the program's, so that tests need not wait for those.

`python -m harness.limited_gateway BUS SOCKET LIMITS`, the limits as JSON.
"""

import asyncio
import json
import os
import socket
import sys

from opdbus.gateway.http_limits import Limits
from opdbus.gateway.listeners import Listener, Options
from opdbus.gateway.server import serve
from opdbus.systemd import notify

bus, path, limits = sys.argv[1:]
with socket.socket(socket.AF_UNIX) as own:
    own.bind(path)
    own.listen(1024)
    print("listening", flush=True)
    options = Options(bus, limits=Limits(**json.loads(limits)))
    asyncio.run(serve(options, [Listener("http", own)], notify.connect(os.environ, os.getpid())))
