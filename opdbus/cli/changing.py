"""Commands that change something: published objects and the served engine."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click

from opdbus.cli import completing, output
from opdbus.cli.daemon_calls import ask, name_of_path, path_of
from opdbus.cli.root import as_json, root
from opdbus.errors import InvalidArgs
from opdbus.settings.parsing import PROVIDERS
from opdbus.wording.change_words import plural

if TYPE_CHECKING:
    from opdbus.client import Client

_ID_KEYS = ("plugin", "kind", "name")


@root.command()
@click.argument("source")
@click.argument("file", type=click.File(encoding="utf-8"), default="-")
@click.option(
    "--describe",
    default="",
    metavar="KEYS",
    help="Properties by whose meaning the objects are found, separated by commas.",
)
@as_json
def publish(source: str, file: Any, describe: str, json_: bool) -> None:
    """Publish objects under the name SOURCE.

    FILE, or standard input, is JSON: an object or a list of them, each with the strings plugin,
    kind and name, and the dict properties. Prints their names, or their D-Bus paths as JSON.
    """
    try:
        content = json.load(file)
    except ValueError as error:  # the message has line and column
        raise InvalidArgs(f"{file.name} is not JSON: {error}") from None
    items = content if isinstance(content, list) else [content]
    if not items:
        raise InvalidArgs(f"nothing to publish: the list in {file.name} is empty")
    objects = [_parse_published(number, item) for number, item in enumerate(items, 1)]
    keys = [key.strip() for key in describe.split(",") if key.strip()]
    found = ask(lambda client: client.publish(source, objects, describe=keys))
    if json_:
        output.print_json(found)
        return
    for path in found:
        print(output.escape_hidden(name_of_path(path)))


def _parse_published(number: int, item: Any) -> tuple[str, str, str, dict[str, Any]]:
    given = item if isinstance(item, dict) else {}
    properties = given.get("properties", {})
    faults = [f"no string {key}" for key in _ID_KEYS if not isinstance(given.get(key), str)]
    faults += [f"the unknown key {key}" for key in given.keys() - {*_ID_KEYS, "properties"}]
    if not isinstance(properties, dict):
        faults.append("properties that are not a JSON object")
    if not given.keys() & {*_ID_KEYS}:
        raise InvalidArgs(
            f"object {number} is no object to publish: it has none of plugin, kind and name;"
            " `op-dbus publish --help` shows the form"
        )
    if faults:
        raise InvalidArgs(f"object {number} has {' and '.join(faults)}; `--help` shows the form")
    return given["plugin"], given["kind"], given["name"], _without_null(properties)


def _without_null(value: Any) -> Any:
    """Remove nulls, which D-Bus cannot carry."""
    if isinstance(value, dict):
        return {key: _without_null(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_null(item) for item in value if item is not None]
    return value


@root.command()
@click.argument("objects", nargs=-1, required=True, shell_complete=completing.complete_objects)
def withdraw(objects: tuple[str, ...]) -> None:
    """Withdraw what you published about OBJECTS.

    Each of OBJECTS is PLUGIN/KIND/NAME, as `list` prints it, a D-Bus path, or a unique name.
    """

    async def withdrawn(client: Client) -> int:
        return await client.withdraw([await path_of(client, name, unique=True) for name in objects])

    print(f"{ask(withdrawn)} withdrawn")


@root.command()
@click.option("--measure", is_flag=True, help="Measure speeds and precisions anew: a minute.")
def reload(*, measure: bool) -> None:
    """Read settings and state file again, and show what is served."""
    _change_engine(lambda client: client.reload(measure=measure))


@root.command(name="set-provider")
@click.argument("provider", shell_complete=completing.complete_words(PROVIDERS))
@click.option("--device", default="", metavar="N", help="As OP_DBUS_GPU_DEVICE. [as before]")
def set_provider(provider: str, device: str) -> None:
    """Serve on PROVIDER once the model is proven there.

    PROVIDER is a name or a chain, as for OP_DBUS_EXECUTION_PROVIDER. The old one serves meanwhile.
    """
    _change_engine(lambda client: client.set_provider(provider, device))


def _change_engine(change: Callable[[Client], Awaitable[None]]) -> None:
    """Change the served engine, and print the new state and its faults."""

    async def changed(client: Client) -> dict[str, Any]:
        await change(client)
        return await client.status()

    status = ask(changed)
    engine = "lexical search only"
    if status["Provider"]:
        engine = f"level {status['Level']} on {status['Provider']} in {status['Precision']}"
    elif status["Level"] != "none":
        engine = f"level {status['Level']} is {status['State']}"
    if status["State"] == "degraded":
        engine += ", degraded"
    faults = (*(reason for _, reason in status["Fallbacks"]), status["LastError"])
    fault = "".join(f"; {text}" for text in faults if text)
    count = f"{status['Count']:,} {plural('object', status['Count'])}"
    text = f"{count}, state file {status['StateFile']}, {engine}{fault}"
    print(output.escape_hidden(text))
