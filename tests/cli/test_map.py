"""The map: vectors of many objects in a file, places for them, and pages that no name can break."""

import asyncio
import base64
import hashlib
import json
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from harness.commands import as_json, fails, ok
from harness.running import Running, ask, run_program
from safetensors.numpy import load

from opdbus.bus import paths
from opdbus.client import Client
from opdbus.errors import InvalidArgs
from opdbus.picture import host_scene, page, svg
from opdbus.picture.host_scene import MapData
from opdbus.picture.layout import place
from opdbus.picture.scene import CHANGED, DARK, DRIFTED, LIGHT, Label, Mark, Row, Scene, Topic

# What the SVG draws, from below.
_LAYERS = ('<circle class="c', 'class="c. changed', 'class="label"', 'class="c. drifted')
# What a host may call things, to get out of where a page has them.
HOSTILE = (
    "</script><script>alert(1)</script>",
    "</title></style><img src=x onerror=alert(1)>",
    '" onload="alert(1)" x="',
    "]]><script xmlns='http://www.w3.org/1999/xhtml'>alert(1)</script>",
    "$script ${data} $policy {0} %s",
    "<!-- --><svg/onload=alert(1)>&amp;&#60;script&#62;",
    "line\u2028break\u2029 \x00\x1b[31m \ud800 \uffff \u202eevil",
    "javascript:alert(1)",
)
DEMO, ONLY = {"plugin": "demo"}, ("--plugin", "demo")
THINGS = [(name, text) for name in ("mail", "disk") for text in ("server", "backup", "network")]


@pytest.fixture(scope="module")
def daemon(shared_daemons: Callable[..., Running]) -> Iterator[Running]:
    """Run a daemon with some published objects."""
    objects = [
        ("demo", "unit" if n % 2 else "disk", f"{name}-{text}", {"description": f"{name} {text}"})
        for n, (name, text) in enumerate(THINGS)
    ]
    objects.append(("demo", "unit", HOSTILE[0], {"description": HOSTILE[1], "state": "failed"}))

    async def publish() -> None:
        async with Client(running.bus) as client:
            await client.publish("test", objects)

    with shared_daemons() as running:
        ask(running, lambda caller: caller.ready("ready", "degraded"))
        asyncio.run(publish())
        ask(running, lambda caller: caller.vectorized())
        yield running


def vectors(daemon: Running, wanted: dict[str, Any]) -> tuple[Any, list[list[str]]]:
    """Ask for vectors, and give them as any program reads them, with what the rows are."""

    async def work() -> bytes:
        async with Client(daemon.bus) as client:
            with await client.vectors(wanted) as file:
                return file.read()

    found = load(asyncio.run(work()))
    return found["vectors"], [json.loads(line) for line in found["objects"].tobytes().splitlines()]


def test_vectors_of_all_objects_come_in_one_file(daemon: Running) -> None:
    """The file has the row that Vector gives of each object, and what the object is."""

    async def fourth() -> Any:
        async with Client(daemon.bus) as client:
            total, rows = await client.page(DEMO, 0, 100)
            assert total == len(rows) == len(objects)
            assert [row[1:] for row in rows] == [each[:3] for each in objects]
            *_, data = await client._state.ask("Vector", "oa{sv}", rows[3][0], {})
            return np.frombuffer(bytes(data), "<f4")

    found, objects = vectors(daemon, DEMO)
    assert np.array_equal(found[3], asyncio.run(fourth()))
    told = {row[2]: row[3:] for row in objects}
    assert told["mail-server"] == ["demo disk mail-server: mail server", ""]
    assert told[HOSTILE[0]][1] == "failed"


