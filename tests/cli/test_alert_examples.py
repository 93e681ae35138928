"""Examples of executables for alerts: each does what it says, and fails where it could not."""

import email.policy
import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

EXAMPLES = ROOT / "etc" / "op-dbus" / "notify.d.examples"
ALERT = {"host": "h", "severity": "error", "object": "a/b/c", "text": "kräftig\nfailed"}


def run(path: Path, *folders: Path) -> int:
    """Run an executable as alerts do, with programs of these folders first."""
    search = ":".join([*map(str, folders), "/usr/bin", "/bin"])
    return subprocess.run(
        [path], input=json.dumps(ALERT).encode(), env={"PATH": search}, cwd="/", check=False
    ).returncode


def copied(tmp_path: Path, name: str, **other: str) -> Path:
    """Copy an example as an administrator does, with other texts in it."""
    text = (EXAMPLES / name).read_text()
    for old, new in other.items():
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / name
    path.write_text(text)
    path.chmod(0o750)
    return path


@pytest.mark.parametrize("code", [0, 75])
def test_mail_is_handed_to_sendmail(tmp_path: Path, code: int) -> None:
    """Mail a subject of one line and the whole alert; fail if sendmail does."""
    sendmail = tmp_path / "bin" / "sendmail"
    sendmail.parent.mkdir()
    sendmail.write_text(
        f'#!/bin/sh\necho "$@" >{tmp_path}/words\ncat >{tmp_path}/mail\nexit {code}\n'
    )
    sendmail.chmod(0o755)
    assert bool(run(copied(tmp_path, "mail"), sendmail.parent)) is bool(code)
    mail = email.message_from_bytes((tmp_path / "mail").read_bytes(), policy=email.policy.default)
    assert (tmp_path / "words").read_text() == "-i -t\n"
    assert (mail["To"], mail["Subject"]) == ("root", "[h] error: kräftig failed")
    assert json.loads(mail.get_content()) == ALERT


def test_mail_without_sendmail_is_one_sentence(tmp_path: Path) -> None:
    """Say in one line, without a traceback, that there is no sendmail, or that it failed."""
    for name, said in (("no-such-program", "No such file or directory"), ("false", "code was 1")):
        path = copied(tmp_path, "mail", **{"sendmail -i -t": name})
        text = json.dumps(ALERT).encode()
        done = subprocess.run([path], input=text, capture_output=True, check=False)
        assert (done.returncode, done.stderr.count(b"\n")) == (1, 1)
        assert said in done.stderr.decode()


@contextmanager
def answering(code: int, got: list[Any]) -> Iterator[str]:
    """Serve an address on which everything posted gets one answer."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(code)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.skipif(not shutil.which("curl"), reason="there is no curl: apt install curl")
@pytest.mark.parametrize(("answer", "fails"), [(200, False), (503, True)])
def test_a_webhook_gets_the_alert(tmp_path: Path, answer: int, fails: bool) -> None:  # noqa: FBT001
    """Post the object as it is; fail if the answer is an error."""
    got: list[Any] = []
    with answering(answer, got) as address:
        path = copied(tmp_path, "webhook", **{"https://alerts.example/op-dbus": address})
        assert bool(run(path)) is fails
    assert got == [ALERT]
