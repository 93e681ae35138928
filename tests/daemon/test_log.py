"""Log lines are facts: an event and its fields, in the format that the reader takes."""

import fcntl
import io
import json
import logging
import os
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog
from harness.running import Running

from opdbus import config, log
from opdbus.errors import InvalidArgs


@pytest.fixture(autouse=True)
def _configuration_of_others() -> Iterator[None]:
    """Give logging back as it was found."""
    before, root = structlog.get_config(), logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    structlog.configure(**before)
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(format_: str, level: str = "info") -> list[str]:
    """Log some events and give the lines that were written."""
    stream = io.StringIO()
    settings = config.load({"OP_DBUS_LOG_FORMAT": format_, "OP_DBUS_LOG_LEVEL": level})
    log.configure(settings, {}, stream)
    logger = structlog.get_logger()
    logger.debug("graph cached", path="/x")
    logger.info("state file read", objects=3, path="/a b", text='say "é"')
    logger.warning("provider skipped", reason="two\nlines")
    try:
        int("disk on fire")
    except ValueError:
        logger.exception("store failed")
    return stream.getvalue().splitlines()


def test_json_is_one_object_a_line() -> None:
    """Write each event as one JSON object with level and time, exceptions included."""
    found = [json.loads(line) for line in lines("json")]
    assert [(row["event"], row["level"]) for row in found] == [
        ("state file read", "info"),
        ("provider skipped", "warning"),
        ("store failed", "error"),
    ]
    assert (found[0]["objects"], found[0]["text"]) == (3, 'say "é"')
    assert found[1]["reason"] == "two\nlines"
    assert "disk on fire" in found[2]["exception"]
    assert all(row["timestamp"].endswith("Z") for row in found)


def test_journal_lines_carry_their_priority() -> None:
    """Write one line an event, beginning with its syslog priority, event first, without a time."""
    found = lines("journal", "debug")
    assert [line[:3] for line in found] == ["<7>", "<6>", "<4>", "<3>"]
    assert found[0] == '<7>event="graph cached" path=/x'
    assert "two\\nlines" in found[2]
    assert "disk on fire" in found[3]
    assert "timestamp" not in "".join(found)


def test_console_is_for_people() -> None:
    """Write time, event and fields, without colours where there is no terminal."""
    text = "\n".join(lines("console"))
    assert "state file read" in text
    assert "objects=3" in text
    assert "disk on fire" in text
    assert "\x1b" not in text


@pytest.mark.parametrize("mine", [True, False])
def test_auto_knows_the_journal(tmp_path: Path, mine: bool) -> None:  # noqa: FBT001
    """Write for the journal only if the stream is the one that systemd connected to it."""
    with (tmp_path / "stream").open("w+") as stream:
        stat = os.fstat(stream.fileno())
        environ = {"JOURNAL_STREAM": f"{stat.st_dev}:{stat.st_ino + (not mine)}"}
        log.configure(config.load({}), environ, stream)
        structlog.get_logger().warning("event")
        stream.seek(0)
        assert (stream.read() == "<4>event=event\n") is mine


def test_auto_survives_a_stream_without_a_file() -> None:
    """Write to the console where the stream has no file descriptor."""
    stream = io.StringIO()
    log.configure(config.load({}), {"JOURNAL_STREAM": "1:2"}, stream)
    structlog.get_logger().warning("event")
    assert "event" in stream.getvalue()
    assert not stream.getvalue().startswith("<")


@pytest.mark.parametrize("kind", ["full disk", "nobody reads", "reader gone"])
def test_a_file_that_takes_no_lines_stops_nobody(kind: str) -> None:
    """Go on at once, without an error, whatever becomes of the lines."""
    reader, writer = os.pipe()
    if kind == "full disk":
        os.close(writer)
        writer = os.open("/dev/full", os.O_WRONLY)
    elif kind == "reader gone":
        os.close(reader)
    with os.fdopen(writer, "w") as stream:
        lines = log.configure(config.load({}), {}, stream)
        for number in range(5000):
            structlog.get_logger().warning("event", number=number, text="x" * 100)
        if kind == "nobody reads":
            os.close(reader)
        lines.close()


