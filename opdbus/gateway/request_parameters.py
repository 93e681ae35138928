"""Names and times in parameters of requests."""

from typing import Final

from opdbus.bus import paths
from opdbus.client import Client
from opdbus.errors import InvalidArgs, UnknownObject
from opdbus.gateway.http_errors import HttpError
from opdbus.platform import timestamps

_STATE: Final = paths.STATE + "/"


async def resolve(client: Client, parameter: str, name: str) -> str:
    """Return the path of an object given as a path, PLUGIN/KIND/NAME, or shorter."""
    if name.startswith(_STATE):
        paths.parse(name)
        return name
    found, close = await client.resolve(name, past=True)
    if len(found) == 1:
        return str(found[0][0])
    listed = ", ".join("/".join(row[1:]) for row in found or close)
    if found:
        raise InvalidArgs(f"{parameter}: {name!r} may be any of these: {listed}")
    advice = f"; the closest are {listed}" if listed else ""
    raise UnknownObject(f"{parameter}: there is no object {name!r}{advice}")


def read_time(parameter: str, text: str) -> int:
    """Return a time in microseconds since 1970, from a number of them or in words."""
    if text.isascii() and text.isdigit() and len(text) < 19:
        return int(text)
    try:
        return timestamps.moment_here(text)
    except InvalidArgs as error:
        raise HttpError(400, f"{parameter}: {error}", parameter) from None
