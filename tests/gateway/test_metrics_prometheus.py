"""Debian's Prometheus and promtool, unchanged, on the metrics of the gateway."""

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from conftest import ROOT
from harness.gateways import Gateway
from harness.running import PATIENCE_SECONDS, Running, run_program

from gateway.test_metrics import LISTEN, PASSWORD, make_certificate, url, web_config

pytestmark = pytest.mark.clients
CLIENTS = Path(os.environ.get("CLIENTS", ROOT / ".clients"))
PLACES = f"{CLIENTS / 'prometheus' / 'usr' / 'bin'}:{os.environ['PATH']}"
CONFIG = """
global:
  scrape_interval: 1s
scrape_configs:
  - job_name: op-dbus
    scheme: https
    basic_auth: {{username: prometheus, password_file: {folder}/password}}
    tls_config: {{ca_file: {folder}/cert.crt}}
    static_configs:
      - targets: ["127.0.0.1:{port}"]
"""


def program(name: str) -> str:
    """Give the path of a program; skips where it is not."""
    found = shutil.which(name, path=PLACES)
    if not found:
        pytest.skip(f"there is no {name}: `make clients`")
    return found


@pytest.fixture(scope="module")
def measured(
    served: Running, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Gateway, Path]]:
    """Run a gateway with TLS and a user, and a Prometheus that reads nothing but its metrics."""
    folder = make_certificate(tmp_path_factory.mktemp("prometheus"))
    config = web_config(folder)
    with Gateway(served, folder, *LISTEN, HTTP_WEB_CONFIG=config) as gateway:
        yield gateway, folder


@contextmanager
def prometheus(folder: Path, port: int) -> Iterator[str]:
    """Run Prometheus with the documented configuration, and give its address."""
    (folder / "password").write_text(PASSWORD)
    (folder / "prometheus.yml").write_text(CONFIG.format(folder=folder, port=port))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [program("prometheus"), f"--config.file={folder}/prometheus.yml"]
    command += [f"--storage.tsdb.path={folder}/tsdb", f"--web.listen-address={address}"]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield f"http://{address}"
    finally:
        process.kill()
        process.wait()


def ask(address: str, query: str) -> list[str]:
    """Give the values of a query, once there are some.

    Until it listens, Prometheus cannot be reached; until it has read its storage, it answers 503
    in plain text.
    """
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        with suppress(httpx.TransportError):
            answer = httpx.get(f"{address}/api/v1/query", params={"query": query})
            found = answer.json()["data"]["result"] if answer.is_success else []
            if found:
                return [row["value"][1] for row in found]
        time.sleep(0.1)
    raise AssertionError(f"Prometheus has nothing for {query}")


def test_prometheus_scrapes_it(measured: tuple[Gateway, Path]) -> None:
    """Give Prometheus all metrics over TLS with a password, in the format that it chooses."""
    gateway, folder = measured
    with prometheus(folder, gateway.port("metrics")) as address:
        assert ask(address, "opdbus_up") == ["1"]
        assert ask(address, 'up{job="op-dbus"}') == ["1"]
        assert ask(address, 'opdbus_gateway_requests_total{route="/metrics",status="200"}')
        told = httpx.get(f"{address}/api/v1/targets").json()["data"]["activeTargets"]
    assert [(each["health"], each["lastError"]) for each in told] == [("up", "")], json.dumps(told)


def test_promtool_finds_nothing(measured: tuple[Gateway, Path]) -> None:
    """Let `promtool check` find no fault in the text and in the web configuration."""
    gateway, folder = measured
    auth = ("prometheus", PASSWORD)
    text = httpx.get(url(gateway, "https"), verify=False, auth=auth).text  # noqa: S501 -- our own
    done = run_program([program("promtool"), "check", "metrics"], input=text)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    done = run_program([program("promtool"), "check", "web-config", folder / "web.yml"])
    assert done.returncode == 0, done.stderr
