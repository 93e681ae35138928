"""Facts about the kernel and the machine, from /proc and /sys."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from opdbus.observe.core.file_reading import text_of
from opdbus.observe.core.skipped import Skipped
from opdbus.observe.host.host_facts import Facts
from opdbus.platform.lines import join_words, split_lines, strip_blanks

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


def kernel(root: Path, skipped: Skipped) -> Facts:
    """Return the kernel's release, version and taints."""
    folder = root / "proc/sys/kernel"
    release, version = (strip_blanks(text_of(folder / name)) for name in ("osrelease", "version"))
    taints = _taints(folder / "tainted", skipped)
    facts: Facts = {
        "release": release,
        "version": version,
        "architecture": os.uname().machine,
        "taints": [*taints] if taints is not None else "",
        "tainted": bool(taints) if taints is not None else "",
    }
    facts = {name: value for name, value in facts.items() if value != ""}
    warning = f", tainted: {', '.join(taints)}" if taints else ""
    name = f"Linux kernel {release}".rstrip(" ")
    return {"description": f"{name}, {facts['architecture']}{warning}", **facts}


def hardware(root: Path, virtualization: str | None, skipped: Skipped) -> Facts:
    """Return hardware facts; `virtualization` is "" for none, None if unknown."""
    processors = text_of(root / "proc/cpuinfo", skipped=skipped)
    described = _described(processors)
    facts: Facts = {**_product(root, described), **_firmware(root)}
    if model := next((described[key] for key in _MODELS if described.get(key)), ""):
        facts["cpu"] = join_words(model)
    if count := _count(processors) or _online(root, skipped):
        facts["cpus"] = count
    text = text_of(root / "proc/meminfo", skipped=skipped)
    if memory := _MEMORY.search(text):
        facts["memory_gb"] = round(int(memory[1]) / (1 << 20), 1)
    elif text:
        skipped.file(root / "proc/meminfo")
    if virtualization is not None:
        facts["virtualization"] = virtualization or "none"
    return {"description": _description(facts), **facts}


def _described(processors: str) -> dict[str, str]:
    """Return the first value of each key of /proc/cpuinfo."""
    found: dict[str, str] = {}
    for line in split_lines(processors):
        key, _, value = line.partition(":")
        found.setdefault(strip_blanks(key), strip_blanks(value))
    return found


def _count(processors: str) -> int:
    """Return the number of processors in /proc/cpuinfo; 0 if none has a number."""
    rows = map(_PROCESSOR.fullmatch, split_lines(processors))
    return len({row[1] or row[2] for row in rows if row} - {""})


def _online(root: Path, skipped: Skipped) -> int:
    """Return the number of processors in a list such as `0-3,8`; 0 if there is none."""
    path = root / "sys/devices/system/cpu/online"
    count = 0
    for part in strip_blanks(text := text_of(path, skipped=skipped)).split(","):
        first, _, last = part.partition("-")
        if not all(
            word.isascii() and word.isdecimal() and len(word) < 6 for word in {first, last or first}
        ):
            if text:
                skipped.line(path, 1)
            return 0
        count += int(last or first) - int(first) + 1
    return count


def _product(root: Path, processors: Mapping[str, str]) -> dict[str, str]:
    folder = root / "sys/class/dmi/id"
    found = {name: strip_blanks(text_of(folder / file)) for file, name in _DMI.items()}
    # boards without DMI tables have a name in the device tree
    tree = text_of(root / "proc/device-tree/model").strip("\0\n ")
    board = next((processors[key] for key in _BOARDS if processors.get(key)), "")
    found["product"] = found["product"] or tree or board
    return {name: value for name, value in found.items() if value}


def _firmware(root: Path) -> dict[str, str]:
    if (root / "sys/firmware/efi").exists():
        return {"firmware": "UEFI"}
    return {"firmware": "BIOS"} if (root / "sys/class/dmi").exists() else {}


def _description(facts: Mapping[str, object]) -> str:
    machine = " ".join(str(facts[key]) for key in ("vendor", "product") if key in facts)
    words = [machine or "this machine"]
    processors = [f"{facts['cpus']} processors"] if "cpus" in facts else []
    words.append(" ".join([*processors, *([str(facts["cpu"])] if "cpu" in facts else [])]))
    words += [f"{facts['memory_gb']} GB memory"] if "memory_gb" in facts else []
    virtual = facts.get("virtualization", "none")
    words += [f"virtual machine or container ({virtual})"] if virtual != "none" else []
    words += [str(facts["firmware"])] if "firmware" in facts else []
    return ", ".join(filter(None, words))


def _taints(path: Path, skipped: Skipped) -> list[str] | None:
    """Return the kernel's taints, unnamed ones as `bit N`; None if unknown."""
    text = strip_blanks(text_of(path, skipped=skipped))
    if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS):
        if text:
            skipped.line(path, 1)
        return None
    number = int(text)
    bits = (bit for bit in range(number.bit_length()) if number >> bit & 1)
    return [_TAINTS.get(bit, f"bit {bit}") for bit in bits]
