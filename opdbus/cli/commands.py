"""The commands that ask the daemon: each asks one thing and prints the answer."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from opdbus.cli import output
from opdbus.cli.root import as_json, root, settings
from opdbus.errors import BusError, InvalidArgs, LimitsExceeded, ShuttingDown

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from typing import TypeVar

    from opdbus.client import Client

    T = TypeVar("T")

# What D-Bus carries as `u`.
NUMBER = click.IntRange(0, (1 << 32) - 1)
limit = click.option(
    "-n", "--limit", type=NUMBER, default=10, show_default=True, help="How many at most."
)
plugin = click.option("--plugin", help="Only objects of this plugin.")
kind = click.option("--kind", help="Only objects of this kind.")
_FILE = click.Path(dir_okay=False, path_type=Path)
# What the accuracy gate tells of each precision.
_GRADES = (
    "level",
    "provider",
    "precision",
    "chosen",
    "mean_cosine",
    "min_cosine",
    "rank",
    "texts_per_second",
    "refused",
)
# What numpy calls the types that vectors come in; of ubinary, the bytes.
_NUMPY_TYPES = {"float32": "<f4", "float16": "<f2", "int8": "|i1", "ubinary": "|u1"}


def _ask(ask: Callable[[Client], Awaitable[T]]) -> T:
    """Ask the daemon on the chosen bus."""
    # asyncio and the D-Bus library are half of the start-up time: only what asks pays it
    import asyncio

    from opdbus.client import Client

    bus = settings(click.get_current_context().obj).bus

    async def asking() -> T:
        async with Client(bus) as client:
            return await ask(client)

    try:
        return asyncio.run(asking())
    except (BusError, ShuttingDown) as error:
        raise (_fault_of_service() if bus == "system" else None) or error from None


def _fault_of_service() -> BusError | None:
    """Say why no daemon answers, where that is since systemd's service ended by a fault."""
    from opdbus import unit

    service = unit.find()
    if service is None or not service.has_failed:
        return None
    return BusError(f"{service.fault()}; correct that, then `systemctl restart op-dbus`")


def _path(name: str) -> str:
    """Give the path of an object that was named as PLUGIN/KIND/NAME or by its path."""
    from opdbus.bus import paths

    if name.startswith(paths.STATE + "/"):
        return name
    parts = name.split("/", 2)
    if len(parts) != 3 or not all(parts):
        raise InvalidArgs(f"{name!r} names no object: give PLUGIN/KIND/NAME or an object path")
    return paths.of(*parts)


def _options(**given: Any) -> dict[str, Any]:  # noqa: ANN401
    return {key: value for key, value in given.items() if value}


@root.command()
@as_json
def status(json_: bool) -> None:  # noqa: FBT001 -- click passes flags so
    """Show what the daemon does, and on what it was proven to do it."""
    values = _ask(lambda client: client.status())
    if json_:
        output.as_json(values)
        return
    proof = values.pop("Proof")
    values.pop("Accuracy")
    if proof:
        values["Proof"] = _proven(proof)
    fallbacks = [f"{provider}: {reason}" for provider, reason in values.pop("Fallbacks")]
    output.pairs({**values, "Fallbacks": "\n".join(fallbacks) or "none"})


def _proven(proof: dict[str, Any]) -> str:
    """Tell what was seen when the model was put to the test."""
    nodes = ", ".join(f"{count} nodes on {name}" for name, count in proof["nodes"].items())
    if proof["precision"] == "fp32":
        return (
            f"{nodes}; vectors within {proof['max_deviation']:.1e} of the reference"
            f" (limit {proof['tolerance']:.0e})"
        )
    return (
        f"{nodes} in {proof['precision']}; cosine to the reference at least"
        f" {proof['min_cosine']:.4f} (limit {1 - proof['tolerance']:.3f})"
    )


@root.command()
@click.option("--detail", is_flag=True, help="Show what the accuracy gate measured.")
@as_json
def levels(detail: bool, json_: bool) -> None:  # noqa: FBT001
    """List the levels and the models that they mean."""
    columns: Sequence[str] = ("level", "model", "dimension", "status", "detail")
    if detail:
        columns = _GRADES
        found = _ask(lambda client: client.accuracy())
        rows = [[grade[name] for name in columns] for grade in found]
    else:
        rows = _ask(lambda client: client.levels())
    if json_:
        output.as_json([dict(zip(columns, row, strict=True)) for row in rows])
    else:
        output.table(columns, rows)


