"""Requests over HTTP by users of a booted host."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from system.host import Host, until_late

PATH = "/run/op-dbus/http.sock"
_ASK = """
import http.client, socket, sys
address, path, token, body = sys.argv[1:]
own = http.client.HTTPConnection("localhost", timeout=60)
if address.startswith("/"):
    own.sock = socket.socket(socket.AF_UNIX)
    own.sock.connect(address)
else:
    host, _, port = address.rpartition(":")
    own.sock = socket.create_connection((host, int(port)))
headers = {"Authorization": "Bearer " + token} if token else {}
headers |= {"Content-Type": "application/json"} if body else {}
own.request("POST" if body else "GET", path, body or None, headers)
answer = own.getresponse()
print(answer.status)
print(answer.read().decode())
"""
# Connects again after the last event whenever a stream ends, as a browser's EventSource does.
_FOLLOW = """
import http.client, socket, sys, time
address, path = sys.argv[1:]
last = ""
while True:
    try:
        own = http.client.HTTPConnection("localhost")
        own.sock = socket.socket(socket.AF_UNIX)
        own.sock.connect(address)
        own.request("GET", path, headers={"Last-Event-ID": last} if last else {})
        answer = own.getresponse()
        print("status", answer.status, flush=True)
        while line := answer.readline().decode():
            name, _, value = line.rstrip().partition(": ")
            if name == "id":
                last = value
            if name in ("event", "data"):
                print(name, value, flush=True)
    except (OSError, http.client.HTTPException) as error:
        print("error", repr(error), flush=True)
    time.sleep(0.5)
"""


@contextmanager
def following(host: Host, path: str) -> Iterator[Callable[[str], list[str]]]:
    """Follow a stream of events; give what waits for a text and returns all lines until then."""
    lines: list[str] = []
    with host.running("python3", "-c", _FOLLOW, PATH, path) as process:
        assert process.stdout
        coming = until_late(process.stdout.fileno())

        def until(text: str) -> list[str]:
            for line in coming:
                lines.append(line.decode().rstrip())
                if text in lines[-1]:
                    return lines
            raise AssertionError(f"{text} does not come:\n{lines}\n{host.log()}")

        yield until


def ask(
    host: Host, path: str, *, address: str = PATH, user: str = "", token: str = "", body: str = ""
) -> tuple[int, str]:
    """Ask over HTTP as a user of the host; the status is 0 for who cannot connect."""
    done = host.run("python3", "-c", _ASK, address, path, token, body, user=user)
    if done.returncode:
        return 0, done.stderr
    status, _, text = done.stdout.partition("\n")
    return int(status), text
