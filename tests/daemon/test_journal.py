"""Entries as the journal gets them, and a journal that is away."""

import io
import logging
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import structlog
from conftest import ROOT
from harness.journald import Journald, decode
from harness.running import PATIENCE_SECONDS
from hypothesis import given
from hypothesis import strategies as st

from opdbus import config, log
from opdbus.platform import journal
from opdbus.platform.journal import MESSAGE_IDS, Journal, encode

CATALOG = ROOT / "systemd" / "op-dbus.catalog"


@pytest.fixture
def journald(tmp_path: Path) -> Iterator[Journald]:
    """Read what is sent to a socket."""
    with closing(Journald(tmp_path / "journal")) as found:
        yield found


@pytest.fixture
def lines(journald: Journald) -> Iterator[log.Log]:
    """Log to the journal, and give logging back as it was found."""
    before, root = structlog.get_config(), logging.getLogger()
    handlers, level = root.handlers[:], root.level
    settings = config.load({"OP_DBUS_LOG_FORMAT": "journal"})
    with closing(log.configure(settings, {}, io.StringIO(), journald.path)) as found:
        yield found
    structlog.configure(**before)
    root.handlers[:] = handlers
    root.setLevel(level)


# entries


def test_an_event_is_an_entry(lines: log.Log, journald: Journald) -> None:
    """Send message, priority, identifier, id, the event's name, and each of its fields."""
    assert lines.target == "journal"
    structlog.get_logger().info("model proven", model="x y", vectors=3)
    assert journald.receive() == {
        "MESSAGE": "model proven model=\"x y\" vectors=3",
        "PRIORITY": "6",
        "SYSLOG_IDENTIFIER": "op-dbus",
        "MESSAGE_ID": MESSAGE_IDS["model proven"],
        "OPDBUS_EVENT": "model_proven",
        "OPDBUS_MODEL": "x y",
        "OPDBUS_VECTORS": "3",
    }  # fmt: skip


def test_entries_have_their_priority(lines: log.Log, journald: Journald) -> None:
    """Send syslog's number of each level, in the order of the lines."""
    lines.set_level("debug")
    logger = structlog.get_logger()
    for write in (logger.debug, logger.info, logger.warning, logger.error, logger.critical):
        write("anything")
    assert [journald.receive()["PRIORITY"] for _ in range(5)] == ["7", "6", "4", "3", "2"]


@pytest.mark.usefixtures("lines")
def test_a_trace_is_in_the_message(journald: Journald) -> None:
    """Show a traceback where the message is shown, and keep it as a field."""
    try:
        int("disk on fire")
    except ValueError:
        structlog.get_logger().exception("internal error", id="1f")
    entry = journald.receive()
    first, _, rest = entry["MESSAGE"].partition("\n")
    assert first == "internal error id=1f"
    assert rest == entry["OPDBUS_EXCEPTION"]
    assert "disk on fire" in rest
    assert "MESSAGE_ID" not in entry


@pytest.mark.usefixtures("lines")
def test_libraries_are_in_the_journal(journald: Journald) -> None:
    """Send a library's warning as an entry of ours that names the library."""
    logging.getLogger("dbus_fast").warning("odd %s", "message")
    entry = journald.receive()
    assert (entry["OPDBUS_EVENT"], entry["OPDBUS_LIBRARY"]) == ("library_said", "dbus_fast")
    assert entry["OPDBUS_TEXT"] == "odd message"
    assert entry["PRIORITY"] == "4"


@pytest.mark.usefixtures("lines")
def test_a_field_cannot_forge_another(journald: Journald) -> None:
    """Keep line breaks and NUL inside the field that they came in."""
    bad = "a\nPRIORITY=0\n\0MESSAGE=forged\ud800"
    structlog.get_logger().info("state file refused", reason=bad)
    entry = journald.receive()
    assert entry["OPDBUS_REASON"] == "a\nPRIORITY=0\n\\0MESSAGE=forged\\ud800"
    assert entry["PRIORITY"] == "6"
    assert "\n" not in entry["MESSAGE"]


@given(st.dictionaries(st.from_regex(r"[A-Z][A-Z0-9_]{0,9}", fullmatch=True), st.text()))
def test_every_entry_can_be_read(fields: dict[str, str]) -> None:
    """Write any text so that the journal reads that text."""
    assert decode(encode(fields)) == [
        (name, text.replace("\0", "\\0")) for name, text in fields.items()
    ]


@pytest.mark.usefixtures("lines")
def test_long_fields_are_cut(journald: Journald) -> None:
    """Send what fits into a datagram of the journal's, however long a field is."""
    structlog.get_logger().info("state file refused", reason="x" * 10_000_000)
    assert len(journald.receive()["OPDBUS_REASON"]) == journal.MAX_FIELD_BYTES


