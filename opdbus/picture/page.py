"""Scene as one HTML file without requests, safe against scripts in names."""

import base64
import hashlib
import html
import json
from importlib import resources
from string import Template
from typing import Any, Final

from opdbus.picture.scene import DARK, LIGHT, Scene

_WIDE: Final = 65535
# Characters that could end the element with the data.
_ESCAPES: Final = {ord(letter): f"\\u{ord(letter):04x}" for letter in "<>&"}


def draw(scene: Scene) -> str:
    """Return the page."""
    colours = {f"light{n}": colour for n, colour in enumerate(LIGHT)}
    colours |= {f"dark{n}": colour for n, colour in enumerate(DARK)}
    folder = resources.files("opdbus.picture")
    css, script, page = (
        (folder / f"page.{suffix}").read_text(encoding="utf-8") for suffix in ("css", "js", "html")
    )
    style = Template(css).substitute(colours)
    policy = (
        f"default-src 'none'; base-uri 'none'; form-action 'none';"
        f" script-src '{_digest(script)}'; style-src '{_digest(style)}'"
    )
    data = json.dumps(script_data(scene), separators=(",", ":"), ensure_ascii=False)
    texts = {"title": html.escape(scene.title), "about": html.escape(scene.about)}
    parts = {"policy": policy, "style": style, "data": data.translate(_ESCAPES), "script": script}
    return Template(page).substitute(texts | parts)


def _digest(content: str) -> str:
    digest = hashlib.sha256(content.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def script_data(scene: Scene) -> dict[str, Any]:
    """Return the script's data: numbers, and lists of distinct texts that they index."""
    kind_ids = list(dict.fromkeys((row.plugin, row.kind) for row in scene.rows))
    states = list(dict.fromkeys(row.state for row in scene.rows))
    number_of = {kind_id: number for number, kind_id in enumerate(kind_ids)}
    state_of = {state: number for number, state in enumerate(states)}
    colours = scene.colours()
    return {
        "size": scene.size,
        "x": [round(x * _WIDE) for x, _ in scene.places],
        "y": [round(y * _WIDE) for _, y in scene.places],
        "name": [row.name for row in scene.rows],
        "text": [row.text for row in scene.rows],
        "kind": [number_of[row.plugin, row.kind] for row in scene.rows],
        "state": [state_of[row.state] for row in scene.rows],
        "kinds": ["/".join(kind_id) for kind_id in kind_ids],
        "colours": [colours[plugin] for plugin, _ in kind_ids],
        "states": states,
        "marks": scene.marks,
        "legend": scene.legend(),
        "labels": [
            (round(each.x * _WIDE), round(each.y * _WIDE), each.lines, each.size)
            for each in scene.labels()
        ],
    }
