"""Command `op-dbus page`: a browser's way to the gateway, by a link that works once."""

from __future__ import annotations

import os
import socket
import stat
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from opdbus.cli.root import root
from opdbus.errors import ConfigError
from opdbus.platform import pip

if TYPE_CHECKING:
    from collections.abc import Iterator

_SOCKET: Final = "/run/op-dbus/http.sock"
# The first request starts the gateway, and systemd gives up on one that cannot start.
_START_SECONDS: Final = 60.0
_ASKED: Final = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
_DISPLAYS: Final = ("DISPLAY", "WAYLAND_DISPLAY")


@root.command()
@click.option(
    "--socket",
    "gateway",
    type=click.Path(path_type=Path),
    default=_SOCKET,
    metavar="PATH",
    help=f"The gateway's unix socket. [{_SOCKET}]",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    metavar="N",
    help="The port on 127.0.0.1, for `ssh -L`; otherwise a free one.",
)
@click.option("--print", "only_print", is_flag=True, help="Print the link, open no browser.")
@click.option(
    "--idle",
    type=click.FloatRange(min=0, min_open=True),
    default=30.0,
    metavar="MINUTES",
    help="End after so long without a request. [30]",
)
def page(gateway: Path, port: int, only_print: bool, idle: float) -> None:
    """Open the page in a browser: ask, drift, changes, the map.

    The link works once, for one browser, and other users of this host are refused. The page is
    served until Ctrl-C, and as you: who may not open the gateway's socket sees nothing.
    """
    import asyncio

    with pip.required("http"):
        from opdbus.gateway.page import listener

    require_gateway(gateway)
    try:
        own = socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise ConfigError(f"cannot listen on 127.0.0.1:{port}: {error.strerror}") from None
    served = listener.PageListener(gateway)
    link = served.link(own.getsockname()[1])
    with _open(link, only_print=only_print) as is_opened:
        if not is_opened:
            click.echo(link)
        click.echo("The link works once. Ctrl-C ends.", err=True)
        asyncio.run(listener.serve(served, own, 60 * idle))


def require_gateway(path: Path, seconds: float = _START_SECONDS) -> None:
    """Raise ConfigError with a way out if no gateway serves the page on a socket.

    systemd listens for a gateway that cannot start, so that a connection alone proves nothing.
    """
    advice = "`systemctl start op-dbus-gateway.socket`, or name another one by --socket"
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            raise ConfigError(f"{path} is not a socket: {advice}")
        with socket.socket(socket.AF_UNIX) as tried:
            tried.settimeout(seconds)
            tried.connect(str(path))
            tried.sendall(_ASKED)
            answer = tried.recv(64)
    except TimeoutError:
        reason = f"does not answer within {seconds:g} s"
    except (ConnectionResetError, BrokenPipeError):
        reason = "closed the connection"
    except PermissionError:
        raise ConfigError(
            f"you may not open {path}: members of the group op-dbus may;"
            " `sudo usermod -aG op-dbus $USER`, then log in again"
        ) from None
    except OSError as error:
        raise ConfigError(
            f"cannot reach the gateway at {path}: {error.strerror}: {advice}"
        ) from None
    else:
        if answer.startswith(b"HTTP/1.1 200 "):
            return
        first = answer.partition(b"\r\n")[0].decode(errors="replace")
        reason = f"answers {first!r}" if first else "closed the connection"
    raise ConfigError(f"the gateway at {path} {reason}: `op-dbus doctor` says more")


@contextmanager
def _open(link: str, *, only_print: bool) -> Iterator[bool]:
    """Open a browser if there is a desktop; yield whether it was opened.

    Arguments of processes can be read by everybody, so the link is in a file of the user alone.
    """
    if only_print or not any(os.environ.get(name) for name in _DISPLAYS):
        yield False
        return
    # only here: each command loads this module
    import html
    import tempfile
    import webbrowser

    with tempfile.TemporaryDirectory(
        prefix="op-dbus-page-", dir=os.environ.get("XDG_RUNTIME_DIR")
    ) as folder:
        file = Path(folder, "op-dbus.html")
        url = html.escape(link)
        refresh = f'<meta http-equiv="refresh" content="0;url={url}">'
        file.write_text(f"<!doctype html><title>op-dbus</title>{refresh}", encoding="utf-8")
        yield webbrowser.open(file.as_uri())