def test_vectors_are_filtered_sampled_and_shortened(daemon: Running) -> None:
    """A filter, an even sample, a page, a type and fewer dimensions do as in other methods."""
    units, objects = vectors(daemon, {**DEMO, "kind": "unit", "where": "description~mail"})
    assert [row[2] for row in objects] == ["mail-backup"]
    every, objects = vectors(daemon, {**DEMO, "sample": 3, "dtype": "float16", "dimensions": 8})
    assert (every.shape, every.dtype, len(objects)) == ((3, 8), np.float16, 3)
    listed = [row[2] for row in vectors(daemon, DEMO)[1]]
    assert [row[2] for row in objects] == [listed[n * 7 // 3] for n in range(3)]
    bits, objects = vectors(daemon, {**DEMO, "offset": 2, "limit": 2, "dtype": "ubinary"})
    assert (len(bits), bits.dtype, [row[2] for row in objects]) == (2, np.uint8, listed[2:4])
    assert len(units) == 1
    assert len(vectors(daemon, {"name": "nothing"})[0]) == 0
    for wanted, words in (
        ({"limit": 0}, "limit must be from 1"),
        ({"dtype": "float8"}, "dtype must be one of"),
        ({"plugin": "demos"}, "there is no plugin"),
        ({"step": 2}, "no option 'step'"),
    ):
        with pytest.raises(InvalidArgs, match=words):
            vectors(daemon, wanted)


def test_places_keep_neighbours() -> None:
    """Vectors that are alike lie together, others apart; the same vectors make the same map."""
    random = np.random.default_rng(7)
    middles = random.normal(size=(4, 32))
    groups = np.repeat(np.arange(4), 30)
    many = (middles[groups] + random.normal(scale=0.2, size=(120, 32))).astype(np.float32)
    places = place(many)
    assert np.array_equal(places, place(many))
    assert (places.min(), places.max()) == (0, 1)
    far = ((places[:, None] - places) ** 2).sum(axis=2)
    assert (groups[far.argsort(axis=1)[:, 1:11]] == groups[:, None]).mean() > 0.95


@pytest.mark.parametrize("count", [1, 2, 3, 12, 40])
def test_few_and_equal_vectors_have_places(count: int) -> None:
    """There is a place for one vector, for two, and for many that are equal."""
    different = np.eye(count, 48, dtype=np.float32)
    for some in (different, np.ones((count, 5), np.float32), np.zeros((count, 3), np.float32)):
        places = place(some)
        assert places.shape == (count, 2)
        assert ((places >= 0) & (places <= 1)).all()


def hostile() -> Scene:
    """Give a scene in which every text is hostile."""
    rows = [Row(*(HOSTILE[(n + part) % len(HOSTILE)] for part in range(5))) for n in range(20)]
    return Scene(
        title=HOSTILE[1],
        about=HOSTILE[0],
        rows=rows,
        places=[(n / 20, (n * 7 % 20) / 20) for n in range(20)],
        marks={2: Mark(DRIFTED, HOSTILE[5]), 3: Mark(CHANGED, HOSTILE[0])},
        topics=[Topic(text, 9, range(n, n + 3)) for n, text in enumerate(HOSTILE)],
    )


class Read(HTMLParser):
    """Collects the elements of a page as a browser's parser sees them, and their texts."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._is_open = False
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect an element, and begin its text."""
        self.elements.append((tag, dict(attrs)))
        self.texts.append("")
        self._is_open = True

    def handle_endtag(self, tag: str) -> None:  # noqa: ARG002 -- the parser's signature
        """End the text of the last element."""
        self._is_open = False

    def handle_data(self, data: str) -> None:
        """Add to the text of the last element."""
        if self._is_open:
            self.texts[-1] += data

    def text(self, tag: str, number: int = 0) -> str:
        """Give the text of an element of a name."""
        found = [n for n, (name, _) in enumerate(self.elements) if name == tag]
        return self.texts[found[number]]


def digest(content: str) -> str:
    """Give what a policy calls a script or a style by."""
    return base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()


def test_no_name_breaks_out_of_the_page() -> None:
    """Whatever things are called, a page has the same elements, and the script sees the names."""
    scene = hostile()
    read = Read(page.draw(scene).encode(errors="replace").decode())
    plain = Read(page.draw(Scene("a", "b", [Row(*"abcde")], [(0, 0)], {}, [])))
    assert read.elements == plain.elements
    assert (read.text("title"), read.text("h1")) == (HOSTILE[1], HOSTILE[1])
    data = json.loads(read.text("script", 0))
    known = [row.name.encode(errors="replace").decode() for row in scene.rows]
    assert data["name"] == known
    assert data["marks"]["2"] == [DRIFTED, HOSTILE[5]]


def test_the_page_runs_its_own_script_and_loads_nothing() -> None:
    """The policy names the one script and the one style by their digests, and forbids the rest."""
    read = Read(page.draw(hostile()))
    policies = [each["content"] for _, each in read.elements if "http-equiv" in each]
    own = f"script-src 'sha256-{digest(read.text('script', 1))}';"
    own += f" style-src 'sha256-{digest(read.text('style'))}'"
    assert policies == [f"default-src 'none'; base-uri 'none'; form-action 'none'; {own}"]
    loading = {"src", "href", "style", "action", "srcset", "xlink:href"}
    assert not loading & {name for _, each in read.elements for name in each}
    assert not re.search(
        r"url\(|@import|fetch\(|innerHTML|eval\(", read.text("style") + read.text("script", 1)
    )


def test_no_name_breaks_out_of_the_picture() -> None:
    """The SVG is XML of shapes and texts alone, in which names are texts."""
    tree = ET.fromstring(svg.draw(hostile()))  # noqa: S314 -- our own
    names = {each.tag.removeprefix("{http://www.w3.org/2000/svg}") for each in tree.iter()}
    assert names == set("svg title desc style rect text g circle polygon".split())
    attributes = {name for each in tree.iter() for name in each.attrib}
    assert attributes == set(
        "viewBox role class width height x y font-size font-weight transform cx cy r points".split()
    )
    titles = [each.text or "" for each in tree.iter() if each.tag.endswith("title")]
    assert any(HOSTILE[0] in title for title in titles)


def test_nothing_lies_on_what_drifted() -> None:
    """The SVG draws what changed above all others, then the names, and then what drifted."""
    rows, places = [Row(*"abcde")] * 6, [(n / 500, 0.5) for n in range(6)]
    marks = {0: Mark(DRIFTED), 2: Mark(CHANGED)}
    scene = Scene("a", "b", rows, places, marks, [Topic("name", 6, range(6))])
    drawn = svg.draw(scene).partition("<g ")[2].partition("</g>")[0]
    found = [[match.start() for match in re.finditer(what, drawn)] for what in _LAYERS]
    assert [max(lower) < min(upper) for lower, upper in pairwise(found)] == [True] * 3


def test_marks_say_what_changed_and_what_drifted() -> None:
    """A mark has the words of `changes` and of `drift`, which counts more."""
    name = {"plugin": "users", "kind": "group", "cause": "", "what": "changed"}
    drift = [paths.of("users", "group", "a"), "drift", "error", 0, 0.0]
    changes = [{**name, "name": each, "fields": [("gid", "1", "2")]} for each in "ab"]
    known = MapData(BytesIO(), [[*drift, [("gid", "1", "2", "error")]]], changes, 0, [])
    assert host_scene._find_marks(
        known, {("users", "group", "a"): 0, ("users", "group", "b"): 1}
    ) == {
        0: Mark(DRIFTED, "error, group a: gid declared 1, observed 2"),
        1: Mark(CHANGED, "group b changed: gid 1 -> 2"),
    }


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("user groups", ["user groups"]),
        ("name, resolver", ["name, resolver"]),
        ("libpam, modules, authentication", ["libpam, modules,", "authentication"]),
        ("postgresql, replication, sql", ["postgresql,", "replication, sql"]),
    ],
)
def test_long_names_have_two_lines(name: str, lines: list[str]) -> None:
    """A name of several words is put into two lines, of about the same length."""
    assert Label(0, 0, name, 3).lines == lines