def test_the_target_is_chosen(tmp_path: Path, lines: log.Log, journald: Journald) -> None:
    """Send lines to the journal or write them to the stream, as was set last."""
    with (tmp_path / "stream").open("w+") as stream:
        settings = config.load({"OP_DBUS_LOG_FORMAT": "json"})
        with closing(log.configure(settings, {}, stream, journald.path)) as other:
            logger = structlog.get_logger()
            assert other.target == "console"
            logger.info("first")
            other.set_target("journal")
            logger.info("second")
            other.set_target("console")
            logger.info("third")
        stream.seek(0)
        written = stream.read()
    assert ("first" in written, "second" in written, "third" in written) == (True, False, True)
    assert journald.receive()["OPDBUS_EVENT"] == "second"
    lines.close()


# a journal that is away


def test_a_journal_that_does_not_read_stops_nobody(journald: Journald) -> None:
    """Take any number of entries at once, and say later how many were lost."""
    with closing(Journal(journald.path)) as sender:
        for number in range(2 * journal.MAX_WAITING):
            sender.send({"OPDBUS_NUMBER": str(number)})
        entries = []
        while not entries or "OPDBUS_COUNT" not in entries[-1]:
            entries.append(journald.receive())
            if len(entries) == journal.MAX_WAITING // 2:
                # the next entry finds room, and what is told first is the loss
                sender.send({"OPDBUS_NUMBER": "last"})
        told = [int(entry["OPDBUS_NUMBER"]) for entry in entries[:-1]]
        assert told == sorted(told)
        assert entries[-1]["OPDBUS_EVENT"] == "log_lines_lost"
        assert int(entries[-1]["OPDBUS_COUNT"]) > 0


def test_a_journal_that_comes_back_is_told(tmp_path: Path) -> None:
    """Go on when the socket is there again, and say what was lost meanwhile."""
    path = tmp_path / "journal"
    with (
        closing(Journal(path)) as sender,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as plain,
    ):
        sender._deliver(plain, encode({"OPDBUS_NUMBER": "1"}))
        sender._deliver(plain, encode({"OPDBUS_NUMBER": "2"}))
        with closing(Journald(path)) as journald:
            sender.send({"OPDBUS_NUMBER": "3"})
            loss = journald.receive()
            assert (loss["OPDBUS_EVENT"], loss["OPDBUS_COUNT"]) == ("log_lines_lost", "2")
            assert journald.receive()["OPDBUS_NUMBER"] == "3"


def test_closing_does_not_wait_for_ever(journald: Journald) -> None:
    """End within seconds though nobody reads what waits."""
    sender = Journal(journald.path)
    for number in range(2 * journal.MAX_WAITING):
        sender.send({"OPDBUS_NUMBER": str(number)})
    sender.close()


def test_closing_sends_what_waits(journald: Journald) -> None:
    """Lose nothing of what was logged before the end."""
    sender = Journal(journald.path)
    for number in range(5):
        sender.send({"OPDBUS_NUMBER": str(number)})
    sender.close()
    assert [journald.receive()["OPDBUS_NUMBER"] for _ in range(5)] == list("01234")


def test_closing_waits_for_the_reader(journald: Journald, monkeypatch: pytest.MonkeyPatch) -> None:
    """Be there while the journal reads the last words, so that it can tell whose they are."""
    monkeypatch.setattr(journal, "_FLUSH_SECONDS", PATIENCE_SECONDS)
    sender = Journal(journald.path)
    sender.send({"OPDBUS_NUMBER": "last"})
    reader = threading.Timer(0.1, journald.receive)
    reader.start()
    sender.close()
    assert not journald.has_entry()
    reader.join()


# the catalog


def catalogued() -> dict[str, str]:
    """Give the catalog's text of each id."""
    parts = re.split(r"^-- ([0-9a-f]{32})\n", CATALOG.read_text(), flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_every_main_event_is_explained() -> None:
    """Explain each id once, with a subject, and no other."""
    found = catalogued()
    assert sorted(found) == sorted(MESSAGE_IDS.values())
    assert CATALOG.read_text().count("\n-- ") == len(MESSAGE_IDS)
    for text in found.values():
        assert re.match(r"Subject: \S.*\nDefined-By: op-dbus\n(Documentation: .*\n)?\n\S", text)


def calls() -> dict[str, str]:
    """Give the arguments of each call in the package that logs, by event."""
    found = {}
    for path in (ROOT / "opdbus").rglob("*.py"):
        text = path.read_text()
        for match in re.finditer(r"log(?:ger)?\.(?:info|warning|error)\(\s*\"([^\"]+)\"", text):
            found[match[1]] = text[match.end() :].partition("\n\n")[0]
    return found


@pytest.mark.parametrize("event", MESSAGE_IDS)
def test_main_events_are_logged(event: str) -> None:
    """Log each main event somewhere, with the fields that its explanation names."""
    arguments = calls()[event]
    for field in re.findall(r"@OPDBUS_(\w+)@", catalogued()[MESSAGE_IDS[event]]):
        assert f"{field.lower()}=" in arguments


def test_ids_are_ids() -> None:
    """Have 128 random bits in each id, another in each."""
    assert len(set(MESSAGE_IDS.values())) == len(MESSAGE_IDS)
    assert all(re.fullmatch("[0-9a-f]{32}", found) for found in MESSAGE_IDS.values())
