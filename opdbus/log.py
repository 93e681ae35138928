"""Log lines as facts for an operator: to a console, as JSON, or to the journal."""

import atexit
import logging
import os
import re
import stat
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any, Final, NoReturn, TextIO

import structlog

from opdbus.config import Config
from opdbus.errors import InvalidArgs
from opdbus.platform import journal
from opdbus.platform.journal import Journal
from opdbus.platform.lines import escape_hidden
from opdbus.platform.thread_queue import ThreadQueue

JOURNAL: Final = "journal"
CONSOLE: Final = "console"
# syslog's priorities, as in the `<N>` prefix of sd-daemon(3)
_PRIORITY: Final = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}
# Python's levels by syslog's names
_LEVELS: Final = {
    "emerg": logging.CRITICAL,
    "alert": logging.CRITICAL,
    "crit": logging.CRITICAL,
    "err": logging.ERROR,
    "warning": logging.WARNING,
    "notice": logging.WARNING,
    "info": logging.INFO,
    "debug": logging.DEBUG,
}
_OUTSIDE_A_NAME = re.compile(r"[^a-z0-9]+")
_MAX_NAME: Final = 64
# Lines queued for a file that accepts none.
_MAX_LINES: Final = 1000
_FLUSH_SECONDS: Final = 2.0


class Log:
    """Target and lowest level of log lines; a change takes effect with the next line."""

    def __init__(self, level: str, form: str, stream: TextIO, journal: Journal | None) -> None:
        self._level = level
        self._form = form
        self._stream = stream
        self._lines = _Lines(stream)
        self._journal = journal
        self._target = JOURNAL if journal and form == JOURNAL else CONSOLE
        self._apply()

    @property
    def level(self) -> str:
        """Return the lowest level that is written, by syslog's name."""
        return self._level

    @property
    def target(self) -> str:
        """Return the target of lines: `journal`, or `console` for the standard error stream."""
        return self._target

    def set_level(self, level: str) -> None:
        """Set the lowest level; raises InvalidArgs if syslog has no such name."""
        if level not in _LEVELS:
            raise InvalidArgs(f"there is no log level {level!r}; there are {', '.join(_LEVELS)}")
        self._level = level
        self._apply()

    def set_target(self, target: str) -> None:
        """Set the target; raises InvalidArgs if it is not available here."""
        if target not in (targets := [CONSOLE, JOURNAL] if self._journal else [CONSOLE]):
            only = " and ".join(targets)
            raise InvalidArgs(f"op-dbus cannot log to {target!r} here, only to {only}")
        self._target = target
        self._apply()

    def to_journal(self) -> structlog.typing.FilteringBoundLogger | None:
        """Return a logger to the journal that ignores level and target; None without a journal."""
        if not self._journal:
            return None
        everything = structlog.make_filtering_bound_logger(logging.NOTSET)
        processors: list[structlog.types.Processor] = [
            structlog.processors.add_log_level,
            _Entries(self._journal),
        ]
        logger: structlog.typing.FilteringBoundLogger = structlog.wrap_logger(
            None, processors=processors, wrapper_class=everything
        )
        return logger

    def close(self) -> None:
        """Write queued lines, send the entries queued for the journal, and end the threads."""
        self._lines.close()
        if self._journal:
            self._journal.close()

    def _apply(self) -> None:
        level = _LEVELS[self._level]
        shared: list[structlog.types.Processor] = [
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
        ]
        structlog.configure(
            processors=shared + self._ending(),
            wrapper_class=structlog.make_filtering_bound_logger(level),
            # one for all: a new one would be made even for each dropped line
            logger_factory=lambda *_names: self._lines,
            cache_logger_on_first_use=False,
        )
        # of libraries that use logging (dbus-fast, asyncio), only warnings and errors
        root = logging.getLogger()
        root.setLevel(max(level, logging.WARNING))
        if not any(isinstance(handler, _Library) for handler in root.handlers):
            root.addHandler(_Library())

    def _ending(self) -> list[structlog.types.Processor]:
        if self._journal and self._target == JOURNAL:
            return [_Entries(self._journal)]
        if self._form == JOURNAL:
            return [_escape_values, _journal_line]
        if self._form == "json":
            stamp = structlog.processors.TimeStamper(fmt="iso", utc=True)
            return [stamp, structlog.processors.JSONRenderer()]
        clock = structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False)
        colors = self._stream.isatty()
        return [
            _escape_values,
            clock,
            structlog.dev.ConsoleRenderer(colors=colors, pad_event_to=24),
        ]


