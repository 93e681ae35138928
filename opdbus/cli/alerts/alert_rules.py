"""Rules of alerts, as /etc/op-dbus/notify.toml has them: the changes that each executable gets."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NoReturn

from opdbus.cli.alerts.alert import WHATS, Alert
from opdbus.config import SEVERITIES
from opdbus.errors import ConfigError, InvalidArgs
from opdbus.platform.lines import split_lines
from opdbus.state import conditions
from opdbus.state.conditions import AllOf

# Seconds that an executable may take for one alert.
TIMEOUT: Final = 30
_MAX_TIMEOUT: Final = 3600
_TEXTS: Final = ("name", "on", "where", "severity")
_LISTS: Final = ("what", "run")
_HEADER: Final = re.compile(r"\s*\[\[\s*rule\s*\]\]")


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: alerts of a kind that meet all conditions go to the executables in `run`."""

    name: str
    kind: str
    where: AllOf
    least: int
    whats: Collection[str]
    run: Collection[str]
    # file and line of the conditions
    place: str

    def matches(self, alert: Alert) -> bool:
        """Return whether an alert meets all conditions; `change` stands for failed units too."""
        is_change = alert.kind in {"failed", "recovered"} and self.kind == "change"
        is_kind = self.kind == alert.kind or is_change
        return (
            is_kind
            and alert.what in self.whats
            and SEVERITIES.index(alert.severity) >= self.least
            and self.where.hold(alert.identity, {"before": alert.before, "after": alert.after})
        )


@dataclass(frozen=True, slots=True)
class Rules:
    """All rules, and the seconds that an executable may take."""

    rules: Sequence[Rule]
    timeout: float

    def match(self, executable: str, alert: Alert) -> list[str]:
        """Return the names of the rules by which an executable gets an alert."""
        return [one.name for one in self.rules if executable in one.run and one.matches(alert)]


def read_rules(path: Path, executables: Collection[str]) -> Rules:
    """Read a file of rules; `executables` are the names that there are. Raises ConfigError."""
    try:
        text = path.read_text(encoding="utf-8")
        content = tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"cannot read the rules of alerts {path}: {error.strerror}") from None
    except ValueError as error:  # the message has line and column
        raise ConfigError(f"{path} is not TOML: {error}") from None
    return _Parser(path, text, executables).parse(content)


class _Parser:
    """Checks of a parsed file; each fault is a ConfigError with the line, if that can be found."""

    def __init__(self, path: Path, text: str, executables: Collection[str]) -> None:
        self._path = path
        self._lines = split_lines(text)
        self._executables = executables
        # the lines of the present rule, or all
        self._span = range(len(self._lines))

    def parse(self, content: Mapping[str, Any]) -> Rules:
        timeout, tables = content.get("timeout", TIMEOUT), content.get("rule", [])
        for key in content.keys() - {"timeout", "rule"}:
            self._refuse(key, f"there is no setting {key!r}, only timeout and [[rule]]")
        is_number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
        if not is_number or not 0 < timeout <= _MAX_TIMEOUT:
            self._refuse("timeout", f"timeout is a number of seconds up to {_MAX_TIMEOUT}")
        is_list = isinstance(tables, list) and all(isinstance(one, dict) for one in tables)
        if not tables or not is_list:
            self._refuse("rule", "there is no rule: each begins with the line [[rule]]")
        headers = [n for n, line in enumerate(self._lines) if _HEADER.match(line)]
        spans = [range(*pair) for pair in pairwise([*headers, len(self._lines)])]
        rules = []
        for number, table in enumerate(tables):
            # a rule may also be written as an inline table, without a header
            self._span = spans[number] if len(headers) == len(tables) else self._span
            rules.append(self._parse_rule(table))
        return Rules(rules, timeout)

    def _parse_rule(self, table: Mapping[str, Any]) -> Rule:
        for key in table.keys() - {*_TEXTS, *_LISTS}:
            self._refuse(key, f"a rule has no {key!r}, only {', '.join((*_TEXTS, *_LISTS))}")
        for key in (key for key in _TEXTS if not isinstance(table.get(key, ""), str)):
            self._refuse(key, f"{key} is a text in quotes")
        name, kind = table.get("name", ""), table.get("on", "")
        if not name:
            self._refuse("name", "a rule needs a name")
        if kind not in WHATS:
            self._refuse("on", f"`on` of rule {name!r} is one of {', '.join(WHATS)}")
        severity = table.get("severity", SEVERITIES[0])
        if severity not in SEVERITIES:
            self._refuse("severity", f"severity is one of {', '.join(SEVERITIES)}")
        return Rule(
            name,
            kind,
            self._parse_condition(table.get("where", "")),
            SEVERITIES.index(severity),
            self._parse_list(table, "what", WHATS[kind]),
            self._parse_list(table, "run", self._executables),
            self._place("where"),
        )

    def _parse_condition(self, text: str) -> AllOf:
        try:
            return AllOf(conditions.parse(text))
        except InvalidArgs as error:
            self._refuse("where", str(error))

    def _parse_list(
        self, table: Mapping[str, Any], key: str, known: Collection[str]
    ) -> Collection[str]:
        """Return a list of known words, all of them if the rule has no such list."""
        words = table.get(key, list(known))
        if not isinstance(words, list) or not words:
            self._refuse(key, f"{key} is a list of texts")
        for word in words:
            if word not in known:
                self._refuse(key, f"{key} has {word!r}, and there are {', '.join(known)}")
        return words

    def _refuse(self, key: str, sentence: str) -> NoReturn:
        raise ConfigError(f"{self._place(key)}: {sentence}")

    def _place(self, key: str) -> str:
        """Return the file and line of a key of the present rule."""
        # a key with its value, or a table's head
        heads = ((n, re.split(r"[]=]", self._lines[n], maxsplit=1)[0]) for n in self._span)
        lines = (n for n, head in heads if head.strip(" \t[\"'") == key)
        line = next(lines, self._span.start)
        return f"{self._path}:{line + 1}"
