"""The commands that change something: what is published, and what the daemon serves."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click

from opdbus.cli import output
from opdbus.cli.asking import ask, path_of
from opdbus.cli.root import root
from opdbus.errors import InvalidArgs

if TYPE_CHECKING:
    from opdbus.client import Client


@root.command()
@click.argument("source")
@click.argument("file", type=click.File(encoding="utf-8"), default="-")
def publish(source: str, file: Any) -> None:  # noqa: ANN401
    """Publish objects under the name SOURCE.

    FILE, or standard input, is JSON: an object or a list of them, each with the strings plugin,
    kind and name, and the dict properties.
    """
    try:
        content = json.load(file)
    except ValueError as error:
        raise InvalidArgs(f"{file.name} is not JSON: {error}") from None
    objects = [_published(item) for item in (content if isinstance(content, list) else [content])]
    for path in ask(lambda client: client.publish(source, objects)):
        print(path)


def _published(item: Any) -> tuple[str, str, str, dict[str, Any]]:  # noqa: ANN401
    names = ("plugin", "kind", "name")
    if not isinstance(item, dict) or not all(isinstance(item.get(key), str) for key in names):
        raise InvalidArgs("an object to publish must have the strings plugin, kind and name")
    properties = item.get("properties", {})
    if not isinstance(properties, dict) or item.keys() - {*names, "properties"}:
        raise InvalidArgs("an object has plugin, kind, name and the dict properties, nothing else")
    return item["plugin"], item["kind"], item["name"], _without_null(properties)


def _without_null(value: Any) -> Any:  # noqa: ANN401
    """Leave out nulls, which D-Bus cannot carry."""
    if isinstance(value, dict):
        return {key: _without_null(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_null(item) for item in value if item is not None]
    return value


@root.command()
@click.argument("objects", nargs=-1, required=True)
def withdraw(objects: tuple[str, ...]) -> None:
    """Withdraw what you published about OBJECTS.

    Each of OBJECTS is PLUGIN/KIND/NAME, as `list` prints it, or a D-Bus path.
    """
    given = [path_of(name) for name in objects]
    print(f"{ask(lambda client: client.withdraw(given))} withdrawn")


@root.command()
def reload() -> None:
    """Read settings and state file again, and show what is served."""
    _change(lambda client: client.reload())


@root.command(name="set-provider")
@click.argument("provider")
@click.option("--device", default="", metavar="N", help="As OP_DBUS_GPU_DEVICE. [as before]")
def set_provider(provider: str, device: str) -> None:
    """Serve on PROVIDER once the model is proven there.

    PROVIDER is a name or a chain, as for OP_DBUS_EXECUTION_PROVIDER. The old one serves meanwhile.
    """
    _change(lambda client: client.set_provider(provider, device))


def _change(change: Callable[[Client], Awaitable[None]]) -> None:
    """Change what is served, and print what it is now."""

    async def changed(client: Client) -> dict[str, Any]:
        await change(client)
        return await client.status()

    print(output.visible(_served(ask(changed))))


def _served(status: dict[str, Any]) -> str:
    """Say in a sentence what is served, and what is wrong with it."""
    engine = "lexical search only"
    if status["Provider"]:
        engine = f"level {status['Level']} on {status['Provider']} in {status['Precision']}"
    elif status["Level"] != "none":
        engine = f"level {status['Level']} is {status['State']}"
    fault = f"; {status['LastError']}" if status["LastError"] else ""
    count = f"{status['Count']:,} object{'' if status['Count'] == 1 else 's'}"
    return f"{count}, state file {status['StateFile']}, {engine}{fault}"
