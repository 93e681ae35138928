"""The screens of `op-dbus top`, from what is known and what is looked at; no terminal."""

import asyncio
import re
from dataclasses import replace
from itertools import product
from typing import Any, cast

import pytest
from test_status import VALUES

from opdbus.cli.top import screen
from opdbus.cli.top.feed import Changes, Facts, Feed, Rate
from opdbus.cli.top.terminal import KeyDecoder, Line, line_width, plain_text
from opdbus.cli.top.view import Page, Search, Show, View, press
from opdbus.client import Client

NOW = 1_700_000_000.0
EVIL = "\u65e5\u672c\x1b[2J\u202e e\u0301 \U0001f469\u200d\U0001f469 " + "\u540d" * 40


def change(seq: int, name: str, cause: str) -> dict[str, Any]:
    """Make a change of a unit, a second after the one before."""
    path = f"/org/opdbus/state/systemd/unit/u{seq}"
    fields = [["active_state", '"active"', '"failed"'], ["result", '"success"', '"exit-code"']]
    sort = {"plugin": "systemd", "kind": "unit", "name": name, "what": "changed", "source": "live"}
    at = int((NOW + seq - 100) * 1e6)
    return {
        **sort,
        "seq": seq,
        "at": at,
        "boot": "b",
        "object": path,
        "cause": cause,
        "folded": 0,
        "fields": fields,
    }


def drifted(name: str) -> list[Any]:
    """Make a row of what is other than declared."""
    path = f"/org/opdbus/state/systemd/unit/{name}"
    return [path, "drift", "error", 0, 0.1, [["active_state", '"active"', '"failed"', "error"]]]


SERVES = {
    "State": "ready",
    "Level": "medium",
    "Provider": "cpu:onnxruntime",
    "Precision": "fp32",
    "Device": "AMD EPYC",
    "Proof": {
        "nodes": {"CPUExecutionProvider": 73},
        "precision": "fp32",
        "max_deviation": 3.1e-07,
        "tolerance": 1e-05,
        "checked_at": NOW - 200,
    },
    "Fallbacks": [],
    "QueueDepth": 12,
    "Latency": 0.0031,
    "Memory": 300 << 20,
}
CHANGES = [change(1, "nginx.service", "exit:status 1"), change(2, EVIL, "job:4711 restart")]
KNOWN = Facts("web1", VALUES | SERVES, NOW, Changes(CHANGES), drifts=[drifted("nginx")], rate=431.4)
HITS = [
    ["/org/opdbus/state/a/b/c", 0.9, {"plugin": "a", "kind": "b", "name": EVIL, "snippet": "x"}]
]
VIEWS = [
    View(),
    View(at=1),
    *(View(page) for page in (Page.CHANGES, Page.DRIFT, Page.OBSERVERS, Page.HELP)),
    View(Page.SEARCH, query=EVIL, hits=HITS * 40, at=30),
    View(Page.GROUP, rows=CHANGES),
    View(Page.OBJECT, path="/org/opdbus/state/a/b/c", said={"Name": EVIL, "Text": "x\n" * 60}),
    View(Page.OBJECT, path="/org/opdbus/state/a/b/c", note=EVIL),
]


def texts(facts: Facts, view: View, columns: int = 80, rows: int = 24) -> list[str]:
    """Give the lines of a screen as they are read."""
    return [plain_text(line) for line in screen.draw_screen(facts, view, columns, rows, NOW)]


