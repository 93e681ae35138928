"""The plan of the rooms as an SVG: a row of boxes for each layer, with the sizes of the rooms."""

from collections import defaultdict
from html import escape
from textwrap import wrap

from test_layers import FILES, PACKAGE, PARTS, ROOMS, imports_of, name_of, room_of

from docs_parts.modules import first_line
from docs_parts.tables import ROOT

FILE = ROOT / "docs" / "rooms.svg"
_WIDTH, _GAP, _TITLE, _LINE = 960, 10, 24, 13
_STYLE = (
    "text{font:11px sans-serif;fill:#222}.n{font-weight:bold;font-size:13px}.s{fill:#666}"
    "rect{fill:#f4f6fa;stroke:#8a94a6;rx:5}.bg{fill:#fff;stroke:none}"
)


def layers() -> list[list[str]]:
    """List the rooms by layer, clients first: each room is above all rooms that it imports.

    Loose modules count as rooms. Imports inside functions, and those for types, are left out.
    """
    imported = defaultdict(set)
    for path in FILES:
        for module, in_function, types in imports_of(path):
            if module.startswith("opdbus.") and not in_function and not types:
                imported[room_of(name_of(path))].add(room_of(module))
    depth: dict[str, int] = {}
    for room in ROOMS:
        below = (depth[other] for other in imported[room] - {room} if other in depth)
        depth[room] = 1 + max(below, default=-1)
    rows: list[list[str]] = [[] for _ in range(max(depth.values()) + 1)]
    for room in ROOMS:
        if (PACKAGE / room).is_dir() or (PACKAGE / f"{room}.py").is_file():
            rows[depth[room]].append(room)
    return [row for row in reversed(rows) if row]


def plan() -> str:
    """Draw the layers: rooms import only from rows below their own."""
    drawn, top = [], _GAP
    for row in layers():
        wide = (_WIDTH - _GAP) // len(row) - _GAP
        texts = [_text(room, wide // 6) for room in row]
        high = _TITLE + _LINE * max(map(len, texts)) + 8
        for number, (room, lines) in enumerate(zip(row, texts, strict=True)):
            left = _GAP + number * (wide + _GAP)
            drawn += [f'<rect x="{left}" y="{top}" width="{wide}" height="{high}"/>']
            drawn += [_label(left + 8, top + 17, room, "n")]
            drawn += [
                _label(left + 8, top + _TITLE + _LINE * (n + 1) - 3, line, "s" if n else "")
                for n, line in enumerate(lines)
            ]
        top += high + _GAP
    size = f'width="{_WIDTH}" height="{top}" viewBox="0 0 {_WIDTH} {top}"'
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', f"<style>{_STYLE}</style>",
        f'<rect class="bg" width="{_WIDTH}" height="{top}"/>', *drawn, "</svg>", "",
    ])  # fmt: skip


def _label(x: int, y: int, text: str, kind: str) -> str:
    return f'<text x="{x}" y="{y}" class="{kind}">{escape(text)}</text>'


def _text(room: str, characters: int) -> list[str]:
    """Describe a room in lines of so many characters: its parts, else its purpose."""
    path = PACKAGE / room if (PACKAGE / room).is_dir() else PACKAGE / f"{room}.py"
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    count = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)
    parts = [part for part in PARTS.get(room, ()) if (path / part).is_dir()]
    purpose = ", ".join(parts) if parts else first_line(path).replace("`", "").rstrip(".")
    return [_size(count), *wrap(purpose, max(characters, 12))]


def _size(lines: int) -> str:
    """Round, so that a changed line changes no picture."""
    return f"{max(100, round(lines, -2)):,} lines"
