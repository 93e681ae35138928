"""Listeners of the gateway, its options, and checks of both that need no web framework."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from socket import IPPROTO_TCP, TCP_NODELAY
from typing import TYPE_CHECKING, Final, NamedTuple

from opdbus.errors import ConfigError
from opdbus.gateway.http_limits import Limits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opdbus.gateway.web_config import WebConfig

READ: Final = "http"
WRITE: Final = "write"
METRICS: Final = "metrics"
_LIMITS: Final = Limits()


@dataclass(frozen=True, slots=True)
class Listener:
    """A listening socket and the application that serves it, by name."""

    name: str
    socket: socket.socket

    def __post_init__(self) -> None:
        """Let TCP send at once: the second part of an answer would wait 40 ms for the first."""
        if self.is_tcp:
            # connections inherit it; asyncio sets it only where the socket's protocol is named
            self.socket.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)

    @property
    def is_tcp(self) -> bool:
        """True if others than this host's users may reach it."""
        return self.socket.family != socket.AF_UNIX

    def __str__(self) -> str:
        """Return the name and the address."""
        address = self.socket.getsockname()
        return f"{self.name} on {':'.join(map(str, address[:2])) if self.is_tcp else address}"


class FleetAccess(NamedTuple):
    """The URL of the fleet's database and its password; None leaves it to libpq's own file."""

    url: str
    password: str | None


@dataclass(frozen=True, slots=True)
class Options:
    """The gateway's settings.

    The bus, the tokens of TCP, its names, the metrics' users, limits, and the fleet.
    """

    bus: str
    token: str = ""
    write_token: str = ""
    names: Sequence[str] = ()
    web_config: WebConfig | None = None
    limits: Limits = _LIMITS
    fleet: FleetAccess | None = None

    def token_of(self, listener: Listener) -> str:
        """Return the token that clients of a listener send; empty if they need none."""
        tokens = {READ: self.token, WRITE: self.write_token}
        return tokens.get(listener.name, "") if listener.is_tcp else ""


def require_tokens(options: Options, listeners: Sequence[Listener]) -> None:
    """Raise ConfigError for a listener that may not be served without a token, or with this one."""
    for each in listeners:
        if each.is_tcp and each.name != METRICS and not options.token_of(each):
            kind = "_WRITE" if each.name == WRITE else ""
            raise ConfigError(
                f"{each} needs a token, since any user may reach it: write one to a file that only"
                f" this user may read, and let OP_DBUS_HTTP{kind}_TOKEN_FILE name it, or put it"
                f" into /etc/credstore/op-dbus.http{kind.lower().replace('_', '-')}-token for the"
                " service"
            )
    if options.token and options.token == options.write_token:
        raise ConfigError("who may read could publish, too: take another token for writing")
