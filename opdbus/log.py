"""Log lines as facts for an operator: to a console, as JSON, or to the journal."""

import logging
import os
import re
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


class Log:
    """Target and lowest level of log lines; a change takes effect with the next line."""

    def __init__(self, level: str, form: str, stream: TextIO, journal: Journal | None) -> None:
        self._level = level
        self._form = form
        self._stream = stream
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
        """Send the entries queued for the journal, and end its thread."""
        if self._journal:
            self._journal.close()

    def _apply(self) -> None:
        level, printer = _LEVELS[self._level], structlog.PrintLogger(self._stream)
        shared: list[structlog.types.Processor] = [
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
        ]
        structlog.configure(
            processors=shared + self._ending(),
            wrapper_class=structlog.make_filtering_bound_logger(level),
            # one printer for all: a new one would be made even for each dropped line
            logger_factory=lambda *_names: printer,
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
        stat = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return environ.get("JOURNAL_STREAM") == f"{stat.st_dev}:{stat.st_ino}"