def test_the_first_page_says_what_matters() -> None:
    """Each line says one thing: what serves, its proof, its work, what changed and drifted."""
    clock, first, second = (screen.format_clock(at, NOW) for at in (NOW, NOW - 99, NOW - 98))
    cut = "\u65e5\u672c\\x1b[2J\\u202e e\u0301 \U0001f469\\u200d\U0001f469 "
    cut += "\u540d" * 6 + "\u2026" + "\u540d" * 6
    assert texts(KNOWN, View()) == [
        f"op-dbus on web1  ready{clock:>58}",
        "serves    medium on cpu:onnxruntime in fp32: AMD EPYC",
        "proven    3 min ago: 73 nodes on CPU, vectors off by 3e-07 (limit 1e-05)",
        "work      12 texts wait, 431 a second, 3.1 ms to a vector, 300 MiB of memory",
        "objects   1,322 so far, all with vectors",
        "observers 2 up: systemd 642, packages 577",
        "! failed  users: reading took more than 10 s",
        "starting  network",
        "absent    login1, units: org.freedesktop.login1 is not on the system bus",
        "",
        f"changes   the newest first{'c: all':>54}",
        f"> {second} {cut} failed: act\u2026",
        f"  {first} nginx.service failed: active -> failed (exit-code) (its own process \u2026",
        "",
        f"drift     2 other than declared, the worst first{'d: all':>32}",
        "  error    nginx: declared active, observed failed",
        *[""] * 7,
        "q quit  ? help  / search  Enter open  c changes  d drift  o observers",
    ]


def test_a_small_screen_keeps_what_changed() -> None:
    """On 10 lines of 40 columns there are changes, what failed, and whole names of keys."""
    shown = texts(KNOWN, View(), 40, 10)
    labels = ["op-dbus", "serves", "observers", "!", "starting", "changes", ">"]
    assert [text.split()[0] for text in shown][:-3] == labels
    assert shown[-2].startswith("drift     2 other than declared")
    assert shown[-1] == "q quit  ? help  / search  Enter open"
    well = replace(KNOWN, values=KNOWN.values | {"Observers": [["systemd", "up", 642, ""]]})
    assert sum(text[:1] in {">", " "} for text in texts(well, View(), 40, 10)) == 3


def test_the_page_of_drift_says_that_nothing_is_declared() -> None:
    """Where nothing is declared, that is said, not that nothing is other than it."""
    for sources, said in (([["file", 3]], "other than declared"), ([], "declared")):
        values = KNOWN.values | {"Sources": sources, "Drifted": 0, "DriftAwaits": []}
        calm = replace(KNOWN, values=values, drifts=[])
        assert texts(calm, View(Page.DRIFT))[2].strip() == f"nothing is {said}"


@pytest.mark.parametrize("facts", [KNOWN, Facts(), replace(KNOWN, trouble=EVIL)])
@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.page)
def test_every_page_fits_every_size(facts: Facts, view: View) -> None:
    """No page has a line too many or too wide, nor what commands a terminal."""
    for columns, rows in product((1, 2, 20, 60, 80, 300), (1, 2, 5, 15, 24, 60)):
        lines = screen.draw_screen(facts, view, columns, rows, NOW)
        assert len(lines) == rows
        assert max(map(line_width, lines)) <= columns, (columns, rows)
        assert not re.search(r"[\x00-\x1f\x7f-\x9f\u200d\u202e]", "".join(map(plain_text, lines)))


def test_what_is_wrong_comes_with_how_old_the_rest_is() -> None:
    """While nothing new is known, that is said, and no state is."""
    old = replace(KNOWN, at=NOW - 130)
    assert texts(old, View())[1] == "! op-dbus does not answer; what is shown is from 2 min ago"
    waits = texts(replace(old, trouble="waiting for op-dbus ..."), View())
    assert waits[1] == "! waiting for op-dbus ...; what is shown is from 2 min ago"
    assert "ready" not in waits[0]
    refused = texts(Facts("web1", trouble="not shown: you may not read here"), View())
    assert refused[1:-1] == ["! not shown: you may not read here", *[""] * 21]
    assert texts(Facts(), View())[1] == "reading ..."


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"Level": "none"}, "serves    words only: OP_DBUS_VECTOR_LEVEL is none"),
        (
            {"Provider": "", "State": "loading"},
            "serves    medium is loading: searches go by words and static vectors",
        ),
        ({"Proof": {}, "QueueDepth": 0}, "work      idle, 431 a second, 3.1 ms to a"),
        (
            {"Pending": 862, "Vectorized": 460},
            "objects   1,322 so far, 862 of which wait for their vectors, about 2 s",
        ),
        ({"Fallbacks": [["cuda", "no driver"]]}, "! fault   cuda: no driver"),
        ({"LastError": "it is full"}, "! fault   it is full"),
        ({"DriftAwaits": ["users"]}, "drift     not all is known yet: waiting for users"),
        ({"Observers": []}, "observers none: OP_DBUS_OBSERVE is none"),
    ],
)
def test_states_are_told_in_words(values: dict[str, Any], line: str) -> None:
    """A level that loads, a fault, and what is not known yet are told in words, not by colours."""
    shown = texts(replace(KNOWN, values=KNOWN.values | values), View())
    assert [text for text in shown if text.startswith(line)], shown