def seen(colour: str, kind: str) -> Any:
    """Give a colour as people see it who lack one kind of cones; "" for all others.

    The matrices, for linear RGB: Machado, Oliveira, Fernandes 2009, severity 1.
    """
    lacking = {
        "": np.eye(3),
        "protan": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
        "deutan": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
        "tritan": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
    }
    rgb = np.array([int(colour[n : n + 2], 16) for n in (1, 3, 5)]) / 255
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    r, g, b = np.clip(np.array(lacking[kind]) @ linear, 0, 1)
    # OKLab: https://bottosson.github.io/posts/oklab/
    lms = np.cbrt([
        0.4122 * r + 0.5363 * g + 0.0514 * b,
        0.2119 * r + 0.6807 * g + 0.1074 * b,
        0.0883 * r + 0.2817 * g + 0.6300 * b,
    ])  # fmt: skip
    return np.array([[0.21, 0.794, -0.004], [1.978, -2.429, 0.451], [0.026, 0.783, -0.809]]) @ lms


@pytest.mark.parametrize("kind", ["", "protan", "deutan", "tritan"])
@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_colours_are_told_apart(colours: tuple[str, ...], kind: str) -> None:
    """Any two colours differ by four times what is just seen, also for the colour-blind."""
    labs = [seen(colour, kind) for colour in colours]
    pairs = [(n, m) for n in range(len(labs)) for m in range(n)]
    near = min(pairs, key=lambda pair: float(np.linalg.norm(labs[pair[0]] - labs[pair[1]])))
    assert np.linalg.norm(labs[near[0]] - labs[near[1]]) > 0.08, near


