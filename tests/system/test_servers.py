"""Embedding servers as the provider of the sandboxed service."""

from harness.tiny import write_tiny_model

from system.host import Host
from system.service import CHANGES, STORE, Service
from system.test_doctor import said

EXAMPLE = "/usr/lib/systemd/system/op-dbus.service.d/remote.conf.example"
PORT = "17900"


def why_not_the_server(host: Host, service: Service) -> str:
    """Start anew, and give the reason why the CPU serves."""
    service.systemctl("restart")
    with host.monitor(*CHANGES) as heard:
        heard.until(lambda: service.get("Fallbacks"))
    ((provider, reason),) = service.get("Fallbacks")
    assert provider == f"remote:http://127.0.0.1:{PORT}"
    return str(reason)


def test_a_server_is_reached_by_the_drop_in_alone(host: Host, observer: Service) -> None:
    """The reason and the doctor name the drop-in where it is missing, and it opens the way."""
    service = observer
    write_tiny_model(host.path(f"{STORE}/tiny"))
    host.ask("chmod", "-R", "a+rX", f"{STORE}/tiny")
    chain = f"remote:http://127.0.0.1:{PORT},cpu:onnxruntime"
    given = {"EXECUTION_PROVIDER": chain, "VECTOR_LEVEL": "medium", "PRECISION": "fp32"}
    service.configure(MODEL=f"{STORE}/tiny", **given)
    with host.running("python3", "-m", "http.server", "--bind", "127.0.0.1", PORT):
        reason = why_not_the_server(host, service)
        assert "this process has no network: copy " in reason
        assert EXAMPLE in reason
        code, text = said(host, "doctor")
        assert (code, "the service has no network (PrivateNetwork=yes)" in text) == (1, True), text
        lines = host.path(EXAMPLE).read_text().splitlines()
        service.drop_in(*(line for line in lines if line != "[Service]"))
        # it answers, but not with vectors
        assert "answered 501" in why_not_the_server(host, service)
        assert "has no network" not in said(host, "doctor")[1]
