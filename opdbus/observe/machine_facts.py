"""Facts about the kernel and the machine, from /proc and /sys."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from opdbus.observe.host_facts import Facts
from opdbus.observe.reading import text_of

# Bits of /proc/sys/kernel/tainted, as the kernel's admin guide numbers them.
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
# In /sys/class/dmi/id, all readable without privileges; serial numbers are not.
_DMI: Final = {
    "sys_vendor": "vendor",
    "product_name": "product",
    "board_name": "board",
    "bios_version": "firmware_version",
    "bios_date": "firmware_date",
}
_PROCESSOR = re.compile(r"^(?:model name|cpu model|Model|Hardware)\s*:\s*(.+)$", re.MULTILINE)
_MEMORY = re.compile(r"^MemTotal:\s*(\d{1,18}) kB", re.MULTILINE)


def kernel(root: Path) -> Facts:
    """Return the kernel's release and its warnings."""
    folder = root / "proc/sys/kernel"
    release = text_of(folder / "osrelease").strip()
    facts = {
        "release": release,
        "version": text_of(folder / "version").strip(),
        "architecture": os.uname().machine,
        "taints": (taints := _taints(text_of(folder / "tainted"))),
        "tainted": bool(taints),
    }
    warning = f", tainted: {', '.join(taints)}" if taints else ""
    return {"description": f"Linux kernel {release}, {facts['architecture']}{warning}", **facts}


def hardware(root: Path, virtualization: str | None) -> Facts:
    """Return what the machine is; `virtualization` is "" for none, None if unknown."""
    facts: Facts = {**_product(root), **_firmware(root)}
    processors = text_of(root / "proc/cpuinfo")
    if model := _PROCESSOR.search(processors):
        facts["cpu"] = " ".join(model[1].split())
    facts["cpus"] = len(re.findall(r"^processor\s*:", processors, re.MULTILINE))
    if memory := _MEMORY.search(text_of(root / "proc/meminfo")):
        facts["memory_gb"] = round(int(memory[1]) / (1 << 20), 1)
    if virtualization is not None:
        facts["virtualization"] = virtualization or "none"
    return {"description": _description(facts), **facts}


def _product(root: Path) -> dict[str, str]:
    folder = root / "sys/class/dmi/id"
    found = {name: text_of(folder / file).strip() for file, name in _DMI.items()}
    # boards without such a table name themselves in the device tree
    found["product"] = found["product"] or text_of(root / "proc/device-tree/model").strip("\0\n ")
    return {name: value for name, value in found.items() if value}


def _firmware(root: Path) -> dict[str, str]:
    if (root / "sys/firmware/efi").exists():
        return {"firmware": "UEFI"}
    return {"firmware": "BIOS"} if (root / "sys/class/dmi").exists() else {}


def _description(facts: Mapping[str, object]) -> str:
    machine = " ".join(str(facts[key]) for key in ("vendor", "product") if key in facts)
    words = [machine or "this machine"]
    words += [f"{facts['cpus']} processors {facts.get('cpu', '')}".strip()]
    words += [f"{facts['memory_gb']} GB memory"] if "memory_gb" in facts else []
    virtual = facts.get("virtualization", "none")
    words += [f"virtual machine or container ({virtual})"] if virtual != "none" else []
    return ", ".join([*words, *([str(facts["firmware"])] if "firmware" in facts else [])])


def _taints(text: str) -> list[str]:
    number = int(text) if text.strip().isdecimal() and len(text) < 20 else 0
    return [meaning for bit, meaning in _TAINTS.items() if number >> bit & 1]
