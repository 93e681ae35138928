"""Scene as a static SVG without scripts, with the names of points as titles."""

import re
from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias
from xml.sax.saxutils import escape

from opdbus.picture.scene import CHANGED, DARK, DRIFTED, LIGHT, Label, Scene, Sign

_WIDTH: Final = 1600
_MARGIN: Final = 40
_HEAD: Final = 100
_FOOT: Final = 60
# A letter's width as a share of the font size, rounded up, since fonts differ.
_LETTER: Final = 0.58
# Gap between a label and the points below it.
_ABOVE: Final = 6
# Height of a line as a share of the font size, and the width of a mark.
_LINE: Final = 1.15
_SIGN: Final = 20
_SHAPES: Final = {
    DRIFTED: ((0, -1.45), (1.45, 0), (0, 1.45), (-1.45, 0)),
    CHANGED: ((0, -1.4), (1.35, 1), (-1.35, 1)),
}
# Left, top, width and height.
_Box: TypeAlias = tuple[float, float, float, float]
_STYLE: Final = """
text {{ font-family: system-ui, sans-serif; fill: {text}; }}
.ground {{ fill: {back}; }} .soft {{ fill: {soft}; }} .ink {{ fill: {text}; }}
.label {{ font-weight: 600; text-anchor: middle; }}
.label {{ stroke: {back}; stroke-width: 4; paint-order: stroke; }}
.drifted, .changed {{ stroke: {text}; stroke-width: 1.6; }}
.edge {{ fill: {back}; stroke: {back}; stroke-width: 5; }}
"""
_GROUNDS: Final = {
    "light": {"text": "#1d2126", "back": "#fbfaf6", "soft": "#596069"},
    "dark": {"text": "#e9e7e1", "back": "#12151a", "soft": "#a2a8b0"},
}
# Characters that XML 1.0 does not allow.
_NO_XML: Final = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def draw(scene: Scene) -> str:
    """Return the picture."""
    wide, high = scene.size
    scale = (_WIDTH - 2 * _MARGIN) / max(wide, 1e-6)
    height = round(_HEAD + high * scale + _FOOT + _MARGIN)
    title, about = _escape(scene.title), _escape(scene.about)
    return "\n".join((
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">',
        f"<title>{title}</title><desc>{about}</desc>",
        f"<style>{_style('light', LIGHT)}",
        f"@media (prefers-color-scheme: dark) {{{_style('dark', DARK)}}}</style>",
        f'<rect class="ground" width="{_WIDTH}" height="{height}"/>',
        f'<text x="{_MARGIN}" y="34" font-size="22" font-weight="600">{title}</text>',
        f'<text class="soft" x="{_MARGIN}" y="56" font-size="14">{about}</text>',
        f'<g transform="translate({_MARGIN} {_HEAD})">',
        *_points(scene, scale, ("", CHANGED)),
        *_labels(scene, scale),
        # drifted objects are on top
        *_points(scene, scale, (DRIFTED,)),
        "</g>",
        *_legend(scene.legend(), height - _FOOT / 2),
        "</svg>\n",
    ))  # fmt: skip


def _style(ground: str, colours: Sequence[str]) -> str:
    classes = " ".join(f".c{n} {{ fill: {colour}; }}" for n, colour in enumerate(colours))
    return f"{_STYLE.format(**_GROUNDS[ground])}{classes}\n"


def _points(scene: Scene, scale: float, marks: Sequence[str]) -> Iterator[str]:
    """Yield a shape for each object with one of the marks, in their order: the last are on top."""
    colours, radius = scene.colours(), max(2.0, min(5.0, 160 / len(scene.rows) ** 0.5))
    mark_of = [scene.marks[n].what if n in scene.marks else "" for n in range(len(scene.rows))]
    for mark in marks:
        for number, of in enumerate(scene.rows):
            if mark_of[number] != mark:
                continue
            x, y = (part * scale for part in scene.places[number])
            title = f"<title>{_escape(f'{of.plugin}/{of.kind}/{of.name}')}</title>"
            yield _shape(mark, f"c{colours[of.plugin]} {mark}".strip(), x, y, radius, title)


def _shape(what: str, names: str, x: float, y: float, radius: float, title: str = "") -> str:
    if what not in _SHAPES:
        return (
            f'<circle class="{names}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}">{title}</circle>'
        )
    size = max(1.25 * radius, 7)
    corners = " ".join(f"{x + dx * size:.1f},{y + dy * size:.1f}" for dx, dy in _SHAPES[what])
    # a light edge separates it from its neighbours
    edge = f'<polygon class="edge" points="{corners}"/>'
    return f'{edge}<polygon class="{names}" points="{corners}">{title}</polygon>'


def _labels(scene: Scene, scale: float) -> Iterator[str]:
    """Yield the labels of topics, without those that would overlap a larger one.

    A position that covers no mark is preferred.
    """
    places = [[part * scale for part in scene.places[row]] for row in scene.marks]
    signs = [(x - _SIGN / 2, y - _SIGN / 2, _SIGN, _SIGN) for x, y in places]
    taken: list[_Box] = []
    for label in scene.labels():
        size = max(17.0, min(26.0, 14 + 1.5 * label.size.bit_length()))
        boxes = [box for box in _boxes(label, size, scale) if _is_free(box, taken)]
        if boxes:
            box = next((each for each in boxes if _is_free(each, signs)), boxes[0])
            taken.append(box)
            left, top, width, _ = box
            for number, line in enumerate(label.lines):
                place = f'x="{left + width / 2:.0f}" y="{top + size * (1.1 + number * _LINE):.0f}"'
                look = f'class="label" {place} font-size="{size:.0f}"'
                yield f"<text {look}>{_escape(line)}</text>"


def _boxes(label: Label, size: float, scale: float) -> Iterator[_Box]:
    """Yield the positions of a label: its own, then a line higher and a line lower."""
    width = max(map(len, label.lines)) * size * _LETTER + 12
    height = len(label.lines) * size * _LINE + size / 2
    left = min(max(label.x * scale - width / 2, 0), _WIDTH - 2 * _MARGIN - width)
    top = label.y * scale - _ABOVE - height
    for by in (0, -1, 1):
        yield left, top + by * size * _LINE, width, height


def _is_free(box: _Box, taken: Sequence[_Box]) -> bool:
    """Return whether a box overlaps none of the others."""
    left, top, width, height = box
    return not any(
        left < x + wide and x < left + width and top < y + high and y < top + height
        for x, y, wide, high in taken
    )


def _legend(signs: Sequence[Sign], y: float) -> Iterator[str]:
    x = float(_MARGIN)
    for sign in signs:
        is_mark = isinstance(sign.key, str)
        what = str(sign.key) if is_mark else ""
        yield _shape(what, f"ink {what}" if is_mark else f"c{sign.key}", x + 8, y - 5, 6)
        said = f"{sign.text} {sign.many:,}"
        yield f'<text x="{x + 22:.0f}" y="{y:.0f}" font-size="14">{_escape(said)}</text>'
        x += 44 + len(said) * 14 * _LETTER


def _escape(text: str) -> str:
    return escape(_NO_XML.sub("\ufffd", text))
