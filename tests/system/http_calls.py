"""Requests over HTTP by users of a booted host."""

from system.host import Host

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


def ask(
    host: Host, path: str, *, address: str = PATH, user: str = "", token: str = "", body: str = ""
) -> tuple[int, str]:
    """Ask over HTTP as a user of the host; the status is 0 for who cannot connect."""
    done = host.run("python3", "-c", _ASK, address, path, token, body, user=user)
    if done.returncode:
        return 0, done.stderr
    status, _, text = done.stdout.partition("\n")
    return int(status), text
