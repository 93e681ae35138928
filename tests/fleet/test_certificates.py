"""Rules of the fleet's certificates."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("cryptography", reason="the extra `fleet` has it")
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from opdbus.errors import ConfigError
from opdbus.fleet.certificates import RENEW_DAYS, SERVER_DAYS, Authority

NAMES = ["memory.example.org", "192.0.2.7", "::1"]


def der(certificate: str) -> bytes:
    """Return a certificate in DER."""
    found = x509.load_pem_x509_certificate(certificate.encode())
    return found.public_bytes(serialization.Encoding.DER)


def test_the_authority_stays(tmp_path: Path) -> None:
    """Open the authority that a folder has, and make one only where there is none."""
    first = Authority(tmp_path / "tls").certificate_file.read_bytes()
    assert Authority(tmp_path / "tls").certificate_file.read_bytes() == first
    assert Authority(tmp_path / "other").certificate_file.read_bytes() != first


def test_private_keys_are_private(tmp_path: Path) -> None:
    """Let nobody but the owner read a file with a private key."""
    authority = Authority(tmp_path / "tls")
    authority.server_files(NAMES)
    authority.issue("host-web1")
    modes = {
        path.name: path.stat().st_mode & 0o777
        for path in (tmp_path / "tls").rglob("*")
        if path.is_file()
    }
    assert modes.pop("ca.crt") == 0o644
    assert set(modes.values()) == {0o600}
    assert (tmp_path / "tls").stat().st_mode & 0o777 == 0o700


def test_the_servers_certificate_is_renewed_in_time(tmp_path: Path) -> None:
    """Keep the server's certificate until its end is near or its names change."""
    authority = Authority(tmp_path / "tls")
    first = authority.server_files(NAMES)[0].read_bytes()
    assert authority.server_files(NAMES)[0].read_bytes() == first
    now = datetime.now(UTC)
    early = now + timedelta(days=SERVER_DAYS - RENEW_DAYS - 2)
    assert authority.server_files(NAMES, early)[0].read_bytes() == first
    late = authority.server_files(NAMES, now + timedelta(days=SERVER_DAYS - RENEW_DAYS + 1))
    assert (renewed := late[0].read_bytes()) != first
    assert authority.server_files(NAMES[:1])[0].read_bytes() != renewed


def test_what_is_broken_is_made_anew(tmp_path: Path) -> None:
    """Replace a server's certificate that cannot be read, or whose key is another one's."""
    authority = Authority(tmp_path / "tls")
    for name in ("server.crt", "server.key"):
        authority.server_files(NAMES)
        (tmp_path / "tls" / name).write_text("no certificate")
        found = authority.server_files(NAMES)[0].read_text()
        assert "BEGIN PRIVATE KEY" in found
        assert "BEGIN CERTIFICATE" in found


def test_only_the_newest_certificate_of_a_role_is_accepted(tmp_path: Path) -> None:
    """Accept the newest certificate of a role until it is withdrawn."""
    authority = Authority(tmp_path / "tls")
    first, second = authority.issue("host-web1"), authority.issue("host-web1")
    other = authority.issue("host-web2")
    assert not authority.accepts("host-web1", der(first.certificate))
    assert authority.accepts("host-web1", der(second.certificate))
    assert not authority.accepts("host-web1", der(other.certificate))
    assert authority.withdraw("host-web1")
    assert not authority.withdraw("host-web1")
    assert not authority.accepts("host-web1", der(second.certificate))


@pytest.mark.parametrize("role", ["../ca.crt", ".", "", "/etc/passwd", "host-web9"])
def test_no_name_of_a_role_leads_elsewhere(tmp_path: Path, role: str) -> None:
    """Read no other file for a role, whatever its name."""
    assert not Authority(tmp_path / "tls").accepts(role, b"certificate")


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    """Say which folder is broken."""
    (tmp_path / "tls").mkdir()
    (tmp_path / "tls" / "ca.crt").write_text("nothing")
    with pytest.raises(ConfigError, match="cannot use the certificates in"):
        Authority(tmp_path / "tls")
