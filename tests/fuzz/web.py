"""Random HTTP requests to a gateway: `python -m fuzz.web [--count 20000] [--seed N] [--json FILE]`.

Each is a request to a route of its OpenAPI file with values of any kind; of two in five, some bytes
are changed.
"""

import argparse
import json
import random
import re
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import quote

from harness.gateways import Gateway, is_whole, status
from harness.running import Bus, Running

EXAMPLE = Path(__file__).parents[2] / "state.example.json"
# Answers that are no fault of the gateway's.
ALLOWED = {501, 503, 505}
KEYS = (
    "input inputs model prompt query texts documents dimensions encoding_format truncate normalize"
    " truncation_direction user options keep_alive raw_scores method params id jsonrpc"
).split()
RIGHT = {
    "input": "mail server",
    "inputs": ["mail server", "network link"],
    "prompt": "mail server",
    "query": "mail",
    "texts": ["mail server"],
    "model": "static",
}
WORDS = (
    "mail server",
    "",
    "static",
    "base64",
    "float",
    "\0",
    "\ud800",
    "é" * 300,
    "a" * 5000,
    "..",
)
NUMBERS = (0, -1, 1, 7, 1e308, 1 << 63, 0.5, 10**400)
_CHANGED = 0.4
_MUTATED_SECONDS = 0.1


def value(draw: random.Random, depth: int = 0) -> Any:
    """Draw a JSON value."""
    kind = draw.randrange(7 if depth < 3 else 4)
    if kind == 0:
        return draw.choice((None, True, False))
    if kind == 1:
        return draw.choice(NUMBERS)
    if kind < 4:
        return draw.choice(WORDS)
    if kind == 4:
        return {draw.choice(KEYS): value(draw, depth + 1) for _ in range(draw.randrange(5))}
    return [value(draw, depth + 1) for _ in range(draw.randrange(5))]


def request(draw: random.Random, routes: dict[str, dict[str, Any]]) -> bytes:
    """Draw a request to one of the routes."""
    path = draw.choice(sorted(routes))
    methods = [each.upper() for each in routes[path]]
    method = draw.choice([*methods * 20, "GET", "POST", "HEAD", "DELETE", "PUT"])
    names = [
        each["name"]
        for operation in routes[path].values()
        for each in operation.get("parameters", ())
        if each["in"] == "query"
    ]
    while "{" in path:
        before, _, rest = path.partition("{")
        path = before + quote(str(value(draw))[:200], errors="replace") + rest.partition("}")[2]
    drawn = [draw.choice((value(draw), "mail", 3)) for _ in names]
    given = [
        f"{name}={quote(str(each)[:200], errors='replace')}"
        for name, each in zip(names, drawn, strict=True)
    ]
    target = path + (
        "?" + "&".join(draw.sample(given, draw.randrange(len(given) + 1))) if given else ""
    )
    wrong = {draw.choice(KEYS): value(draw) for _ in range(draw.randrange(3))}
    body = json.dumps(draw.choice((value(draw), {**RIGHT, **wrong}, {**RIGHT, **wrong}))).encode()
    headers = [
        "Host: x",
        f"Accept: {draw.choice(('*/*', 'application/json', 'text/event-stream'))}",
    ]
    if method in {"POST", "PUT"}:
        headers.append("Content-Type: application/json")
        headers.append(f"Content-Length: {len(body)}")
    else:
        body = b""
    head = "\r\n".join([f"{method} {target} HTTP/1.1", *headers, "", ""])
    return head.encode() + body


def change(draw: random.Random, data: bytes) -> bytes:
    """Change some bytes of a request."""
    found = bytearray(data)
    for _ in range(draw.randrange(1, 5)):
        at = draw.randrange(len(found) + 1)
        size = draw.choice((1, 1, 4, 40))
        kind = draw.randrange(4)
        if kind == 0:
            found[at : at + size] = draw.randbytes(size)
        elif kind == 1:
            del found[at : at + size]
        elif kind == 2:
            found[at:at] = found[at : at + size] * 2
        else:
            found[at:at] = draw.choice(
                (b"\r\n", b"\0", b"%2f", b": ", b"chunked", b"\xff", b"0" * 99)
            )
    return bytes(found)


def is_begun(data: bytes, answer: bytes) -> bool:
    """Return whether nothing has to come any more: of a stream, or without a body."""
    has_head = b"\r\n\r\n" in answer
    return has_head and (data.startswith(b"HEAD ") or b"text/event-stream" in answer)


def send(gateway: Gateway, data: bytes, seconds: float) -> bytes:
    """Send a request, and give the answer, or what came of it in time; a stream's beginning."""
    found = b""
    with gateway.connect() as own:
        own.settimeout(seconds)
        try:
            own.sendall(data)
            while not is_whole(found) and not is_begun(data, found):
                if not (more := own.recv(65536)):
                    break
                found += more
        except (TimeoutError, BrokenPipeError, ConnectionResetError):
            pass
    return found


def fuzz(gateway: Gateway, count: int, seed: int) -> tuple[Counter[int], list[str]]:
    """Send so many requests; give the number of answers of each status, and all faults."""
    draw = random.Random(seed)  # noqa: S311 -- repeatable
    with gateway.http() as client:
        routes = client.get("/openapi.json").json()["paths"]
    found, faults = Counter[int](), []
    for _ in range(count):
        data = request(draw, routes)
        is_changed = draw.random() < _CHANGED
        if is_changed:
            data = change(draw, data)
        answer = send(gateway, data, _MUTATED_SECONDS if is_changed else 60.0)
        got = status(answer)
        found[got] += 1
        is_fault = (got >= 500 and got not in ALLOWED) or (got == 0 and not is_changed)
        if is_fault and not (got == 0 and answer.startswith(b"HTTP/1.1 1")):
            faults.append(f"{got}: {data[:300]!r}")
    # the line after a trace, which has paths of this machine
    faults += re.findall(
        r"^(?! )(\w+(?:\.\w+)*(?:Error|Exception)\b.*)$", gateway.log.read_text(), re.MULTILINE
    )
    if not gateway.is_served():
        faults.append("it is not served any more")
    return found, faults


def main() -> None:
    """Fuzz a gateway of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    folder, bus = Path(tempfile.mkdtemp()), Bus()
    settings = {"VECTOR_LEVEL": "static", "STATE_FILE": EXAMPLE}
    began = time.monotonic()
    with Running(folder, bus.address, **settings) as daemon, Gateway(daemon, folder) as gateway:
        daemon.vectorized()
        found, faults = fuzz(gateway, given.count, given.seed)
        log = daemon.log
    bus.kill()
    statuses = {str(got or "none"): number for got, number in sorted(found.items())}
    report = {"requests": given.count, "seed": given.seed, "statuses": statuses}
    report |= {"faults": faults, "seconds": round(time.monotonic() - began)}
    report["daemon faults"] = log.count("Traceback")
    text = json.dumps(report, indent=2) + "\n"
    print(text)
    if given.json:
        given.json.write_text(text)
    raise SystemExit(bool(faults))


if __name__ == "__main__":
    main()
