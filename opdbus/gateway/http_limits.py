"""Limits of the gateway, as one table; docs/http.md names each with its status."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes in bytes, times in seconds, numbers of each listener."""

    # a request's line and headers
    header_bytes: int = 32 << 10
    headers: int = 100
    header_seconds: float = 15.0
    # a body; so much time passes before a client has to send `body_rate` bytes a second
    body_bytes: int = 16 << 20
    body_seconds: float = 20.0
    body_rate: int = 4096
    # a body that is read in parts and never held whole: that of /batch/import
    streamed_bytes: int = 1 << 30
    # all bodies that are held at one time
    held_bytes: int = 128 << 20
    # a client has to read `read_bytes` in so much time
    read_seconds: float = 20.0
    read_bytes: int = 64 << 10
    # all responses that clients have not read
    unread_bytes: int = 192 << 20
    # past it, the connection that is idle longest is closed
    connections: int = 2048
    # longer than clients keep an idle connection, so that they close it, not the server
    idle_seconds: int = 300
    # a client that was answered may go on sending its body
    linger_seconds: float = 2.0
    # the daemon takes 128 calls of a connection
    running_of_client: int = 100
    running: int = 1000
    # for running requests after SIGTERM
    stop_seconds: int = 5
