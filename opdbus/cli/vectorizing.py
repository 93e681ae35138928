"""Command `op-dbus vectorize`: the vectors of texts, printed or written to a file."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from opdbus.cli import output
from opdbus.cli.asking import ask, chosen
from opdbus.cli.root import as_json, level_names, number, root
from opdbus.errors import InvalidArgs

if TYPE_CHECKING:
    from opdbus.client import Client

_FILE = click.Path(dir_okay=False, path_type=Path)
# numpy's names of the vector types; for ubinary, of its bytes.
_NUMPY_TYPES = {"float32": "<f4", "float16": "<f2", "int8": "|i1", "ubinary": "|u1"}


@root.command()
@click.argument("texts", nargs=-1)
@click.option(
    "--level",
    default="",
    metavar="LEVEL",
    help="The level whose model to use.",
    shell_complete=level_names,
)
@click.option(
    "--dimensions", type=number, metavar="N", help="Only the first so many numbers of each vector."
)
@click.option("--dtype", type=click.Choice(list(_NUMPY_TYPES)), help="Of the vectors in --output.")
@click.option("--bulk", type=_FILE, help="The texts: a file of JSON strings, one a line.")
@click.option("--output", type=_FILE, help="Where the vectors go: a .npy file, or raw rows.")
@as_json
def vectorize(texts: tuple[str, ...], json_: bool, **options: Any) -> None:  # noqa: FBT001, ANN401
    """Print the vectors of TEXTS.

    Without TEXTS, the lines of standard input are the texts. With --bulk and --output, the vectors
    of a file of texts are written into a file.
    """
    bulk, out = options.pop("bulk"), options.pop("output")
    if bulk and out and not texts:
        _vectorize_file(bulk, out, chosen(**options), json_=json_)
        return
    if bulk or out or options.pop("dtype"):
        raise InvalidArgs("--bulk, --output and --dtype go together, and without TEXTS")
    given = list(texts) or [line.rstrip("\n") for line in sys.stdin]

    async def both(client: Client) -> tuple[list[list[float]], int, list[int]]:
        counted = await client.count_tokens(given, chosen(level=options["level"]))
        return await client.vectorize(given, chosen(**options)), *counted

    vectors, most, tokens = ask(both)
    cut = sum(count > most for count in tokens)
    if cut:
        output.note(f"op-dbus: {cut} of {len(given)} texts were cut at {most} tokens")
    if json_:
        keys = ("text", "tokens", "truncated", "vector")
        rows = [(t, n, n > most, v) for t, n, v in zip(given, tokens, vectors, strict=True)]
        output.as_json([dict(zip(keys, row, strict=True)) for row in rows])
        return
    for vector in vectors:
        print(" ".join(f"{x:.6f}" for x in vector))


def _vectorize_file(texts: Path, target: Path, options: dict[str, Any], *, json_: bool) -> None:
    """Write the vectors of a file of texts into a file, and print its shape."""
    vectors = ask(lambda client: client.vectorize_bulk(texts, options))
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
    """Return the header of a .npy file, version 1.0, padded to a multiple of 64 bytes.

    Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
    """
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}"
    padded = text + " " * (-(10 + len(text) + 1) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded.encode()
