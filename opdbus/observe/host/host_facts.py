"""Facts about the host from its files; each fact is one object."""

import csv
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeAlias

from opdbus.observe.core.file_reading import text_of
from opdbus.observe.core.skipped import Skipped
from opdbus.observe.host import time_zone
from opdbus.platform.lines import BLANKS, split_lines
from opdbus.state.object import Json
from opdbus.state.redact import redact_text

Facts: TypeAlias = dict[str, Json]
# The facts are read again when one of these files changes.
FILES: Final = (
    *("etc/hostname", "etc/machine-info", "etc/os-release", "etc/locale.conf"),
    *("etc/default/locale", "etc/vconsole.conf", "etc/default/keyboard", "etc/localtime"),
    *("etc/timezone", "etc/sysconfig/clock", "etc/adjtime", "run/systemd/timesync/synchronized"),
)
_MACHINE_INFO: Final = {
    "PRETTY_HOSTNAME": "pretty_name",
    "CHASSIS": "chassis",
    "DEPLOYMENT": "deployment",
    "LOCATION": "location",
}
_OS_RELEASE: Final = {
    "PRETTY_NAME": "pretty_name",
    "ID": "id",
    "ID_LIKE": "like",
    "VERSION_ID": "version",
    "VERSION_CODENAME": "codename",
    "VARIANT": "variant",
    "SUPPORT_END": "end_of_support",
}
_KEYBOARD: Final = {
    "KEYMAP": "keymap",
    "FONT": "console_font",
    "XKBLAYOUT": "keyboard_layout",
    "XKBMODEL": "keyboard_model",
    "XKBVARIANT": "keyboard_variant",
    "XKBOPTIONS": "keyboard_options",
}
_TIMESYNCD: Final = "systemd-timesyncd.service"
_OF_LOCALE: Final = (
    "etc/locale.conf", "etc/default/locale", "etc/default/keyboard", "etc/vconsole.conf",
)  # fmt: skip
_NAME: Final = re.compile("[A-Za-z_][A-Za-z0-9_]*")
# The kernel's host name before one is set.
_NO_NAME: Final = "(none)"


def hostname(root: Path, skipped: Skipped) -> Facts:
    """Return the host name, and the administrator's description in machine-info."""
    lines = map(_plain, split_lines(text_of(root / "etc/hostname", skipped=skipped)))
    name = next((line for line in lines if line and not line.startswith("#")), "")
    # without the file: the name from the network or the hypervisor
    name = name or _plain(text_of(root / "proc/sys/kernel/hostname", skipped=skipped))
    info = _taken(_assignments(root / "etc/machine-info", skipped), _MACHINE_INFO)
    is_known = name not in {"", _NO_NAME}
    words = [f"this host is called {name}" if is_known else "the name of this host is not known"]
    words += [f"{key.replace('_', ' ')} {value}" for key, value in info.items()]
    named = {"hostname": name} if is_known else {}
    return {"description": ", ".join(words), **named, **info}


def time(root: Path, service: str | None, skipped: Skipped) -> Facts:
    """Return time zone and time service; `service` is "" for none, None if unknown."""
    adjusted = map(_plain, split_lines(text_of(root / "etc/adjtime", skipped=skipped)))
    facts: Facts = {
        "timezone": time_zone.found(root, _zone_setting(root, skipped), skipped) or "unknown",
        "rtc_in_local_time": "LOCAL" in adjusted,
    }
    if service is not None:
        facts["ntp_service"] = service or "none"
    # only timesyncd reports synchronization in a file that all may read
    if service in {"", _TIMESYNCD}:
        is_synchronized = (root / "run/systemd/timesync/synchronized").exists()
        facts["ntp_synchronized"] = bool(service) and is_synchronized
    words = [f"time zone {facts['timezone']}"]
    words += [f"clock set by {service}"] if service else []
    if facts.get("ntp_synchronized") is False:
        words.append("clock not synchronized with the network")
    return {"description": ", ".join(words), **facts}


def locale(root: Path, skipped: Skipped) -> Facts:
    """Return the language and the keyboard layout."""
    files = [root / name for name in _OF_LOCALE]
    newer, older, keyboard, console = (_assignments(path, skipped) for path in files)
    language = newer or older
    facts = {
        key.lower(): value
        for key, value in language.items()
        if key.startswith("LC_") or key in {"LANG", "LANGUAGE"}
    }
    facts |= _taken(keyboard | console, _KEYBOARD)
    words = [f"language {facts['lang']}"] if "lang" in facts else []
    layout = facts.get("keyboard_layout") or facts.get("keymap")
    words += [f"keyboard layout {layout}"] if layout else []
    is_known = any(path.exists() for path in files)
    none = "no language or keyboard is set" if is_known else "language and keyboard are not known"
    return {"description": ", ".join(words) or none, **facts}


def system(root: Path, skipped: Skipped) -> Facts:
    """Return the distribution, its version and the end of its support."""
    files = (root / "etc/os-release", root / "usr/lib/os-release")
    values = _assignments(files[0], skipped) or _assignments(files[1], skipped)
    facts = _taken(values, _OS_RELEASE)
    if "end_of_support" not in facts and (end := _end_of_support(root, facts)):
        facts["end_of_support"] = end
    name = facts.get("pretty_name") or facts.get("id") or "unknown"
    return {"description": f"operating system, Linux distribution and release: {name}", **facts}


def _end_of_support(root: Path, facts: Mapping[str, str]) -> str:
    """Return the end of support from the table of the package distro-info-data; else empty."""
    name = facts.get("id", "")
    if not name.isalnum():
        return ""
    rows = csv.DictReader(split_lines(text_of(root / f"usr/share/distro-info/{name}.csv")))
    series = facts.get("codename")
    return next((row.get("eol") or "" for row in rows if row.get("series") == series), "")


def _zone_setting(root: Path, skipped: Skipped) -> str:
    """Return the time zone that a file other than /etc/localtime names; empty if none does."""
    lines = split_lines(text_of(root / "etc/timezone", skipped=skipped))
    old = _assignments(root / "etc/sysconfig/clock", skipped)
    names = (*map(_plain, lines[:1]), old.get("ZONE", ""), old.get("TIMEZONE", ""))
    return next((name for name in names if name), "")


def _taken(values: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that have values, by field name."""
    return {name: values[key] for key, name in names.items() if values.get(key)}


def _assignments(path: Path, skipped: Skipped) -> dict[str, str]:
    """Return the variables of a file with shell-quoted NAME=value lines."""
    found: dict[str, str] = {}
    for number, row in enumerate(split_lines(text_of(path, skipped=skipped)), 1):
        line = _plain(row)
        name, _, value = line.partition("=")
        if _NAME.fullmatch(name) and "=" in line:
            # redact first: without its quotes a secret may go unrecognised
            found[name] = _unquoted(redact_text(value))
        elif line and line[0] not in "#;":
            skipped.line(path, number)
    return found


def _plain(line: str) -> str:
    """Return a line without surrounding white space and carriage returns."""
    return line.strip(f"{BLANKS}\r\n")


def _unquoted(value: str) -> str:
    try:
        return " ".join(shlex.split(value))
    except ValueError:  # an unbalanced quotation mark
        return value