def pressed(view: View, *keys: str, facts: Facts = KNOWN) -> tuple[View | None, Any]:
    """Press keys on a screen of 80 by 24, and give the last view and wish."""
    wish = None
    for key in keys:
        assert view
        entries = screen.entries(facts, view, 80, 24, NOW)
        found, wish = press(view, key, entries, 21)
        if found is None:
            return None, wish
        view = found
    return view, wish


def test_arrows_choose_and_enter_opens() -> None:
    """Enter opens the object of the line that is chosen, and Escape goes back to that line."""
    view, wish = pressed(View(), "down", "down", "down", "enter")
    assert wish == Show("/org/opdbus/state/systemd/unit/nginx")
    assert view
    assert (view.page, view.note) == (Page.OBJECT, "reading ...")
    back, _ = pressed(view, "escape")
    assert back
    assert texts(KNOWN, back)[15].startswith("> error")
    assert pressed(View(), "enter")[1] == Show("/org/opdbus/state/systemd/unit/u2")


def test_what_is_chosen_stays_chosen_when_lines_move() -> None:
    """A change that comes in above does not put another one under the cursor."""
    view, _ = pressed(View(), "down")
    assert view
    more = replace(KNOWN, changes=Changes([*CHANGES, change(3, "cron.service", "boot")]))
    chosen = [text for text in texts(more, view) if text.startswith(">")]
    assert "nginx.service failed" in chosen[0]


def test_a_line_of_many_changes_opens_them_all() -> None:
    """Enter on a line that counts changes lists each of them."""
    many = [change(n, f"u{n}.service", "job:1 restart") for n in range(9)]
    facts = replace(KNOWN, changes=Changes(many))
    view, wish = pressed(View(), "enter", facts=facts)
    assert view
    assert (wish, view.page) == (None, Page.GROUP)
    assert len(screen.entries(facts, view, 80, 24, NOW)) == 9
    assert pressed(view, "down", "enter", facts=facts)[1] == Show(many[7]["object"])


def test_letters_are_the_question_on_the_page_of_searches() -> None:
    """What is typed is asked at once; q ends the program on other pages only."""
    view, wish = pressed(View(), "/", "q", "d", "?", "backspace")
    assert view
    assert (view.page, view.query, wish) == (Page.SEARCH, "qd", Search("qd"))
    assert pressed(view, "clear")[1] == Search("")
    back, _ = pressed(view, "escape", "c", "o", "d", "escape")
    assert back == View()
    assert pressed(View(), "q") == (None, None)
    assert pressed(View(), "escape")[0] == View()


def test_a_long_list_is_turned_by_pages() -> None:
    """The line that is chosen is on the screen, wherever it is in the list."""
    view = View(Page.SEARCH, query="x", hits=[[f"/{n}", 1, HITS[0][2]] for n in range(50)])
    for keys, place in ((("down",) * 21, 1), (("end",), 8), (("page up",), 8), (("home",), 1)):
        found, _ = pressed(view, *keys)
        assert found
        view = found
        rows = [at for at, text in enumerate(texts(KNOWN, view)) if text.startswith(">")]
        assert rows == [place + 1], keys


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        ([b"\x1b[A\x1bOB"], ["up", "down"]),
        ([b"\x1b", b"[5~"], ["page up"]),
        ([b"\x1b[1;5A", b"\x1b[200~"], ["up"]),
        ([b"\xe6", b"\x97\xa5q"], ["\u65e5", "q"]),
        ([b"\r\x7f\x15\x0c\x00\x07"], ["enter", "backspace", "clear", "redraw"]),
        ([b"\x1b\x1b"], ["escape", "escape"]),
        ([b"\xff\xfea"], ["a"]),
    ],
)
def test_keys_are_read_as_terminals_send_them(data: list[bytes], keys: list[str]) -> None:
    """Sequences that come in parts are one key, and those of no key are nothing."""
    reader = KeyDecoder()
    found = [key for part in data for key in reader.read(part)]
    assert found + reader.give_up() == keys
    assert not reader.is_waiting