def configure(
    config: Config,
    environ: Mapping[str, str],
    stream: TextIO = sys.stderr,
    socket: Path = journal.SOCKET,
) -> Log:
    """Configure structlog to write to `stream`, or to the journal; return the Log, to be closed."""
    chosen = config.log_format
    if chosen == "auto":
        chosen = JOURNAL if is_journal(environ, stream) else CONSOLE
    level = {"error": "err"}.get(config.log_level, config.log_level)
    return Log(level, chosen, stream, Journal(socket) if socket.is_socket() else None)


class _Lines:
    """A structlog logger that writes lines to a stream, but never waits for whoever reads them.

    A full disk, a pipe that nobody reads and a reader that has gone cost lines, and nothing else.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._queue: ThreadQueue[str] = ThreadQueue("log", _MAX_LINES, self._run)
        # also of programs that do not close their log
        atexit.register(self.close)
        try:
            self._number = stream.fileno()
            # what has no reader takes a line at once, or fails
            self._is_direct = stat.S_ISREG(os.fstat(self._number).st_mode)
        except (OSError, ValueError):  # a stream in memory
            self._number, self._is_direct = -1, True

    def msg(self, line: str) -> None:
        """Write a line, or queue it."""
        if self._is_direct:
            self._write(line)
        else:
            self._queue.start()
            self._queue.put(line)

    log = debug = info = warn = warning = msg
    fatal = failure = err = error = critical = exception = msg

    def close(self) -> None:
        """Write the queued lines; waits a few seconds at most."""
        self._queue.close(_FLUSH_SECONDS)

    def _run(self) -> None:
        while (line := self._queue.get()) is not None:
            self._write(line)

    def _write(self, line: str) -> None:
        lost, self._queue.lost = self._queue.lost, 0
        text = f"log lines lost count={lost}\n" * bool(lost) + f"{line}\n"
        if self._number < 0:
            self._stream.write(text)
            return
        data = text.encode(errors="backslashreplace")
        try:
            while data:
                data = data[os.write(self._number, data) :]
        except OSError:
            # reported with the next line that is written
            self._queue.lost += lost + 1


class _Library(logging.Handler):
    """Handler that writes the records of libraries that use logging in the daemon's own format."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, with the name of its logger."""
        structlog.get_logger().log(
            record.levelno,
            "library said",
            library=record.name,
            text=record.getMessage(),
            exc_info=record.exc_info,
        )


class _Entries:
    """The last structlog processor for the journal: sends an entry with one field per fact."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def __call__(
        self,
        _logger: Any,  # noqa: ANN401 -- structlog's signature
        level: str,
        event: MutableMapping[str, Any],
    ) -> NoReturn:
        """Send the event, and drop it from further processing."""
        self._journal.send(_entry(level, event))
        raise structlog.DropEvent


def _entry(level: str, event: MutableMapping[str, Any]) -> Mapping[str, str]:
    """Return the fields of a journal entry: systemd.journal-fields(7) and our own."""
    del event["level"]
    name = str(event.pop("event"))
    trace = [event["exception"]] if "exception" in event else []
    facts = {key: value for key, value in event.items() if key != "exception"}
    _escape_values(None, level, facts)
    shown = structlog.processors.LogfmtRenderer()(None, level, facts)
    known = journal.MESSAGE_IDS.get(name)
    return {
        "MESSAGE": "\n".join([f"{name} {shown}".rstrip(), *trace]),
        "PRIORITY": str(_PRIORITY.get(level, _PRIORITY["info"])),
        "SYSLOG_IDENTIFIER": journal.IDENTIFIER,
        **({"MESSAGE_ID": known} if known else {}),
        "OPDBUS_EVENT": _slug(name),
        **{f"OPDBUS_{_slug(key).upper()}"[:_MAX_NAME]: str(value) for key, value in event.items()},
    }


def _escape_values(
    _logger: Any,  # noqa: ANN401 -- structlog's signature
    _level: str,
    event: MutableMapping[str, Any],
) -> MutableMapping[str, Any]:
    """Escape what could begin a line of its own, or command a terminal; a trace has lines."""
    for key in event.keys() - {"exception", "stack"}:
        if isinstance(value := event[key], str | Exception):
            event[key] = escape_hidden(str(value))
    return event


def _slug(name: str) -> str:
    return _OUTSIDE_A_NAME.sub("_", name.lower()).strip("_")


def _journal_line(_logger: Any, level: str, event: MutableMapping[str, Any]) -> str:  # noqa: ANN401 -- structlog's signature
    event.pop("level", None)
    fields = structlog.processors.LogfmtRenderer(key_order=["event"])(_logger, level, event)
    return f"<{_PRIORITY.get(level, _PRIORITY['info'])}>{fields}"


def is_journal(environ: Mapping[str, str], stream: TextIO) -> bool:
    """Return whether systemd connected `stream` to the journal; see systemd.exec(5)."""
    try:
        file = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return environ.get("JOURNAL_STREAM") == f"{file.st_dev}:{file.st_ino}"