@pytest.mark.parametrize(
    "log",
    [
        "exec >/dev/full",
        'mkfifo "$0"; exec 3<>"$0" >"$0"; head -c 65536 /dev/zero',
        "exec > >(true); wait $!",
    ],
    ids=["full disk", "nobody reads", "reader gone"],
)
def test_the_daemon_serves_and_ends_without_its_log(
    daemons: Callable[..., Running], tmp_path: Path, log: str
) -> None:
    """Serve, and end with 0, whatever becomes of the log."""
    daemon = daemons(LOG_LEVEL="debug")
    daemon.starter = ("bash", "-c", f'{log}; exec "$@" 2>&1', str(tmp_path / "pipe"))
    assert daemon.start().vectorized().stop() == 0


def test_lost_lines_are_counted() -> None:
    """Say how many lines were lost once the reader reads again."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    with os.fdopen(reader) as read, os.fdopen(writer, "w") as stream:
        lines = log.configure(config.load({"OP_DBUS_LOG_FORMAT": "json"}), {}, stream)
        for number in range(3000):
            structlog.get_logger().warning("event", number=number)
        seen = []
        while "lost" not in (line := read.readline()):
            seen.append(json.loads(line)["number"])
            if len(seen) == 100:
                structlog.get_logger().warning("event", number=9999)
        (count,) = map(int, re.findall(r"count=(\d+)", line))
        assert seen == list(range(len(seen)))
        assert json.loads(read.readline())["number"] >= len(seen)
        assert 0 < count <= 3000 - len(seen)
        threading.Thread(target=read.read, daemon=True).start()
        lines.close()


def test_libraries_are_heard_from_warnings_on() -> None:
    """Pass on the warnings of libraries that use logging, and no less."""
    stream = io.StringIO()
    log.configure(config.load({}), {}, stream)
    logging.getLogger("dbus_fast").info("chatter")
    logging.getLogger("dbus_fast").warning("odd message")
    (line,) = stream.getvalue().splitlines()
    assert "library=dbus_fast text='odd message'" in line


# what can be changed while running


def writing(level: str = "info") -> tuple[log.Log, io.StringIO]:
    """Give a log that writes JSON, and what it writes to."""
    stream = io.StringIO()
    settings = config.load({"OP_DBUS_LOG_FORMAT": "json", "OP_DBUS_LOG_LEVEL": level})
    return log.configure(settings, {}, stream, Path("/nonexistent")), stream


def test_level_changes_at_once() -> None:
    """Count a new level from the next line on, for loggers that were made before it as well."""
    lines_of, stream = writing("error")
    early = structlog.get_logger()
    early.info("first")
    lines_of.set_level("debug")
    early.debug("second")
    lines_of.set_level("warning")
    early.info("third")
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["second"]


def test_level_is_of_libraries_too() -> None:
    """Be silent about warnings of libraries where only errors are wanted."""
    lines_of, stream = writing()
    lines_of.set_level("err")
    logging.getLogger("asyncio").warning("slow callback")
    assert not stream.getvalue()
    logging.getLogger("asyncio").error("lost task")
    assert "lost task" in stream.getvalue()


@pytest.mark.parametrize(
    ("level", "count"),
    [
        ("debug", 4),
        ("info", 3),
        ("notice", 2),
        ("warning", 2),
        ("err", 1),
        ("crit", 0),
        ("alert", 0),
        ("emerg", 0),
    ],
)
def test_levels_are_syslogs(level: str, count: int) -> None:
    """Know each word of syslog, write what is as important, and give the word back."""
    lines_of, stream = writing()
    lines_of.set_level(level)
    assert lines_of.level == level
    logger = structlog.get_logger()
    for write in (logger.debug, logger.info, logger.warning, logger.error):
        write("event")
    assert len(stream.getvalue().splitlines()) == count


def test_settings_have_syslogs_words() -> None:
    """Begin with the level of the settings, in syslog's word for it."""
    words = {level: writing(level)[0].level for level in ("debug", "info", "warning", "error")}
    assert words == {"debug": "debug", "info": "info", "warning": "warning", "error": "err"}


@pytest.mark.parametrize("word", ["error", "WARNING", "7", "", "loud\n"])
def test_other_levels_are_refused(word: str) -> None:
    """Refuse a word that syslog does not know, and leave the level."""
    lines_of, _ = writing()
    with pytest.raises(InvalidArgs, match="emerg, alert"):
        lines_of.set_level(word)
    assert lines_of.level == "info"


def test_a_target_that_is_not_there_is_refused() -> None:
    """Refuse the journal where there is none, and what op-dbus does not write to at all."""
    lines_of, _ = writing()
    for target in ("journal", "syslog", "null", "auto", ""):
        with pytest.raises(InvalidArgs, match="only to console"):
            lines_of.set_target(target)
    lines_of.set_target("console")
    assert lines_of.target == "console"
