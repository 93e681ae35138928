"""Reading of a State1.Vectors file without numpy: its header and objects."""

import json
from typing import Any, BinaryIO, Final, NamedTuple

_LENGTH: Final = 8


class Row(NamedTuple):
    """An object of the file; `state` may be empty."""

    plugin: str
    kind: str
    name: str
    text: str
    state: str


class Table(NamedTuple):
    """Objects of a file, number of all matches, and number of those that wait for vectors.

    `renamed` maps paths of declared objects to the paths under which they are observed.
    """

    rows: list[Row]
    total: int
    waiting: int
    renamed: dict[str, str]


def header_of(content: Any) -> tuple[dict[str, Any], int]:  # noqa: ANN401 -- bytes of any kind
    """Return the header, and the offset of the tensors.

    The format: https://huggingface.co/docs/safetensors
    """
    begin = _LENGTH + int.from_bytes(content[:_LENGTH], "little")
    header: dict[str, Any] = json.loads(content[_LENGTH:begin])
    return header, begin


def read(file: BinaryIO) -> Table:
    """Read the objects of a file; its position afterwards is undefined."""
    file.seek(0)
    length = file.read(_LENGTH)
    header, begin = header_of(length + file.read(int.from_bytes(length, "little")))
    first, last = header["objects"]["data_offsets"]
    file.seek(begin + first)
    lines = file.read(last - first).splitlines()
    about = header["__metadata__"]
    rows = [Row(*json.loads(line)) for line in lines]
    renamed = json.loads(about.get("renamed", "{}"))
    return Table(rows, int(about["total"]), int(about["waiting"]), renamed)
