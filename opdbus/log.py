"""Log lines as facts for an operator: to a console, as JSON, or to the journal."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping
    from typing import Any, TextIO

    from opdbus.config import Config

# syslog priorities, as sd-daemon(3) reads them at the start of a line
_PRIORITY = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}


def configure(config: Config, environ: Mapping[str, str], stream: TextIO = sys.stderr) -> None:
    """Send every log line to `stream` in the configured format."""
    chosen = config.log_format
    if chosen == "auto":
        chosen = "journal" if _is_journal(environ, stream) else "console"
    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=shared + _ending(chosen, colors=stream.isatty()),
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[config.log_level.upper()]
        ),
        logger_factory=structlog.PrintLoggerFactory(stream),
        cache_logger_on_first_use=False,
    )
    # Libraries that use logging (dbus-fast, asyncio) say only what an operator must know.
    logging.basicConfig(level=logging.WARNING, stream=stream, format="%(name)s: %(message)s")


def _ending(chosen: str, *, colors: bool) -> list[structlog.types.Processor]:
    stamp = structlog.processors.TimeStamper(fmt="iso", utc=True)
    if chosen == "json":
        return [stamp, structlog.processors.JSONRenderer()]
    if chosen == "journal":
        return [_journal_line]
    clock = structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False)
    return [clock, structlog.dev.ConsoleRenderer(colors=colors, pad_event_to=24)]


def _journal_line(_logger: Any, level: str, event: MutableMapping[str, Any]) -> str:  # noqa: ANN401 -- structlog's signature
    event.pop("level", None)
    fields = structlog.processors.LogfmtRenderer(key_order=["event"])(_logger, level, event)
    return f"<{_PRIORITY.get(level, 6)}>{fields}"


def _is_journal(environ: Mapping[str, str], stream: TextIO) -> bool:
    """Whether `stream` is the socket that systemd connected to the journal (systemd.exec(5))."""
    try:
        stat = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return environ.get("JOURNAL_STREAM") == f"{stat.st_dev}:{stat.st_ino}"
