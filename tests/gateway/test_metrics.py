"""Metrics over HTTP: the daemon's and the gateway's own, with TLS and users as exporters have."""

import re
import shutil
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import bcrypt
import httpx
import pytest
from harness.gateways import Gateway
from harness.running import Bus, Running, environment, run_program
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

PASSWORD = "correct horse"
OTHER = "battery staple"
OPENMETRICS = "application/openmetrics-text; version=1.0.0"
LISTEN = ("--listen", "metrics=127.0.0.1:0")


def url(gateway: Gateway, scheme: str = "http") -> str:
    """Give the address of the metrics."""
    return f"{scheme}://127.0.0.1:{gateway.port('metrics')}/metrics"


def names(text: str) -> set[str]:
    """Give the names of all families."""
    return set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))


@pytest.fixture(scope="module")
def measured(served: Running, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """Run a gateway with a listener for metrics."""
    folder = tmp_path_factory.mktemp("measured")
    with Gateway(served, folder, *LISTEN, "--listen", f"unix:{folder}/http.sock") as running:
        yield running


def test_the_names_are_those_of_the_command(measured: Gateway, served: Running) -> None:
    """Serve what `op-dbus metrics` prints, and the gateway's own beside it."""
    printed = served.cli("metrics").stdout
    answer = httpx.get(url(measured), timeout=60)
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    own = {name for name in names(answer.text) if name.startswith("opdbus_gateway_")}
    assert names(answer.text) - own == names(printed)
    assert "opdbus_gateway_requests_total" in own
    assert "\nopdbus_up 1.0\n" in answer.text
    families = {family.name for family in text_string_to_metric_families(answer.text)}
    assert "opdbus_gateway_requests" in families


def test_openmetrics_is_served_to_who_accepts_it(measured: Gateway) -> None:
    """Choose the format by `Accept`, as Prometheus sends it; both have the same values."""
    answer = httpx.get(
        url(measured), headers={"Accept": f"{OPENMETRICS},text/plain;q=0.5"}, timeout=60
    )
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert answer.text.endswith("# EOF\n")
    found = {family.name for family in openmetrics.text_string_to_metric_families(answer.text)}
    assert {"opdbus_up", "opdbus_gateway_requests"} <= found


def test_requests_are_counted_by_route_and_status(measured: Gateway) -> None:
    """Count a request under its route, however its path is written; hostile paths make one row."""
    with measured.http() as client:
        client.get("/health")
        for number in range(3):
            client.get(f"/no-such-path-{number}")
        trace = f"00-{'ab' * 16}-{'cd' * 8}-01"
        client.get("/health", headers={"traceparent": trace})
    text = httpx.get(url(measured), timeout=60).text
    assert re.search(r'requests_total\{listener="http",route="/health",status="200"\} 2.0', text)
    assert re.search(r'requests_total\{listener="http",route="other",status="404"\} 3.0', text)
    assert "no-such-path" not in text
    assert re.search(r'requests_in_flight\{listener="metrics"\} 1.0', text)
    assert re.search(r'request_duration_seconds_count\{route="/health"\} 2.0', text)
    traced = httpx.get(url(measured), headers={"Accept": OPENMETRICS}, timeout=60).text
    assert f'trace_id="{"ab" * 16}"' in traced


def test_the_socket_for_metrics_serves_nothing_else(measured: Gateway) -> None:
    """Answer 404 to other paths there, and to /metrics elsewhere."""
    assert httpx.get(url(measured).replace("/metrics", "/health"), timeout=60).status_code == 404
    with measured.http() as client:
        assert client.get("/metrics").status_code == 404
    assert httpx.get(url(measured), headers={"Host": "evil.example"}, timeout=60).status_code == 421


def test_a_daemon_that_is_down_is_told(tmp_path: Path) -> None:
    """Serve the gateway's own metrics and `opdbus_up 0` without a daemon, and without a bus."""
    bus = Bus()
    with Gateway(Running(tmp_path, bus.address), tmp_path, *LISTEN) as gateway:
        for _ in range(2):
            text = httpx.get(url(gateway), timeout=60).text
            assert "\nopdbus_up 0.0\n" in text
            assert "opdbus_gateway_requests_in_flight" in text
            assert "opdbus_texts_total" not in text
            bus.kill()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a certificate of 127.0.0.1 in a folder of its own."""
    if not shutil.which("openssl"):
        pytest.skip("there is no openssl: `apt install openssl`")
    return make_certificate(tmp_path_factory.mktemp("certificate"))


def make_certificate(folder: Path, name: str = "cert") -> Path:
    """Make a certificate of 127.0.0.1 and its key."""
    command = ["openssl", "req", "-x509", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    command += ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1"]
    command += ["-keyout", str(folder / f"{name}.key"), "-out", str(folder / f"{name}.crt")]
    subprocess.run(command, check=True, capture_output=True)
    return folder


def web_config(folder: Path, password: str = PASSWORD, *, more: str = "", tls: str = "") -> Path:
    """Write a web configuration file as exporter-toolkit documents it."""
    hashed = bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()
    text = f"tls_server_config:\n  cert_file: cert.crt\n  key_file: cert.key\n{tls}"
    text += f"basic_auth_users:\n  prometheus: {hashed}\n{more}"
    part = folder / "web.new"
    part.write_text(text)
    return part.rename(folder / "web.yml")


def scrape(gateway: Gateway, trusted: Path, password: str = PASSWORD) -> int:
    """Ask for metrics with TLS and a password, and give the status."""
    context = ssl.create_default_context(cafile=trusted)
    auth = ("prometheus", password)
    return httpx.get(url(gateway, "https"), verify=context, auth=auth, timeout=60).status_code


def test_tls_and_users_are_those_of_the_file(served: Running, certificate: Path) -> None:
    """Serve with TLS who has the password, and read the file and certificates again on change."""
    trusted = certificate / "cert.crt"
    config = web_config(
        certificate, more="http_server_config:\n  headers:\n    X-Frame-Options: deny\n"
    )
    with Gateway(served, certificate, *LISTEN, HTTP_WEB_CONFIG=config) as gateway:
        assert scrape(gateway, trusted) == 200
        assert scrape(gateway, trusted) == 200
        assert scrape(gateway, trusted, "wrong") == 401
        context = ssl.create_default_context(cafile=trusted)
        bare = httpx.get(url(gateway, "https"), verify=context, timeout=60)
        assert (bare.status_code, bare.headers["www-authenticate"]) == (401, "Basic")
        passed = httpx.get(
            url(gateway, "https"), verify=context, auth=("prometheus", PASSWORD), timeout=60
        )
        assert passed.headers["x-frame-options"] == "deny"
        with pytest.raises(httpx.HTTPError):
            httpx.get(url(gateway), timeout=60)
        web_config(certificate, OTHER)
        assert scrape(gateway, trusted, OTHER) == 200
        assert scrape(gateway, trusted) == 401
        # a file that cannot be used changes nothing
        (certificate / "web.yml").write_text("basic_auth_users: {}\nunheard_of: 1\n")
        assert scrape(gateway, trusted, OTHER) == 200
        assert scrape(gateway, trusted, "") == 401
        web_config(certificate, tls="  min_version: TLS13\n")
        old = ssl.create_default_context(cafile=trusted)
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        assert scrape(gateway, trusted) == 200
        with pytest.raises(httpx.ConnectError):
            httpx.get(url(gateway, "https"), verify=old, timeout=60)
        make_certificate(certificate)
        assert scrape(gateway, trusted) == 200
        assert PASSWORD not in gateway.log.read_text()


def test_an_authority_of_clients_that_was_replaced_is_not_trusted(
    served: Running, certificate: Path
) -> None:
    """Let in who has a certificate of the authority in the file, which is read again on change."""
    for name in ("first", "second"):
        (certificate / name).mkdir()
        make_certificate(certificate / name)
    trusted = certificate / "ca.crt"
    trusted.write_bytes((certificate / "first/cert.crt").read_bytes())
    tls = "  client_ca_file: ca.crt\n  client_auth_type: RequireAndVerifyClientCert\n"
    config = web_config(certificate, tls=tls)

    def is_let_in(name: str) -> bool:
        context = ssl.create_default_context(cafile=certificate / "cert.crt")
        if name:
            own = certificate / name
            context.load_cert_chain(own / "cert.crt", own / "cert.key")
        with suppress(httpx.HTTPError):
            auth = ("prometheus", PASSWORD)
            return (
                httpx.get(url(gateway, "https"), verify=context, auth=auth, timeout=60).status_code
                == 200
            )
        return False

    with Gateway(served, certificate, *LISTEN, HTTP_WEB_CONFIG=config) as gateway:
        assert [*map(is_let_in, ("", "first", "second"))] == [False, True, False]
        trusted.write_bytes((certificate / "second/cert.crt").read_bytes())
        assert [*map(is_let_in, ("", "first", "second"))] == [False, False, True]


TLS = "tls_server_config:\n  cert_file: no.crt\n  key_file: no.key\n"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("tls_server_config:\n  cert_file: no.crt\n  key_file: no.key\n", "No such file"),
        ("basic_auth_users:\n  a: plain\n", "basic_auth_users.a"),
        ("tls_server_config:\n  cert_file: x\n", "key_file"),
        (f"{TLS}  client_ca_file: ca.crt\n", "client_auth_type"),
        (f"{TLS}  client_ca_file: ca.crt\n  client_auth_type: NoClientCert\n", "client_auth_type"),
        (f"{TLS}  client_auth_type: RequireAndVerifyClientCert\n", "client_ca_file"),
        ("unheard_of: 1\n", "unheard_of"),
        ("- a\n", "valid dictionary"),
        ("{", "not accepted"),
    ],
)
def test_a_bad_file_is_refused(served: Running, tmp_path: Path, text: str, why: str) -> None:
    """End with code 2 and say what is wrong, instead of serving without a lock."""
    file = tmp_path / "web.yml"
    file.write_text(text)
    given = {"OP_DBUS_HTTP_WEB_CONFIG": str(file), "OP_DBUS_LISTEN": "metrics=127.0.0.1:0"}
    done = run_program(
        [sys.executable, "-m", "opdbus", "gateway"], env=environment(served.bus, tmp_path, given)
    )
    assert (done.returncode, why in done.stderr) == (2, True), done.stderr
