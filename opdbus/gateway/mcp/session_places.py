"""Places of clients among the sessions of the 2025 era, each for its client alone."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from opdbus.gateway.http_errors import HttpError

MOST_OF_CLIENT: Final = 64


class SessionPlaces:
    """An ASGI application: the SDK's sessions, of which one client may open a part."""

    def __init__(self, manager: StreamableHTTPSessionManager) -> None:
        self._manager = manager
        # requests that may open a session and run now
        self._opening = Counter[str]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request; raises HttpError for one session of its client too many."""
        client = (scope.get("client") or ("",))[0]
        # the SDK answers 404 to other users than the one that opened a session
        user = AuthenticatedUser(AccessToken(token="", client_id=client, scopes=[]))
        with ExitStack() as place:
            place.enter_context(self._place(scope, client))

            async def answer(message: Message) -> None:
                # by now the session is among those that are open
                if message["type"] == "http.response.start":
                    place.close()
                await send(message)

            await self._manager.handle_request({**scope, "user": user}, receive, answer)

    @contextmanager
    def _place(self, scope: Scope, client: str) -> Iterator[None]:
        headers = Headers(scope=scope)
        version = headers.get("mcp-protocol-version", HANDSHAKE_PROTOCOL_VERSIONS[0])
        if "mcp-session-id" in headers or version not in HANDSHAKE_PROTOCOL_VERSIONS:
            yield
            return
        owners = (each["client_id"] for each in self._manager._session_owners.values())
        count = sum(each == client for each in owners) + self._opening[client]
        if count >= MOST_OF_CLIENT:
            raise HttpError(429, f"{count} sessions of this client are open: end some")
        self._opening[client] += 1
        try:
            yield
        finally:
            self._opening[client] -= 1
            if not self._opening[client]:
                del self._opening[client]