def test_a_rate_is_of_the_last_seconds() -> None:
    """Texts a second are of the last ten seconds, and begin anew with another model."""
    rate = Rate()
    assert rate.count(0, 0) is None
    assert [rate.count(at, 100 * at) for at in range(1, 12)][-1] == 100
    assert [rate.count(at, 1100) for at in range(12, 23)][-1] == 0
    assert rate.count(23, 5) is None
    assert rate.count(25, 15) == 5


class Rows:
    """What a client gives of a history, and of which parts of it was asked for."""

    def __init__(self, count: int) -> None:
        self.rows = [change(n, f"u{n}.service", "job:1 restart") for n in range(1, count + 1)]
        self.asked: list[dict[str, int]] = []

    async def status(self) -> dict[str, Any]:
        """Give the same always."""
        return VALUES | SERVES | {"Texts": 0}

    async def drift(self, _wanted: object, _most: int) -> list[Any]:
        """Give nothing."""
        return []

    async def failed_units(self, _most: int) -> tuple[int, list[str]]:
        """Give one that failed."""
        return 1, ["nginx.service"]

    async def changes(self, wanted: dict[str, int], limit: int) -> list[Any]:
        """Give the newest rows that are meant."""
        self.asked.append(wanted)
        after, below = wanted.get("after", 0), wanted.get("below", 1 << 30)
        return [row for row in reversed(self.rows) if after < row["seq"] < below][:limit]

    def add(self, *names: str, **more: Any) -> None:
        """Have more happen."""
        first = len(self.rows) + 1
        self.rows += [change(n, name, "boot") | more for n, name in enumerate(names, first)]


def test_a_second_reads_no_more_rows_than_it_needs() -> None:
    """New rows are read after those that are known, older ones while there are few lines."""
    client, feed = Rows(300), Feed("", "web1")

    def read(*heard: str) -> list[int]:
        asyncio.run(feed.read(cast("Client", client), frozenset(heard)))
        return [row["seq"] for row in feed.facts.changes.rows]

    assert read("Recorded", "NameOwnerChanged") == [*range(101, 301)]
    assert feed.facts.failed == (1, ["nginx.service"])
    assert read() == [*range(1, 301)]
    assert not feed.facts.changes.is_cut
    assert read() == [*range(1, 301)]
    client.add("cron.service")
    assert read("Recorded") == [*range(1, 302)]
    assert client.asked == [{"after": 0}, {"below": 101}, {"after": 300}]
    client.add(*(f"n{n}" for n in range(80)))
    assert read("Recorded") == [*range(332, 382)], "some between these and the others are not known"
    assert feed.facts.changes.is_cut
    client.add("history", what="forgot")
    client.asked.clear()
    assert read("Recorded") == [*range(183, 383)]
    assert client.asked == [{"after": 381}, {"after": 0}]


def test_failed_units_are_on_the_first_page() -> None:
    """Name the failed units above the changes, and nothing where none has failed."""
    failed = replace(KNOWN, failed=(4, ["nginx.service", "b.timer", "c.service", "d.service"]))
    texts = [plain_text(line) for line in screen.draw_once(failed, 80, 24, NOW)]
    (line,) = [text for text in texts if "! failed" in text and "unit" in text]
    assert "4 units: nginx.service, b.timer, c.service and 1 more" in line
    texts = [plain_text(line) for line in screen.draw_once(KNOWN, 80, 24, NOW)]
    assert not [text for text in texts if "! failed" in text and "unit" in text]


def test_one_screen_for_a_pipe_has_neither_cursor_nor_keys() -> None:
    """What `--once` prints ends with the last line that says something."""
    lines: list[Line] = screen.draw_once(KNOWN, 80, 24, NOW)
    assert plain_text(lines[-1]) == "  error    nginx: declared active, observed failed"
    assert not any(plain_text(line).startswith(">") for line in lines)