def test_map_of_a_daemon(daemon: Running, tmp_path: Path) -> None:
    """The command writes a page that only its user may read, and a picture."""
    target = tmp_path / "host.html"
    assert (
        as_json(daemon, "map", "-o", str(target), "--plugin", "demo")["objects"] == len(THINGS) + 1
    )
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    data = json.loads(Read(target.read_text()).text("script"))
    assert HOSTILE[0] in data["name"]
    assert [name for name, _, _ in data["legend"]] == ["demo", "changed"]
    picture = tmp_path / "host.svg"
    said = ok(daemon, "map", "-o", str(picture), *ONLY, "--kind", "unit")
    assert said.startswith(f"{picture}: 4 objects, ")
    assert said.endswith(f"; {picture.stat().st_size / 1024:.0f} KiB\n")
    assert ET.fromstring(picture.read_text()).get("viewBox")  # noqa: S314 -- our own


def test_a_map_has_a_usual_place(
    daemon: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a file, the map is one in the current folder, which is replaced only if told so."""
    monkeypatch.chdir(tmp_path)
    assert ok(daemon, "map", *ONLY).startswith("op-dbus-map.html: ")
    said = fails(daemon, 2, "map", *ONLY)
    assert "op-dbus-map.html is there already: `-o op-dbus-map.html` replaces it" in said


def test_map_says_what_is_wrong(daemon: Running, tmp_path: Path) -> None:
    """A file of another kind, one that cannot be written, and nothing to draw are refused."""
    target = str(tmp_path / "host.html")
    assert "neither FILE.html nor FILE.svg" in fails(daemon, 2, "map", "-o", "host.png")
    assert "cannot write" in fails(daemon, 2, "map", "-o", str(tmp_path / "no" / "host.html"))
    assert "none matches" in fails(
        daemon, 2, "map", "-o", target, "--plugin", "demo", "--where", "state=absent"
    )
    assert "from 1 to 50000" in fails(daemon, 2, "map", "-o", target, "-n", "0")


@pytest.mark.skipif(not shutil.which("chromium"), reason="there is no chromium: apt install it")
def test_a_browser_shows_the_page(tmp_path: Path) -> None:
    """In a browser the script runs under its policy: names are texts of the table."""
    target = tmp_path / "hostile.html"
    target.write_bytes(page.draw(hostile()).encode(errors="replace"))
    flags = ("--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/own")
    done = run_program(
        ["chromium", *flags, "--dump-dom", "--virtual-time-budget=2000", f"file://{target}"],
        check=True,
    )
    read = Read(done.stdout)
    assert read.text("output") == "20 objects"
    assert len([tag for tag, _ in read.elements if tag == "tr"]) == 21
    signs = [each["class"] for _, each in read.elements if "sign " in (each.get("class") or "")]
    # of the table, which begins with them
    assert [sign.split()[-1] for sign in signs if sign.startswith("sign c")][-20:-18] == [
        DRIFTED,
        CHANGED,
    ]
    assert [tag for tag, _ in read.elements if tag in {"script", "img", "svg"}] == ["script"] * 2
