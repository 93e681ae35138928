"""The map: every room in the order of imports, and every module, by its first line."""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

from test_layers import PARTS, ROOMS

from docs_parts.tables import ROOT, table

PACKAGE = ROOT / "opdbus"


def rooms() -> str:
    """List the rooms in the order of imports: each may import those above it."""
    return table(("room", "what it is for"), (_row(path) for path in _rooms()))


def modules() -> str:
    """List the modules of each room that has several."""
    return "\n\n".join(
        f"### {_name(room)}\n\n" + "\n".join(map(_line, files))
        for room in _rooms()
        if (files := sorted(room.glob("[!_]*.py")))
    )


def _rooms() -> Iterator[Path]:
    for name in ROOMS:
        for path in (PACKAGE / f"{name}.py", PACKAGE / name):
            if path.exists():
                yield path
                yield from (path / part for part in _parts(path) if (path / part).is_dir())


def _parts(room: Path) -> Iterable[str]:
    """Name the sub-packages of a room, in the order of imports where that is laid down."""
    return PARTS.get(room.name) or sorted(path.parent.name for path in room.glob("*/__init__.py"))


def _row(path: Path) -> tuple[str, str]:
    return f"[`{_name(path)}`]({_link(path)})", first_line(path)


def _line(path: Path) -> str:
    return f"- [`{path.name}`]({_link(path)}): {first_line(path)}"


def _name(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix() + ("/" if path.is_dir() else "")


def _link(path: Path) -> str:
    return f"../{path.relative_to(ROOT).as_posix()}"


def first_line(path: Path) -> str:
    """Return the first line of the docstring of a module or package."""
    file = path / "__init__.py" if path.is_dir() else path
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0]