@root.command()
@click.argument("query")
@limit
@plugin
@kind
@click.option(
    "--mode",
    type=click.Choice(["hybrid", "vector", "lexical"]),
    default="hybrid",
    help="By words and meaning, or by one of them. [hybrid]",
)
@click.option("--offset", type=NUMBER, default=0, help="Leave out so many of the best.")
@click.option("--rerank", metavar="LEVEL", help="Put the best in the order of another level.")
@as_json
def search(query: str, limit: int, json_: bool, **options: Any) -> None:  # noqa: FBT001, ANN401
    """Find the objects that answer QUERY, a question in plain words."""
    _print_hits(_ask(lambda client: client.search(query, limit, _options(**options))), json_=json_)


@root.command()
@click.argument("object")
@limit
@plugin
@kind
@as_json
def similar(object: str, limit: int, json_: bool, **options: Any) -> None:  # noqa: FBT001, ANN401, A002
    """Find the objects most like OBJECT (PLUGIN/KIND/NAME or a path)."""
    path = _path(object)
    _print_hits(_ask(lambda client: client.similar(path, limit, _options(**options))), json_=json_)


def _print_hits(hits: Sequence[Sequence[Any]], *, json_: bool) -> None:
    if json_:
        output.as_json([{"path": path, "score": score, **more} for path, score, more in hits])
        return
    rows = [
        (f"{score:.3f}", f"{more['plugin']}/{more['kind']}/{more['name']}", more["snippet"])
        for _, score, more in hits
    ]
    output.table(("score", "object", "text"), rows)


@root.command(name="list")
@plugin
@kind
@click.option("--source", help="Only objects of this source, such as file or publish:NAME.")
@click.option("--name", help="Only objects of this name.")
@click.option("-n", "--limit", type=NUMBER, help="How many at most; all, if not given.")
@click.option("--offset", type=NUMBER, default=0, help="Leave out so many of the first.")
@as_json
def list_(limit: int | None, offset: int, json_: bool, **wanted: Any) -> None:  # noqa: FBT001, ANN401
    """List the state objects."""
    total, rows = _ask(lambda client: _pages(client, _options(**wanted), offset, limit))
    if json_:
        keys = ("path", "plugin", "kind", "name")
        objects = [dict(zip(keys, row, strict=True)) for row in rows]
        output.as_json({"total": total, "objects": objects})
        return
    output.table(("plugin", "kind", "name"), [row[1:] for row in rows])
    if len(rows) < total - offset:
        click.echo(f"{len(rows)} of {total} objects", err=True)


