"""A hub on this machine: what huggingface_hub asks of one, and faults on request."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

FIRST, SECOND = "1" * 40, "2" * 40
WEIGHTS = "model.safetensors"


class Hub:
    """One repository with commits of files; `asked` lists every request.

    `faults` maps a file to what goes wrong with it: `short` sends half and calls it all, `damaged`
    changes a byte, `dropped` breaks the first connection, `dead` all of them, `stalled` sends half
    and waits for `go`. With `xet` it offers the hub's other way to download.
    """

    def __init__(self, repository: str, folder: Path) -> None:
        self.repository = repository
        self.commits = {FIRST: files_in(folder)}
        self.heads = {"main": FIRST}
        self.faults: dict[str, str] = {}
        self.status = 0
        self.xet = False
        self.asked: list[str] = []
        self.stalled = threading.Event()
        self.go = threading.Event()
        hub = self

        class Handler(_Handler):
            """Answers for this hub."""

            @property
            def hub(self) -> Hub:
                """The hub."""
                return hub

        self._server = _Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def address(self) -> str:
        """What HF_ENDPOINT must be."""
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def other_address(self) -> str:
        """The same as another host's, as which large files are served."""
        return f"http://localhost:{self._server.server_port}"

    @property
    def main(self) -> dict[str, bytes]:
        """The files of the branch main."""
        return self.commits[self.heads["main"]]

    def close(self) -> None:
        """End it, with whoever still waits."""
        self.go.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def files_in(folder: Path) -> dict[str, bytes]:
    """Read every file below a folder."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Keep quiet when a client leaves."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else each answer waits for an acknowledgement

    @property
    def hub(self) -> Hub:
        """The hub that this answers for."""
        raise NotImplementedError

    def do_HEAD(self) -> None:
        """Answer as to GET, without the body."""
        self._answer()

    def do_GET(self) -> None:
        """Answer for the repository, a file, or where a large file lies."""
        self._answer()

    def log_message(self, *_: object) -> None:
        """Keep quiet."""

    def _answer(self) -> None:
        hub, path = self.hub, unquote(urlsplit(self.path).path)
        hub.asked.append(f"{self.command} {path}")
        about, files = f"/api/models/{hub.repository}/revision/", f"/{hub.repository}/resolve/"
        if hub.status:
            self._send(hub.status, b"no")
        elif path.startswith(about):
            self._about(path.removeprefix(about))
        elif path.startswith(files):
            self._file(*path.removeprefix(files).split("/", 1))
        elif path.startswith("/large/"):
            self._body(*path.removeprefix("/large/").split("/", 1))
        else:
            self._send(404, b"", {"X-Error-Code": "RepoNotFound"})

    def _about(self, revision: str) -> None:
        commit = self.hub.heads.get(revision, revision)
        if commit not in self.hub.commits:
            self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
            return
        siblings = [_sibling(name, body) for name, body in self.hub.commits[commit].items()]
        found = {"id": self.hub.repository, "sha": commit, "siblings": siblings}
        self._send(200, json.dumps(found).encode(), {"Content-Type": "application/json"})

    def _file(self, commit: str, name: str) -> None:
        """Send a small file, or send on to where a large one lies, as the hub does."""
        body = self.hub.commits[commit][name]
        headers = {"X-Repo-Commit": commit, "ETag": f'"{hashlib.sha1(body).hexdigest()}"'}  # noqa: S324
        if name == WEIGHTS:
            digest = hashlib.sha256(body).hexdigest()
            headers |= {
                "X-Linked-Etag": f'"{digest}"',
                "X-Linked-Size": str(len(body)),
                "Location": f"{self.hub.other_address}/large/{commit}/{name}",
            }
            if self.hub.xet:
                route = f"{self.hub.address}/xet-read-token"
                headers |= {"X-Xet-Hash": digest, "X-Xet-Refresh-Route": route}
            self._send(302, b"", headers)
        elif self.command == "HEAD":
            self._send(200, body, headers)
        else:
            self._body(commit, name)

    def _body(self, commit: str, name: str) -> None:
        body, fault = self.hub.commits[commit][name], self.hub.faults.get(name, "")
        if fault == "short":
            body = body[: len(body) // 2]
        elif fault == "damaged":
            body = body[:-1] + bytes([body[-1] ^ 1])
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
        whole, body = len(body), body[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{whole - 1}/{whole}")
        self.end_headers()
        if fault in {"dropped", "dead", "stalled"}:
            self._half(name, body, fault)
        else:
            self.wfile.write(body)

    def _half(self, name: str, body: bytes, fault: str) -> None:
        self.wfile.write(body[: len(body) // 2])
        self.wfile.flush()
        self.close_connection = True
        if fault == "dropped":
            del self.hub.faults[name]
        elif fault == "dead":
            self.hub.status = 503
        else:
            self.hub.stalled.set()
            self.hub.go.wait()
            self.wfile.write(body[len(body) // 2 :])

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _sibling(name: str, body: bytes) -> dict[str, object]:
    sibling: dict[str, object] = {"rfilename": name, "size": len(body), "blobId": "0" * 40}
    if name == WEIGHTS:
        digest = hashlib.sha256(body).hexdigest()
        sibling["lfs"] = {"sha256": digest, "size": len(body), "pointerSize": 130}
    return sibling


def visible(models: Path) -> list[str]:
    """List what the model directory holds for whoever looks for models."""
    return sorted(path.name for path in models.iterdir() if not path.name.startswith("."))


def nothing_left(models: Path) -> bool:
    """Tell whether no half model lies about."""
    return not list(models.glob(".*.part-*"))
