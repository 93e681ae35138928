"""Contents of a picture: objects, colours and marks, labels, a legend; pure."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Colours that people distinguish, colour-blind or not, on a light and on a dark background, based
# on Paul Tol's scheme "bright" (https://sronpersonalpages.nl/~pault/). The last is for all other
# plugins.
LIGHT: Final = ("#366bab", "#c15048", "#2b520d", "#c08700", "#019bd7", "#9b2b6d", "#919191")
DARK: Final = ("#9e8afa", "#f88597", "#2a951f", "#e3cd4d", "#6ed3ff", "#c2419e", "#f9f9f9")
OTHERS: Final = len(LIGHT) - 1
DRIFTED: Final = "drifted"
CHANGED: Final = "changed"
# Radius of a topic's densest place, as a share of the width.
_NEAR: Final = 0.05
# A label needs at least this many objects, and this share of the topic, in one place.
_LEAST: Final = 3
_LEAST_SHARE: Final = 0.4
# Length from which a name is put into two lines, and by how much the first may be longer.
_LONG: Final = 16
_MUCH_LONGER: Final = 12


class Row(NamedTuple):
    """An object of the file; `state` may be empty."""

    plugin: str
    kind: str
    name: str
    text: str
    state: str


class Table(NamedTuple):
    """Objects of a file, number of all matches, and number of those that wait for vectors.

    `vectors` has a row for each object. `renamed` maps paths of declared objects to the paths under
    which they are observed.
    """

    rows: list[Row]
    vectors: "NDArray[np.float32]"
    total: int
    waiting: int
    renamed: dict[str, str]

    @property
    def why_empty(self) -> str:
        """The reason why there is nothing to draw, for a table without rows."""
        why = f"{self.waiting} wait for their vectors" if self.waiting else "none matches"
        return f"there are no objects to draw: {why}"


class Mark(NamedTuple):
    """Reason for another shape of a point: DRIFTED or CHANGED, and details."""

    what: str
    why: str = ""


class Label(NamedTuple):
    """Name of a topic, the middle of its objects' upper edge, and its number of objects."""

    x: float
    y: float
    text: str
    size: int

    @property
    def lines(self) -> list[str]:
        """The name in lines: a long name of several words in two."""
        *first, last = self.text.split(", ")
        if not first or len(self.text) < _LONG:
            return [self.text]
        if len(first) > 1 and len(first[0]) + len(first[1]) > len(last) + _MUCH_LONGER:
            first, last = first[:1], ", ".join([*first[1:], last])
        return [", ".join(first) + ",", last]


class Topic(NamedTuple):
    """A name, the number of its objects, and the rows of typical ones."""

    name: str
    size: int
    rows: Sequence[int]


class Sign(NamedTuple):
    """A line of the legend: a colour by its index, or a mark."""

    text: str
    many: int
    key: int | str


@dataclass(frozen=True, slots=True)
class Scene:
    """All of a picture; `places` are (x, y) from 0 to 1, and `marks` are by row."""

    title: str
    about: str
    rows: Sequence[Row]
    places: Sequence[tuple[float, float]]
    marks: Mapping[int, Mark]
    topics: Sequence[Topic]

    @property
    def size(self) -> tuple[float, float]:
        """Width and height of the area that has points."""
        return max(x for x, _ in self.places), max(y for _, y in self.places)

    def colours(self) -> dict[str, int]:
        """Assign a colour index to each plugin; those with fewest objects share the last."""
        ranked = Counter(row.plugin for row in self.rows).most_common()
        last = len(LIGHT) if len(ranked) == len(LIGHT) else OTHERS
        return {name: n if n < last else OTHERS for n, (name, _) in enumerate(ranked)}

    def legend(self) -> list[Sign]:
        """Return the meaning of colours and marks, and their numbers of points."""
        names: dict[int, list[str]] = {}
        for plugin, colour in self.colours().items():
            names.setdefault(colour, []).append(plugin)
        counts = Counter(map(self.colours().__getitem__, (row.plugin for row in self.rows)))
        signs = [
            Sign(of[0] if len(of) == 1 else f"{len(of)} others", counts[colour], colour)
            for colour, of in names.items()
        ]
        marked = Counter(mark.what for mark in self.marks.values())
        return signs + [
            Sign(what, marked[what], what) for what in (DRIFTED, CHANGED) if marked[what]
        ]

    def labels(self) -> list[Label]:
        """Place each topic's name where most of its typical objects are, the largest first."""
        found = []
        for topic in sorted(self.topics, key=lambda each: -each.size):
            crowd = _densest([self.places[row] for row in topic.rows])
            if len(crowd) >= max(_LEAST, _LEAST_SHARE * len(topic.rows)):
                x = sum(x for x, _ in crowd) / len(crowd)
                found.append(Label(x, min(y for _, y in crowd), topic.name, topic.size))
        return found


def read_table(file: BinaryIO) -> Table:
    """Read a file of State1.Vectors."""
    # imported late, because numpy is slow to import
    from safetensors.numpy import load

    # only the daemon's user may open the file again, as `safe_open` would
    file.seek(0)
    content = file.read()
    tensors = load(content)
    header_end = 8 + int.from_bytes(content[:8], "little")
    about = json.loads(content[8:header_end])["__metadata__"]
    vectors = tensors["vectors"].astype("float32")
    lines = tensors["objects"].tobytes().splitlines()
    rows = [Row(*json.loads(line)) for line in lines]
    renamed = json.loads(about.get("renamed", "{}"))
    return Table(rows, vectors, int(about["total"]), int(about["waiting"]), renamed)


def _densest(places: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the largest group of positions within a radius of one of them."""
    groups = (
        [p for p in places if (p[0] - x) ** 2 + (p[1] - y) ** 2 < _NEAR**2] for x, y in places
    )
    return max(groups, key=len, default=[])
