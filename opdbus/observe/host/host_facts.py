"""Observer of facts about the host: name, time, language, distribution, kernel and hardware."""

import asyncio
import csv
import os
import re
import shlex
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeAlias

from opdbus.observe.core.file_reading import changes_of_kernel, in_thread, read_at_most, text_of
from opdbus.observe.core.report import Absent, Observer, Report
from opdbus.observe.core.skipped import Skipped
from opdbus.observe.systemd import pid1
from opdbus.observe.systemd.pid1 import Pid1
from opdbus.platform.lines import BLANKS, join_words, split_lines, strip_blanks
from opdbus.platform.tasks import at_most, until_first_ends
from opdbus.state.object import Json
from opdbus.state.redact import redact_text
from opdbus.state.watch import changes

Facts: TypeAlias = dict[str, Json]
# Services that synchronize the clock; at most one of them runs.
_CLOCKS: Final = tuple(
    f"{name}.service"
    for name in "systemd-timesyncd chrony chronyd ntpsec ntpd ntp openntpd".split()
)
# Several files written within this time are one change.
_SETTLE_SECONDS: Final = 0.2
# The interval of attempts to reach systemd, and of readings of the uptime.
_RETRY_SECONDS: Final = 60.0
# The facts are read again when one of these files changes.
_FILES: Final = (
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
# The name in force; it may come from the network, or be set until the next boot.
_NAME_IN_FORCE: Final = "proc/sys/kernel/hostname"
_NAME: Final = re.compile("[A-Za-z_][A-Za-z0-9_]*")
# The kernel's host name before one is set.
_NO_NAME: Final = "(none)"
# By the bits of /proc/sys/kernel/tainted; see the kernel's admin guide.
_TAINTS: Final = {
    0: "a proprietary module was loaded",
    1: "a module was loaded by force",
    2: "the processor is not meant for this kernel",
    3: "a module was removed by force",
    4: "the processor reported a hardware fault",
    5: "a memory page was bad",
    6: "a program asked for it",
    7: "the kernel had an oops",
    8: "firmware tables were overridden",
    9: "the kernel gave a warning",
    10: "a module from staging was loaded",
    11: "a defect of the firmware was worked around",
    12: "a module from outside the kernel was loaded",
    13: "an unsigned module was loaded",
    14: "a soft lockup happened",
    15: "the kernel was patched while running",
}
# Files in /sys/class/dmi/id that all users may read; those of serial numbers are not.
_DMI: Final = {
    "sys_vendor": "vendor",
    "product_name": "product",
    "board_name": "board",
    "bios_version": "firmware_version",
    "bios_date": "firmware_date",
}
# What makers leave there instead of a name.
_PLACEHOLDER: Final = re.compile(
    r"[\[($]*(?:to ?be ?filled.*|(?:fill(?:ed)?|set) by .*|(?:oem )?default(?:[ _]?string.*)?"
    r"|(?:type ?\d[ -]*)?(?:(?:system|base ?board|board|chassis|enclosure|bios|oem)[ _-]*)?"
    r"(?:product|product ?name|product ?config ?id|family|name|manufacturer?|vendor|version|date"
    r"|serial ?number|sku|uuid)"
    r"|type ?\d(?: ?-.*|sku.*)"
    r"|no[tne]*[ -]?(?:specified|applicable|available|defined|present|provided|set|asset).*"
    r"|n\W?a|none|null|unknown?|undefined|unspecified|invalid|empty|all series|tbd\b.*|f{8}"
    r"|<?(?:bad index|out of spec)>?|oem|o\.e\.m\.?|x(?:\.?x)+|0?1?2345678?9?0?|[0\W_]*)[\])]*",
    re.IGNORECASE,
)
# The first line of a processor in /proc/cpuinfo. x86, Arm, RISC-V, POWER, LoongArch and MIPS have
# `processor : 0`, s390 `processor 0: version = ...`, ARC a number in brackets.
_PROCESSOR: Final = re.compile("processor[ \t]*+\\[?([0-9]{0,5})\\]?[ \t]*+:[ \t]*+([0-9]{0,5}).*")
# Keys of a processor's name in /proc/cpuinfo, in order of precedence.
_MODELS: Final = (
    "model name", "cpu model", "Model Name", "cpu", "Processor", "uarch", "vendor_id", "Hardware",
)  # fmt: skip
# Keys of a board's name in /proc/cpuinfo, for machines without DMI tables.
_BOARDS: Final = ("Model", "machine", "system type", "platform")
# A 64-bit number.
_MAX_DIGITS: Final = 20
_MEMORY = re.compile("^MemTotal:[ \t]*([0-9]{1,18}) kB", re.MULTILINE | re.ASCII)
_BOOTED = re.compile("^btime ([0-9]{1,12})$", re.MULTILINE)
_LOCALTIME: Final = "etc/localtime"
_ZONES: Final = "usr/share/zoneinfo"
_IN_ZONES: Final = "zoneinfo/"
_ZONE: Final = re.compile("[A-Za-z0-9_+-]+(?:/[A-Za-z0-9_+-]+){0,3}")
# The beginning of a zone file, see tzfile(5); the largest of 2026 has 4 KiB.
_ZONE_SIGNATURE: Final = b"TZif"
_MAX_ZONE_BYTES: Final = 64 << 10
_RULE: Final = re.compile(
    r"(?:[A-Za-z]{3,10}|<[A-Za-z0-9+-]{3,10}>)[+-]?\d[\w:,./+<>-]{0,80}", re.ASCII
)
# Links to the zone that is set, and a copy for programs that have no rule.
_NO_ZONES: Final = frozenset({"localtime", "posixrules"})
# Folders with copies of all zones, with and without leap seconds.
_ZONE_COPIES: Final = frozenset({"posix", "right"})
_MAX_ZONE_LINKS: Final = 10
_MAX_ZONE_DEPTH: Final = 4
_UNIVERSAL_TIME: Final = ("UTC", "Etc/UTC")


@dataclass(frozen=True, slots=True)
class HostFacts:
    """Observer of the host through files and systemd; activates no other service."""

    root: Path = Path("/")

    async def observe(self, report: Report) -> None:
        """Report all facts after each change of a file or of the time service."""
        while True:
            try:
                async with Pid1() as systemd:
                    report.busy("")
                    ended = pid1.of_manager("JobRemoved")
                    await systemd.subscribe(*(f"{ended},arg2='{name}'" for name in _CLOCKS))
                    await until_first_ends(
                        self._follow_files(report, systemd),
                        self._follow_name(report, systemd),
                        self._follow_clock(report, systemd),
                        self._follow_uptime(report, systemd),
                    )
            except Absent as error:
                report.busy(f"what only systemd knows is not observed: {error}")
                async with at_most(_RETRY_SECONDS):
                    await until_first_ends(
                        self._follow_files(report, None), self._follow_name(report, None)
                    )

    async def _follow_files(self, report: Report, systemd: Pid1 | None) -> None:
        files = [self.root / name for name in _FILES]
        async for _ in changes(*files, settle=_SETTLE_SECONDS):
            await self._report(report, systemd)

    async def _follow_name(self, report: Report, systemd: Pid1 | None) -> None:
        with suppress(OSError):
            async for _ in changes_of_kernel(self.root / _NAME_IN_FORCE):
                await self._report(report, systemd)
        await asyncio.Event().wait()  # there is no such file to follow

    async def _follow_clock(self, report: Report, systemd: Pid1) -> None:
        async for _ in systemd.bursts():
            await self._report(report, systemd)

    async def _follow_uptime(self, report: Report, systemd: Pid1) -> None:
        while True:
            await asyncio.sleep(_RETRY_SECONDS)
            await self._report(report, systemd)

    async def _report(self, report: Report, systemd: Pid1 | None) -> None:
        # "" for none, None if unknown
        virtualization = clock = None
        booted_at = 0.0
        if systemd:  # these queries load no units
            own = await systemd.own_properties()
            virtualization = str(own.get("Virtualization", ""))
            booted_at = int(own.get("UserspaceTimestamp") or 0) / 1e6
            clocks = await systemd.active(_CLOCKS)
            clock = clocks[0].name if clocks else ""
        skipped = Skipped()

        def read() -> dict[str, Facts]:
            return {
                "hostname": read_hostname(self.root, skipped),
                "time": read_time(self.root, clock, skipped) | read_boot(self.root, booted_at),
                "locale": read_locale(self.root, skipped),
                "os": read_distribution(self.root, skipped),
                "kernel": read_kernel(self.root, skipped),
                "hardware": read_hardware(self.root, virtualization, skipped),
            }

        report.replace("fact", await in_thread(read))
        report.skip("fact", skipped)


def read_hostname(root: Path, skipped: Skipped) -> Facts:
    """Return the host name in force, the one of the file, and what machine-info says of the host.

    The file gives the name at a boot. `hostname`, DHCP or a hypervisor may have set another one.
    """
    lines = map(_strip, split_lines(text_of(root / "etc/hostname", skipped=skipped)))
    static = next((line for line in lines if line and not line.startswith("#")), "")
    name = _strip(text_of(root / _NAME_IN_FORCE, skipped=skipped))
    name = static if name in {"", _NO_NAME} else name
    info = _rename(_assignments(root / "etc/machine-info", skipped), _MACHINE_INFO)
    words = [f"this host is called {name}" if name else "the name of this host is not known"]
    named = {"hostname": name} if name else {}
    if static not in {"", name}:
        named["static_hostname"] = static
        words.append(f"/etc/hostname has another name: {static}")
    words += [f"{key.replace('_', ' ')} {value}" for key, value in info.items()]
    return {"description": ", ".join(words), **named, **info}


def read_time(root: Path, service: str | None, skipped: Skipped) -> Facts:
    """Return time zone and time service; `service` is "" for none, None if unknown."""
    adjusted = map(_strip, split_lines(text_of(root / "etc/adjtime", skipped=skipped)))
    # files other than /etc/localtime that may name the zone
    lines = split_lines(text_of(root / "etc/timezone", skipped=skipped))
    old = _assignments(root / "etc/sysconfig/clock", skipped)
    names = (*map(_strip, lines[:1]), old.get("ZONE", ""), old.get("TIMEZONE", ""))
    setting = next(filter(None, names), "")
    facts: Facts = {
        "timezone": find_time_zone(root, setting, skipped) or "unknown",
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


def read_boot(root: Path, booted_at: float) -> Facts:
    """Return when the host was started, and how long ago; by the kernel if systemd does not say."""
    if not booted_at and (found := _BOOTED.search(text_of(root / "proc/stat"))):
        booted_at = float(found[1])
    if not booted_at:
        return {}
    minutes = max(0, int(time.time() - booted_at)) // 60
    spans = (minutes // 1440, "d"), (minutes // 60 % 24, "h"), (minutes % 60, "min")
    uptime = " ".join(f"{count}{unit}" for count, unit in spans if count) or "0min"
    stamp = datetime.fromtimestamp(booted_at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return {"boot_time": stamp, "uptime": uptime}


def read_locale(root: Path, skipped: Skipped) -> Facts:
    """Return the language and the keyboard layout."""
    files = [root / name for name in _OF_LOCALE]
    newer, older, keyboard, console = (_assignments(path, skipped) for path in files)
    language = newer or older
    facts = {
        key.lower(): value
        for key, value in language.items()
        if key.startswith("LC_") or key in {"LANG", "LANGUAGE"}
    }
    facts |= _rename(keyboard | console, _KEYBOARD)
    words = [f"language {facts['lang']}"] if "lang" in facts else []
    layout = facts.get("keyboard_layout") or facts.get("keymap")
    words += [f"keyboard layout {layout}"] if layout else []
    is_known = any(path.exists() for path in files)
    none = "no language or keyboard is set" if is_known else "language and keyboard are not known"
    return {"description": ", ".join(words) or none, **facts}


def read_distribution(root: Path, skipped: Skipped) -> Facts:
    """Return the distribution, its version and the end of its support."""
    files = (root / "etc/os-release", root / "usr/lib/os-release")
    values = _assignments(files[0], skipped) or _assignments(files[1], skipped)
    facts = _rename(values, _OS_RELEASE)
    distribution, series = facts.get("id", ""), facts.get("codename")
    if "end_of_support" not in facts and distribution.isalnum():
        # the table of the package distro-info-data
        table = text_of(root / f"usr/share/distro-info/{distribution}.csv")
        rows = csv.DictReader(split_lines(table))
        if end := next((row.get("eol") for row in rows if row.get("series") == series), ""):
            facts["end_of_support"] = end
    name = facts.get("pretty_name") or facts.get("id") or "unknown"
    return {"description": f"operating system, Linux distribution and release: {name}", **facts}


def read_kernel(root: Path, skipped: Skipped) -> Facts:
    """Return the kernel's release, version and taints."""
    folder = root / "proc/sys/kernel"
    release, version = (strip_blanks(text_of(folder / name)) for name in ("osrelease", "version"))
    taints: list[str] | None = None
    text = strip_blanks(text_of(folder / "tainted", skipped=skipped))
    if text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS:
        bits = (bit for bit in range(int(text).bit_length()) if int(text) >> bit & 1)
        taints = [_TAINTS.get(bit, f"bit {bit}") for bit in bits]
    elif text:
        skipped.line(folder / "tainted", 1)
    facts: Facts = {
        "release": release,
        "version": version,
        "architecture": os.uname().machine,
        "taints": "" if taints is None else list(taints),
        "tainted": "" if taints is None else bool(taints),
    }
    facts = {name: value for name, value in facts.items() if value != ""}
    warning = f", tainted: {', '.join(taints)}" if taints else ""
    name = f"Linux kernel {release}".rstrip(" ")
    return {"description": f"{name}, {facts['architecture']}{warning}", **facts}


def read_hardware(root: Path, virtualization: str | None, skipped: Skipped) -> Facts:
    """Return hardware facts; `virtualization` is "" for none, None if unknown."""
    lines = split_lines(text_of(root / "proc/cpuinfo", skipped=skipped))
    # the first value of each key counts
    processor: dict[str, str] = {}
    for line in lines:
        key, _, value = line.partition(":")
        processor.setdefault(strip_blanks(key), strip_blanks(value))
    folder = root / "sys/class/dmi/id"
    facts: Facts = {
        name: "" if _PLACEHOLDER.fullmatch(text) else text
        for file, name in _DMI.items()
        for text in [strip_blanks(text_of(folder / file))]
    }
    # boards without DMI tables have a name in the device tree
    tree = text_of(root / "proc/device-tree/model").strip("\0\n ")
    board = next((processor[key] for key in _BOARDS if processor.get(key)), "")
    facts["product"] = facts["product"] or tree or board
    facts = {name: value for name, value in facts.items() if value}
    if (root / "sys/firmware/efi").exists():
        facts["firmware"] = "UEFI"
    elif (root / "sys/class/dmi").exists():
        facts["firmware"] = "BIOS"
    if model := next((processor[key] for key in _MODELS if processor.get(key)), ""):
        facts["cpu"] = join_words(model)
    rows = filter(None, map(_PROCESSOR.fullmatch, lines))
    numbers = {row[1] or row[2] for row in rows} - {""}
    if count := len(numbers) or _count_online(root, skipped):
        facts["cpus"] = count
    text = text_of(root / "proc/meminfo", skipped=skipped)
    if memory := _MEMORY.search(text):
        facts["memory_gb"] = round(int(memory[1]) / (1 << 20), 1)
    elif text:
        skipped.file(root / "proc/meminfo")
    if virtualization is not None:
        facts["virtualization"] = virtualization or "none"
    words = [" ".join(str(facts[key]) for key in ("vendor", "product") if key in facts)]
    words[0] = words[0] or "this machine"
    cpus = [f"{facts['cpus']} processors"] if "cpus" in facts else []
    words.append(" ".join([*cpus, str(facts.get("cpu", ""))]).strip(" "))
    words += [f"{facts['memory_gb']} GB memory"] if "memory_gb" in facts else []
    virtual = facts.get("virtualization", "none")
    words += [f"virtual machine or container ({virtual})"] if virtual != "none" else []
    words += [str(facts["firmware"])] if "firmware" in facts else []
    return {"description": ", ".join(filter(None, words)), **facts}


def _count_online(root: Path, skipped: Skipped) -> int:
    """Return the number of processors in a list such as `0-3,8`; 0 if there is none."""
    path = root / "sys/devices/system/cpu/online"
    count = 0
    for part in strip_blanks(text := text_of(path, skipped=skipped)).split(","):
        first, _, last = part.partition("-")
        words = {first, last or first}
        if not all(w.isascii() and w.isdecimal() and len(w) < 6 for w in words):
            if text:
                skipped.line(path, 1)
            return 0
        count += int(last or first) - int(first) + 1
    return count


def find_time_zone(root: Path, setting: str, skipped: Skipped) -> str:
    """Return the time zone; empty if it cannot be found.

    `setting` is the zone that another file names. It is used unless /etc/localtime contradicts it.
    """
    setting = setting if _ZONE.fullmatch(setting) else ""
    # the zone that /etc/localtime links to, also through other links
    path = root / _LOCALTIME
    with suppress(OSError):
        for _ in range(_MAX_ZONE_LINKS):
            target = str(path.readlink())
            _, is_zone, zone = target.rpartition(_IN_ZONES)
            if is_zone and zone:
                return zone.removeprefix("posix/").removeprefix("right/")
            path = root / target[1:] if target.startswith("/") else path.parent / target
    try:
        content, _ = read_at_most(root / _LOCALTIME, _MAX_ZONE_BYTES)
    except FileNotFoundError:
        return setting
    except OSError:
        content = b""
    if not content.startswith(_ZONE_SIGNATURE):
        skipped.file(root / _LOCALTIME)
        return setting
    same = set(_find_same(root / _ZONES, content))
    if setting in same or (setting and not same and _is_older_copy(root, setting, content)):
        return setting
    # of several names of a zone, those in these tables come first
    for table in ("zone1970.tab", "zone.tab"):
        rows = (line.split("\t") for line in split_lines(text_of(root / _ZONES / table)))
        if listed := sorted(same & {row[2] for row in rows if len(row) > 2}):
            return listed[0]
    usual = (zone for zone in _UNIVERSAL_TIME if zone in same)
    # an older copy, or no zones to compare it with: the rule is what the clock follows
    return next(usual, min(same, default="")) or _rule(content)


def _find_same(folder: Path, content: bytes, depth: int = 0, above: str = "") -> Iterator[str]:
    """Yield the zones whose files have this content."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            name = f"{above}{entry.name}"
            if entry.is_dir() and entry.name not in _ZONE_COPIES and depth < _MAX_ZONE_DEPTH:
                yield from _find_same(Path(entry.path), content, depth + 1, f"{name}/")
            elif (
                _ZONE.fullmatch(name)
                and name not in _NO_ZONES
                and entry.is_file()
                and entry.stat().st_size == len(content)
                and read_at_most(Path(entry.path), _MAX_ZONE_BYTES)[0] == content
            ):
                yield name


def _is_older_copy(root: Path, setting: str, content: bytes) -> bool:
    """Return whether content may be an older copy of a zone, by the rule at its end.

    True also on a host without zone files.
    """
    try:
        zone, _ = read_at_most(root / _ZONES / setting, _MAX_ZONE_BYTES)
    except OSError:
        return not (root / _ZONES).is_dir()
    return _rule(zone) == _rule(content) != ""


def _rule(content: bytes) -> str:
    """Return the rule at the end of a zone's file, as in the variable TZ; empty without one."""
    line = content.rpartition(b"\n")[0].rpartition(b"\n")[2]
    text = line.decode(errors="replace") if content.endswith(b"\n") else ""
    return text if _RULE.fullmatch(text) else ""


def _rename(values: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that have values, by field name."""
    return {name: values[key] for key, name in names.items() if values.get(key)}


def _assignments(path: Path, skipped: Skipped) -> dict[str, str]:
    """Return the variables of a file with shell-quoted NAME=value lines."""
    found: dict[str, str] = {}
    for number, row in enumerate(split_lines(text_of(path, skipped=skipped)), 1):
        line = _strip(row)
        name, _, value = line.partition("=")
        if _NAME.fullmatch(name) and "=" in line:
            # redact first: without its quotes a secret may go unrecognised
            found[name] = redact_text(value)
            with suppress(ValueError):  # an unbalanced quotation mark
                found[name] = " ".join(shlex.split(found[name]))
        elif line and line[0] not in "#;":
            skipped.line(path, number)
    return found


def _strip(line: str) -> str:
    """Return a line without surrounding white space and carriage returns."""
    return line.strip(f"{BLANKS}\r\n")


OBSERVER: Final = Observer("host", "system", HostFacts().observe, {"fact": frozenset({"uptime"})})
