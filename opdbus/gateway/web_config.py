"""Web configuration file of the metrics listener, as Prometheus' exporter-toolkit reads it."""

import asyncio
import base64
import hashlib
import ssl
from binascii import Error
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal, Self

import bcrypt
import structlog
import yaml
from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError, model_validator
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from opdbus.errors import ConfigError

log = structlog.get_logger()

_VERSIONS: Final = {
    "TLS12": ssl.TLSVersion.TLSv1_2,
    "TLS13": ssl.TLSVersion.TLSv1_3,
}
_Version = Literal["TLS12", "TLS13"]
_Hash = Annotated[str, StringConstraints(pattern=r"^\$2[aby]\$\d\d\$[./A-Za-z0-9]{53}$")]
# Passwords that were checked, so that each request need not take the time of bcrypt.
_MOST_CHECKED: Final = 100
# Compared for users that there are not, so that the time does not tell them.
_NOBODY: Final = b"$2b$10$CwTycUXWue0Thq9StjUM0uJ8DlQ0XcHsR4vZ1rQ6wYx7yJzQmF0eW"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Tls(_Strict):
    """The part `tls_server_config`; paths are relative to the file's folder."""

    cert_file: Path
    key_file: Path
    client_auth_type: Literal["NoClientCert", "RequireAndVerifyClientCert"] = "NoClientCert"
    client_ca_file: Path | None = None
    min_version: _Version = "TLS12"
    max_version: _Version = "TLS13"

    @model_validator(mode="after")
    def require_agreement(self) -> Self:
        """Raise ValueError for an authority that would not be asked for, or that is missing."""
        if bool(self.client_ca_file) != (self.client_auth_type == "RequireAndVerifyClientCert"):
            both = "client_ca_file and client_auth_type: RequireAndVerifyClientCert"
            raise ValueError(f"{both} need each other: give both or none")
        return self


class _Http(_Strict):
    """The part `http_server_config`; HTTP/2 is not served, which clients find out."""

    http2: bool = True
    headers: dict[str, str] = {}


class _File(_Strict):
    """The whole file."""

    tls_server_config: _Tls | None = None
    http_server_config: _Http = _Http()
    basic_auth_users: dict[str, _Hash] = {}


class WebConfig:
    """Certificates and users of a file, which is read again when it or a certificate changed.

    Raises ConfigError if the file cannot be used at first; later, what was read last is used on.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._state: list[tuple[int, int, int] | None] = []
        self._file = _File()
        self.context: ssl.SSLContext | None = None
        self._load()

    @property
    def users(self) -> Mapping[str, str]:
        """The bcrypt hashes of passwords by user; nobody is asked for one if it is empty."""
        return self._file.basic_auth_users

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers of each response."""
        return self._file.http_server_config.headers

    def refresh(self) -> None:
        """Read the file again if it, or a file that it names, has changed."""
        if self._look() == self._state:
            return
        try:
            self._load()
            log.info("web configuration read again", file=str(self._path))
        except ConfigError as error:
            # not for each connection
            self._state = self._look()
            log.warning("web configuration not read again", reason=str(error))

    def _load(self) -> None:
        state = self._look()
        try:
            file = _File.model_validate(yaml.safe_load(self._path.read_bytes()) or {})
            if self._state and bool(file.tls_server_config) != bool(self.context):
                raise ConfigError(f"{self._path}: TLS is switched on or off by a restart only")
            if file.tls_server_config:
                self.context = self._prepare(file.tls_server_config)
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise ConfigError(f"{self._path} is not accepted: {_reason(error)}") from None
        self._file = file
        # a certificate named for the first time is looked at, too
        self._state = state if len(state) == len(self._look()) else self._look()

    def _prepare(self, tls: _Tls) -> ssl.SSLContext:
        """Return the context with the certificate and versions: the same for all connections.

        Each connection takes the newest one, since a context cannot drop an authority.
        """
        newest = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        lasting = self.context or ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        for context in (newest, lasting):
            context.minimum_version = _VERSIONS[tls.min_version]
            context.maximum_version = _VERSIONS[tls.max_version]
            context.load_cert_chain(self._beside(tls.cert_file), self._beside(tls.key_file))
            if tls.client_ca_file and context is newest:
                context.load_verify_locations(self._beside(tls.client_ca_file))
            is_asked = tls.client_auth_type == "RequireAndVerifyClientCert"
            context.verify_mode = ssl.CERT_REQUIRED if is_asked else ssl.CERT_NONE

        def take_newest(connection: ssl.SSLObject, _name: str, _context: ssl.SSLContext) -> None:
            connection.context = newest

        lasting.sni_callback = take_newest
        return lasting

    def _look(self) -> list[tuple[int, int, int] | None]:
        """Return the state of the file and of those that it names."""
        tls = self._file.tls_server_config
        named = (tls.cert_file, tls.key_file, tls.client_ca_file) if tls else ()
        return [_stat(self._beside(path)) for path in (self._path, *named) if path]

    def _beside(self, path: Path) -> Path:
        return self._path.parent / path


class BasicAuth:
    """An ASGI application that lets the users of a web configuration pass."""

    def __init__(self, app: ASGIApp, config: WebConfig) -> None:
        self._app = app
        self._config = config
        self._checked: dict[bytes, bool] = {}
        self._checking = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        self._config.refresh()
        if self._config.users and not await self._is_known(Request(scope)):
            asked = {"WWW-Authenticate": "Basic"}
            response = PlainTextResponse("Unauthorized", 401, asked)
            await response(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                more = [
                    (name.lower().encode("latin-1"), value.encode("latin-1"))
                    for name, value in self._config.headers.items()
                ]
                message = {**message, "headers": [*message["headers"], *more]}
            await send(message)

        await self._app(scope, receive, send_with_headers)

    async def _is_known(self, request: Request) -> bool:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        try:
            user, is_both, password = base64.b64decode(given, validate=True).partition(b":")
        except (Error, ValueError):
            return False
        if scheme.lower() != "basic" or not is_both:
            return False
        found = self._config.users.get(user.decode(errors="replace"), "").encode()
        key = hashlib.sha256(b"\0".join((found, user, password))).digest()
        if self._checked.get(key):
            return True
        # one at a time: each takes a processor for a moment
        async with self._checking:
            if key not in self._checked:
                right = await asyncio.to_thread(_check, password, found or _NOBODY)
                while len(self._checked) >= _MOST_CHECKED:
                    # right answers stay as long as there are wrong ones
                    wrong = (each for each, is_right in self._checked.items() if not is_right)
                    del self._checked[next(wrong, next(iter(self._checked)))]
                self._checked[key] = right and bool(found)
            return self._checked[key]


def _check(password: bytes, hashed: bytes) -> bool:
    try:
        # bcrypt reads no more, and refuses what is longer
        return bcrypt.checkpw(password[:72], hashed)
    except ValueError:
        return False


def _stat(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def _reason(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return str(error)