async def _pages(
    client: Client, wanted: dict[str, Any], offset: int, limit: int | None
) -> tuple[int, list[list[str]]]:
    """Read page by page, since no reply may be large."""
    page_size = 1000
    rows: list[list[str]] = []
    while True:
        ask = page_size if limit is None else min(page_size, limit - len(rows))
        try:
            total, page = await client.page(wanted, offset + len(rows), ask)
        except LimitsExceeded:  # names can be very long
            if page_size == 1:
                raise
            page_size = max(1, page_size // 10)
            continue
        rows += page
        if not page or len(rows) in {limit, total - offset}:
            return total, rows


@root.command()
@click.argument("object")
@as_json
def show(object: str, json_: bool) -> None:  # noqa: FBT001, A002
    """Show all about OBJECT (PLUGIN/KIND/NAME or a path)."""
    path = _path(object)
    values = _ask(lambda client: client.show(path))
    for side in ("Declared", "Observed"):
        content = json.loads(values[side]) if values[side] else None
        values[side] = content if json_ else json.dumps(content, indent=2, ensure_ascii=False)
    if json_:
        output.as_json({"Path": path, **values})
    else:
        output.pairs({"Path": path, **values})


@root.command()
@plugin
@kind
@as_json
def drift(json_: bool, **wanted: Any) -> None:  # noqa: FBT001, ANN401
    """List what is observed to be other than declared, the farthest first."""
    rows = _ask(lambda client: client.drift(_options(**wanted)))
    if json_:
        keys = ("path", "distance", "fields")
        output.as_json([dict(zip(keys, row, strict=True)) for row in rows])
    else:
        shown = [(f"{distance:.3f}", path, ", ".join(fields)) for path, distance, fields in rows]
        output.table(("distance", "object", "fields"), shown)


@root.command()
@click.argument("texts", nargs=-1)
@click.option("--level", default="", help="The level whose model to use.")
@click.option(
    "--dimensions", type=click.IntRange(1), help="Only the first so many numbers of each vector."
)
@click.option("--dtype", type=click.Choice(list(_NUMPY_TYPES)), help="Of the vectors in --output.")
@click.option("--bulk", type=_FILE, help="The texts: a file of JSON strings, one a line.")
@click.option("--output", type=_FILE, help="Where the vectors go: a .npy file, or raw rows.")
@as_json
def vectorize(texts: tuple[str, ...], json_: bool, **options: Any) -> None:  # noqa: FBT001, ANN401
    """Print the vectors of TEXTS, or of the lines of standard input.

    With --bulk and --output, write those of a file of texts into a file.
    """
    bulk, out = options.pop("bulk"), options.pop("output")
    if bulk and out and not texts:
        _vectorize_file(bulk, out, _options(**options), json_=json_)
        return
    if bulk or out or options.pop("dtype"):
        raise InvalidArgs("--bulk, --output and --dtype go together, and without TEXTS")
    given = list(texts) or [line.rstrip("\n") for line in sys.stdin]

    async def ask(client: Client) -> tuple[list[list[float]], int, list[int]]:
        counted = await client.count_tokens(given, _options(level=options["level"]))
        return await client.vectorize(given, _options(**options)), *counted

    vectors, most, tokens = _ask(ask)
    cut = sum(count > most for count in tokens)
    if cut:
        click.echo(f"op-dbus: {cut} of {len(given)} texts were cut at {most} tokens", err=True)
    if json_:
        keys = ("text", "tokens", "truncated", "vector")
        rows = [(t, n, n > most, v) for t, n, v in zip(given, tokens, vectors, strict=True)]
        output.as_json([dict(zip(keys, row, strict=True)) for row in rows])
        return
    for vector in vectors:
        print(" ".join(f"{x:.6f}" for x in vector))


def _vectorize_file(texts: Path, target: Path, options: dict[str, Any], *, json_: bool) -> None:
    """Write the vectors of a file of texts into a file, and print what is in it."""
    vectors = _ask(lambda client: client.vectorize_bulk(texts, options))
    is_binary = vectors.dtype == "ubinary"
    shape = (vectors.rows, (vectors.dimension + 7) // 8 if is_binary else vectors.dimension)
    try:
        with vectors.file, target.open("wb") as out:
            if target.suffix == ".npy":
                out.write(_npy_header(_NUMPY_TYPES[vectors.dtype], shape))
            shutil.copyfileobj(vectors.file, out)
    except OSError as error:
        raise InvalidArgs(f"cannot write {target}: {error}") from None
    if json_:
        keys = ("file", "rows", "dimension", "dtype")
        found = (str(target), vectors.rows, vectors.dimension, vectors.dtype)
        output.as_json(dict(zip(keys, found, strict=True)))
    else:
        print(f"{vectors.rows} x {vectors.dimension} {vectors.dtype}: {target}")


def _npy_header(descr: str, shape: tuple[int, int]) -> bytes:
    """Give the beginning of a .npy file, version 1.0, which ends at a multiple of 64 bytes.

    Its format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
    """
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}"
    padded = text + " " * (-(10 + len(text) + 1) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded.encode()


@root.command()
@click.argument("source")
@click.argument("file", type=click.File(encoding="utf-8"), default="-")
def publish(source: str, file: Any) -> None:  # noqa: ANN401
    """Publish the objects in FILE (JSON, standard input if not given) under the name SOURCE.

    The JSON is one object or a list of them, each with plugin, kind, name and properties.
    """
    try:
        content = json.load(file)
    except ValueError as error:
        raise InvalidArgs(f"{file.name} is not JSON: {error}") from None
    objects = [_published(item) for item in (content if isinstance(content, list) else [content])]
    for path in _ask(lambda client: client.publish(source, objects)):
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
    """Withdraw what you published about OBJECTS (PLUGIN/KIND/NAME or paths)."""
    given = [_path(name) for name in objects]
    print(f"{_ask(lambda client: client.withdraw(given))} withdrawn")


@root.command()
def reload() -> None:
    """Have the daemon read settings and state file again; says what is wrong with them."""
    _ask(lambda client: client.reload())


@root.command(name="set-provider")
@click.argument("provider")
@click.option("--device", default="", help="As OP_DBUS_GPU_DEVICE; the one before if not given.")
def set_provider(provider: str, device: str) -> None:
    """Have the daemon serve on PROVIDER, a name or a chain, once the model is proven there."""
    _ask(lambda client: client.set_provider(provider, device))
