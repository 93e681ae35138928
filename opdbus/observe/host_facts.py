"""Facts about the host from its files; each fact is one object."""

import csv
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeAlias

from opdbus.observe.reading import text_of
from opdbus.state.object import Json
from opdbus.state.redact import redact_text

Facts: TypeAlias = dict[str, Json]
# A change of one of these files changes a fact.
FILES: Final = (
    *("etc/hostname", "etc/machine-info", "etc/os-release", "etc/locale.conf"),
    *("etc/default/locale", "etc/vconsole.conf", "etc/default/keyboard", "etc/localtime"),
    *("etc/timezone", "etc/adjtime", "run/systemd/timesync/synchronized"),
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
_ZONES: Final = "zoneinfo/"


def hostname(root: Path) -> Facts:
    """Return the host's name, and how its administrator describes it."""
    lines = text_of(root / "etc/hostname").splitlines()
    names = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    # without the file: the name that the network or the hypervisor gave
    name = names[0] if names else text_of(root / "proc/sys/kernel/hostname").strip()
    info = _taken(_assignments(root / "etc/machine-info"), _MACHINE_INFO)
    words = [f"this host is called {name}"]
    words += [f"{key.replace('_', ' ')} {value}" for key, value in info.items()]
    return {"description": ", ".join(words), "hostname": name, **info}


def time(root: Path, service: str | None) -> Facts:
    """Return the time zone and what sets the clock; `service` is "" for none, None if unknown."""
    facts: Facts = {
        "timezone": _timezone(root),
        "rtc_in_local_time": "LOCAL" in text_of(root / "etc/adjtime").split(),
    }
    if service is not None:
        facts["ntp_service"] = service or "none"
    # other services do not tell every user
    if service in {"", _TIMESYNCD}:
        is_synchronized = (root / "run/systemd/timesync/synchronized").exists()
        facts["ntp_synchronized"] = bool(service) and is_synchronized
    words = [f"time zone {facts['timezone']}"]
    words += [f"clock set by {service}"] if service else []
    if facts.get("ntp_synchronized") is False:
        words.append("clock not synchronized with the network")
    return {"description": ", ".join(words), **facts}


def locale(root: Path) -> Facts:
    """Return the language and the keyboard."""
    language = _assignments(root / "etc/locale.conf") or _assignments(root / "etc/default/locale")
    facts = {
        key.lower(): value
        for key, value in language.items()
        if key.startswith("LC_") or key in {"LANG", "LANGUAGE"}
    }
    keyboard = _assignments(root / "etc/default/keyboard")
    facts |= _taken(keyboard | _assignments(root / "etc/vconsole.conf"), _KEYBOARD)
    words = [f"language {facts['lang']}"] if "lang" in facts else []
    layout = facts.get("keyboard_layout") or facts.get("keymap")
    words += [f"keyboard layout {layout}"] if layout else []
    return {"description": ", ".join(words) or "no language or keyboard is set", **facts}


def system(root: Path) -> Facts:
    """Return the distribution, its version and the end of its support."""
    values = _assignments(root / "etc/os-release") or _assignments(root / "usr/lib/os-release")
    facts = _taken(values, _OS_RELEASE)
    if "end_of_support" not in facts and (end := _end_of_support(root, facts)):
        facts["end_of_support"] = end
    name = facts.get("pretty_name") or facts.get("id") or "unknown"
    return {"description": f"operating system, Linux distribution and release: {name}", **facts}


def _end_of_support(root: Path, facts: Mapping[str, str]) -> str:
    """Find the end of support in the table of the package distro-info-data."""
    name = facts.get("id", "")
    if not name.isalnum():
        return ""
    rows = csv.DictReader(text_of(root / f"usr/share/distro-info/{name}.csv").splitlines())
    series = facts.get("codename")
    return next((row.get("eol") or "" for row in rows if row.get("series") == series), "")


def _timezone(root: Path) -> str:
    """Return the zone that the link names, or else the file that Debian also has."""
    try:
        _, is_there, zone = str((root / "etc/localtime").readlink()).partition(_ZONES)
    except OSError:
        is_there = zone = ""
    return zone if is_there else text_of(root / "etc/timezone").strip() or "UTC"


def _taken(values: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
    """Return what is set of some variables, by our names."""
    return {name: values[key] for key, name in names.items() if values.get(key)}


def _assignments(path: Path) -> dict[str, str]:
    """Read NAME=value lines, quoted as a shell has them."""
    # secrets first: without its quotes one may look harmless
    rows = (line.partition("=") for line in text_of(path).splitlines() if line[:1] != "#")
    return {key.strip(): _unquoted(redact_text(value)) for key, is_one, value in rows if is_one}


def _unquoted(value: str) -> str:
    try:
        return " ".join(shlex.split(value))
    except ValueError:  # a quotation mark without its partner
        return value.strip()
