"""An embedding server in the test's process that computes right vectors, or lies as told."""

from __future__ import annotations

import base64
import json
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import numpy as np

from opdbus.engine.tokenizer import LibraryTokenizer
from opdbus.models import reference, weights
from opdbus.models.folder import Model

Vectors = np.ndarray[Any, Any]
Lie = Callable[[list[str], Vectors], Vectors]


class EmbeddingServer:
    """A server of OpenAI's route, and text-embeddings-inference's; use as a context.

    A test sets what it does: `lie` alters vectors, `answer` gives (status, headers, body) in place
    of the right answer, `seconds` delays each one.
    """

    def __init__(self, model: Model, routes: tuple[str, ...] = ("/v1/embeddings",)) -> None:
        self._shape = model.shape
        self._weights = weights.read_weights(model.weights)
        self._tokenizer = LibraryTokenizer(model.tokenizer, model.shape.max_tokens)
        self.routes = routes
        self.models: list[str] | None = None
        self.most_texts = 1 << 20
        self.sends_floats = False
        self.token = ""
        self.lie: Lie = lambda _texts, vectors: vectors
        self.answer: Callable[[list[str]], tuple[int, dict[str, str], bytes] | None] = lambda _: (
            None
        )
        self.seconds = 0.0
        # bodies of all requests for vectors
        self.asked: list[dict[str, Any]] = []
        self.most_at_once = 0
        self._now = 0
        self._lock = threading.Lock()
        self._http = _Server(("127.0.0.1", 0), _Handler)
        self._http.owner = self
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Self:
        """Serve."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self.die()

    def die(self) -> None:
        """Close the socket and all connections, as a killed process does."""
        self._http.shutdown()
        self._http.server_close()
        with self._lock:
            for own in self._http.connections:
                with suppress(OSError):
                    # its thread then closes it
                    own.shutdown(socket.SHUT_RDWR)

    @property
    def connections(self) -> list[socket.socket]:
        """All connections that were made, closed ones included."""
        return self._http.connections

    @property
    def texts(self) -> list[str]:
        """All texts that were sent."""
        return [text for body in self.asked for text in body.get("input", body.get("inputs"))]

    def right(self, texts: list[str]) -> Vectors:
        """Compute the right vectors."""
        rows = [ids.tolist() for ids in self._tokenizer.encode(texts)]
        with self._lock:  # numpy's threads are few
            return np.concatenate(
                [reference.forward(self._shape, self._weights, [row]) for row in rows]
            )

    def serve(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
        """Answer a request for vectors."""
        texts = body["input" if "input" in body else "inputs"]
        self.asked.append(body)
        time.sleep(self.seconds)
        if given := self.answer(texts):
            return given
        if len(texts) > self.most_texts:
            return 422, {}, json.dumps({"error": f"batch size > {self.most_texts}"}).encode()
        if self.models is not None and path != "/embed" and body["model"] not in self.models:
            return 404, {}, json.dumps({"error": {"message": "no such model"}}).encode()
        vectors = self.lie(texts, self.right(texts)).astype("<f4")
        if path == "/embed":
            return 200, {}, json.dumps(vectors.tolist()).encode()
        coded = [
            row.tolist() if self.sends_floats else base64.b64encode(row.tobytes()).decode()
            for row in vectors
        ]
        data = [{"index": number, "embedding": each} for number, each in enumerate(coded)]
        return 200, {}, json.dumps({"data": data}).encode()


class _Server(ThreadingHTTPServer):
    owner: EmbeddingServer
    daemon_threads = True

    def __init__(self, *given: Any) -> None:
        self.connections: list[socket.socket] = []
        super().__init__(*given)

    def get_request(self) -> tuple[socket.socket, Any]:
        """Remember the connection."""
        own, address = super().get_request()
        self.connections.append(own)
        return own, address

    def handle_error(self, *_: Any) -> None:
        """Print nothing: tests break connections."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def do_GET(self) -> None:
        """List the models."""
        owner = self.server.owner
        if self.path == "/v1/models" and owner.models is not None:
            data = [{"id": name} for name in owner.models]
            self._send(200, {}, json.dumps({"data": data}).encode())
        else:
            self._send(404, {}, b"{}")

    def do_POST(self) -> None:
        """Answer with vectors."""
        owner = self.server.owner
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if owner.token and self.headers["Authorization"] != f"Bearer {owner.token}":
            self._send(401, {}, b"{}")
        elif self.path not in owner.routes:
            self._send(404, {}, b"{}")
        else:
            with owner._lock:
                owner._now += 1
                owner.most_at_once = max(owner.most_at_once, owner._now)
            try:
                self._send(*owner.serve(self.path, body))
            finally:
                owner._now -= 1

    def _send(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


def model_of(folder: Path) -> Model:
    """Read a model's folder as the medium level's."""
    from opdbus.models.folder import read_model
    from opdbus.models.level_table import LEVELS

    return read_model(folder, LEVELS["medium"])
