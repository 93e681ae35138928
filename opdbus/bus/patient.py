"""The socket to the bus: waits where the library would give up, and keeps what comes in safe."""

from __future__ import annotations

import errno
import socket
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

# After so many reads in a row the event loop has a turn: a flood of messages must not stop it.
READS_AT_ONCE: Final = 128


class PatientSocket(socket.socket):
    """A socket whose full buffer is no error, as the library takes it to be: nothing is sent yet.

    The library then waits until the socket can be written, and tries again, but has forgotten the
    descriptors by then: they are kept here for that try. Descriptors that come in are not
    inherited by child processes.
    """

    _held: Iterable[Any] = ()
    _reads = 0

    def send(self, data: Any, flags: int = 0) -> int:  # noqa: ANN401 -- socket's own signature
        """Send what the socket takes now, and give its size."""
        if self._held:
            return self.sendmsg([data], self._held, flags)
        try:
            return super().send(data, flags)
        except BlockingIOError:
            return 0

    def sendmsg(
        self,
        buffers: Iterable[Any],
        ancdata: Iterable[Any] = (),
        flags: int = 0,
        address: Any = None,  # noqa: ANN401 -- socket's own signature
    ) -> int:
        """Send what the socket takes now, the descriptors with its first byte."""
        try:
            sent = super().sendmsg(buffers, ancdata, flags, address)
        except BlockingIOError:
            self._held = ancdata
            return 0
        self._held = ()
        return sent

    def recvmsg(self, bufsize: int, ancbufsize: int = 0, flags: int = 0) -> Any:  # noqa: ANN401
        """Receive; raises BlockingIOError if there is nothing, or others must have a turn."""
        if self._reads == READS_AT_ONCE:
            self._reads = 0
            raise BlockingIOError(errno.EAGAIN, "there may be more, after a turn of the loop")
        try:
            received = super().recvmsg(bufsize, ancbufsize, flags | socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            self._reads = 0
            raise
        self._reads += 1
        return received
