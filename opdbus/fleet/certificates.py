"""Certificates of the fleet: its authority, the server's certificate, and one for each host.

All lie in a folder of the server. A host's certificate is accepted while the folder names it, so
that a host that was removed comes no longer, and a renewed certificate replaces the old one.
"""

import hashlib
import ipaddress
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from opdbus.errors import ConfigError
from opdbus.platform import regular_files

AUTHORITY_YEARS: Final = 30
HOST_YEARS: Final = 10
# The longest time for which clients accept a server's certificate.
SERVER_DAYS: Final = 397
RENEW_DAYS: Final = 60
_YEAR_DAYS: Final = 365
# Clocks of hosts may be late.
_LATE: Final = timedelta(days=1)


class Issued(NamedTuple):
    """A new certificate and its private key, in PEM."""

    certificate: str
    key: str


class Authority:
    """The certificate authority in a folder, which is made where it is missing.

    Raises ConfigError for a folder that cannot be used.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.certificate_file = folder / "ca.crt"
        self._accepted = folder / "hosts"
        try:
            for each in (folder, self._accepted):
                each.mkdir(mode=0o700, exist_ok=True)
                _give_to_owner(each, folder.parent)
            if not self.certificate_file.exists():
                self._begin()
            self._certificate = _read_certificate(self.certificate_file)
        except (OSError, ValueError) as error:
            raise ConfigError(f"cannot use the certificates in {folder}: {error}") from None

    def server_files(self, names: Sequence[str], now: datetime | None = None) -> tuple[Path, Path]:
        """Return the files of the server's certificate and key for these names and addresses.

        The certificate is made anew if it is for other names, of another authority, or about to
        end.
        """
        files = self.folder / "server.crt", self.folder / "server.key"
        if not self._is_valid(files[0], names, now or datetime.now(UTC)):
            issued = self._issue(
                names[0], timedelta(days=SERVER_DAYS), ExtendedKeyUsageOID.SERVER_AUTH, names, now
            )
            # both in one file, so that no crash leaves a pair that does not match
            self._write(files[1], issued.key + issued.certificate)
            self._write(files[0], issued.certificate)
        return files[1], files[1]

    def issue(self, role: str) -> Issued:
        """Return a new certificate of a role, the only one of it that is accepted from now on."""
        lifetime = timedelta(days=HOST_YEARS * _YEAR_DAYS)
        issued = self._issue(role, lifetime, ExtendedKeyUsageOID.CLIENT_AUTH)
        der = x509.load_pem_x509_certificate(issued.certificate.encode())
        digest = hashlib.sha256(der.public_bytes(serialization.Encoding.DER)).hexdigest()
        self._write(self._accepted / role, digest + "\n")
        return issued

    def withdraw(self, role: str) -> bool:
        """Accept no certificate of a role any longer; return whether there was one."""
        file = self._accepted / role
        is_there = file.exists()
        file.unlink(missing_ok=True)
        return is_there

    def accepts(self, role: str, certificate: bytes) -> bool:
        """Return whether a certificate in DER is the current one of a role."""
        if "/" in role or role.startswith("."):
            return False
        try:
            wanted = regular_files.read_regular(self._accepted / role)
        except OSError:
            return False
        return wanted.decode("ascii").strip() == hashlib.sha256(certificate).hexdigest()

    def _begin(self) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name("op-dbus fleet " + os.urandom(4).hex())
        usage = _key_usage(is_authority=True)
        now = datetime.now(UTC)
        identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        certificate = (
            x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
            .not_valid_before(now - _LATE)
            .not_valid_after(now + timedelta(days=AUTHORITY_YEARS * _YEAR_DAYS))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(identifier, critical=False)
            .sign(key, hashes.SHA256())
        )
        self._write(self.folder / "ca.key", _key_text(key))
        self._write(self.certificate_file, _certificate_text(certificate), mode=0o644)

    def _issue(
        self,
        common_name: str,
        lifetime: timedelta,
        purpose: x509.ObjectIdentifier,
        names: Sequence[str] = (),
        now: datetime | None = None,
    ) -> Issued:
        loaded = serialization.load_pem_private_key((self.folder / "ca.key").read_bytes(), None)
        if not isinstance(loaded, ec.EllipticCurvePrivateKey):
            raise ConfigError(f"{self.folder / 'ca.key'} is no key of this program")
        key = ec.generate_private_key(ec.SECP256R1())
        begin = now or datetime.now(UTC)
        own, authority = key.public_key(), loaded.public_key()
        builder = (
            x509.CertificateBuilder(
                self._certificate.subject, _name(common_name[:64]), own, x509.random_serial_number()
            )
            .not_valid_before(begin - _LATE)
            .not_valid_after(min(begin + lifetime, self._certificate.not_valid_after_utc))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(is_authority=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(own), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority), critical=False
            )
        )
        if names:
            alternatives = x509.SubjectAlternativeName([*map(_general_name, names)])
            builder = builder.add_extension(alternatives, critical=False)
        return Issued(_certificate_text(builder.sign(loaded, hashes.SHA256())), _key_text(key))

    def _is_valid(self, file: Path, names: Sequence[str], now: datetime) -> bool:
        try:
            known = _read_certificate(file)
            known.verify_directly_issued_by(self._certificate)
            found = known.extensions.get_extension_for_class(x509.SubjectAlternativeName)
            has_key = (self.folder / "server.key").read_text("ascii").endswith(file.read_text())
        except Exception:  # noqa: BLE001 -- whatever is wrong with it, it is replaced
            return False
        is_new = known.not_valid_after_utc - now > timedelta(days=RENEW_DAYS)
        return has_key and is_new and [*found.value] == [*map(_general_name, names)]

    def _write(self, file: Path, text: str, mode: int = 0o600) -> None:
        regular_files.replace_file(file, text, mode=mode)
        _give_to_owner(file, self.folder)


def _give_to_owner(path: Path, folder: Path) -> None:
    """Let a file that root makes belong to the user whose folder it is in."""
    if os.geteuid() == 0:
        owner = folder.stat()
        # that user may put a link in its place meanwhile
        os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


def _read_certificate(file: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(file.read_bytes())


def _certificate_text(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode("ascii")


def _key_text(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode("ascii")


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _key_usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
