"""Observer of devices: PCI, USB, and block devices such as disks and partitions."""

import re
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Final

from opdbus.history.change import Cause
from opdbus.observe.core.file_reading import files_in, in_thread, read_at_most, text_of
from opdbus.observe.core.lookup_cache import LookupCache
from opdbus.observe.core.pace import Seldom
from opdbus.observe.core.report import Absent, Observer, Report
from opdbus.observe.core.skipped import Skipped
from opdbus.observe.kernel.uevents import CAUSE, Uevents
from opdbus.platform.lines import join_words
from opdbus.state.object import Json

# The sysfs folder of each kind.
_FOLDERS: Final = {"pci": "bus/pci/devices", "usb": "bus/usb/devices", "block": "class/block"}
_MAX_DEVICES: Final = 5_000
_EVENT_SECONDS: Final = 60.0
_MAX_ATTRIBUTE: Final = 256
_MAX_LISTED: Final = 50
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]|\d+-[\d.]+|usb\d+")
_SECTOR_BYTES: Final = 512
_VENDOR, _MODEL = "ID_VENDOR_FROM_DATABASE", "ID_MODEL_FROM_DATABASE"
# By the leading hexadecimal digits of the PCI class (see pci_ids.h). The longest match wins.
_PCI_CLASSES: Final = {
    "0101": "IDE storage controller", "0106": "SATA storage controller", "0108": "NVMe disk",
    "0104": "RAID controller", "01": "storage controller", "0280": "wireless network card",
    "02": "network card", "03": "graphics card", "0401": "sound card", "0403": "sound card",
    "04": "multimedia controller", "05": "memory controller", "06": "bridge",
    "07": "communication controller", "0805": "card reader", "08": "system peripheral",
    "09": "input device", "0c03": "USB controller", "0c05": "SMBus controller",
    "0c": "serial bus controller", "0d": "wireless controller", "10": "encryption controller",
    "11": "signal processing controller", "12": "processing accelerator",
}  # fmt: skip
# By the class, or the class and the protocol, of a device or one of its interfaces.
_USB_CLASSES: Final = {
    "01": "audio device", "02": "communication device", "0301": "keyboard", "0302": "mouse",
    "03": "input device", "06": "camera", "07": "printer", "08": "storage device", "09": "hub",
    "0b": "smart card reader", "0d": "security device", "0e": "camera", "11": "billboard",
    "e001": "Bluetooth adapter", "e0": "wireless adapter",
}  # fmt: skip
# By the beginning of a block device's name.
_BLOCK_NAMES: Final = {
    "loop": "loop device", "sr": "optical drive", "md": "software RAID", "zram":
    "compressed memory", "ram": "memory disk", "nbd": "network block device", "rbd":
    "network block device", "mmcblk": "memory card", "drbd": "replicated disk", "fd": "floppy disk",
    "mtdblock": "flash memory", "pmem": "persistent memory", "bcache": "cached disk",
    "zd": "ZFS volume",
}  # fmt: skip
# By the beginning of the device-mapper uuid.
_MAPPED_BY: Final = {
    "LVM-": "logical volume",
    "CRYPT-": "encrypted volume",
    "mpath-": "multipath disk",
}
_ROTATING: Final = {"0": "solid state disk", "1": "hard disk"}
_ROTATION_PREFIXES: Final = ("sd", "hd", "nvme")
# Hypervisors report their disks as rotational.
_HYPERVISORS: Final = ("virtual", "qemu", "vbox", "vmware", "msft")

# Files of udev's hardware database; as in systemd, only the first that exists is read.
_DATABASES: Final = tuple(
    Path(folder, "hwdb.bin")
    for folder in "/etc/systemd/hwdb /etc/udev /usr/lib/systemd/hwdb /usr/lib/udev".split()
)
# The file of 2026 has 13 MiB.
_MAX_DATABASE_BYTES: Final = 64 << 20
_SIGNATURE: Final = b"KSLPHHRH"
# The header has the sizes of nodes, children and values, and the offset of the root.
_HEADER: Final = struct.Struct("<8s16xQQQQQ")
_NODE: Final = struct.Struct("<QB7xQ")
_CHILD: Final = struct.Struct("<B7xQ")
_VALUE: Final = struct.Struct("<QQ")
_MAX_TEXT: Final = 512
# Nodes visited in one lookup: a corrupt database may contain cycles.
_MAX_STEPS: Final = 50_000
_WILD: Final = re.compile(r"[*?\[]")

Properties = dict[str, Json]


class Database:
    """udev's hardware database in memory, see hwdb(7). Corrupt parts yield no results."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._steps = 0
        self._root = 0
        if content[: len(_SIGNATURE)] == _SIGNATURE and len(content) >= _HEADER.size:
            _, _, self._node, self._child, self._value, self._root = _HEADER.unpack_from(content)

    @classmethod
    def read(cls, places: tuple[Path, ...], skipped: Skipped) -> "Database":
        """Read the first file that exists; return an empty database if there is none."""
        for path in places:
            try:
                content, is_cut = read_at_most(path, _MAX_DATABASE_BYTES)
            except OSError:
                continue
            found = cls(b"" if is_cut else content)
            if not found._root:
                skipped.file(path)
            return found
        return cls(b"")

    def find(self, modalias: str) -> Mapping[str, str]:
        """Return the properties of a device, such as ID_VENDOR_FROM_DATABASE."""
        if not self._root:
            return {}
        self._steps = 0
        found: dict[str, str] = {}
        try:
            for key, value in self._matching(self._root, "", modalias):
                # keys begin with a space
                found[self._text(key)[1:]] = self._text(value)
        except (struct.error, IndexError, OverflowError, RecursionError):
            return {}
        return found

    def _matching(self, offset: int, before: str, wanted: str) -> Iterator[tuple[int, int]]:
        """Yield the values of matching patterns below a node; `before` is the pattern above it."""
        self._steps += 1
        if self._steps > _MAX_STEPS:
            raise IndexError
        prefix, child_count, value_count = _NODE.unpack_from(self._content, offset)
        pattern = before + (self._text(prefix) if prefix else "")
        # only if the part before the first wildcard matches
        if not wanted.startswith(_WILD.split(pattern, maxsplit=1)[0]):
            return
        children = offset + self._node
        values = children + child_count * self._child
        if value_count and fnmatchcase(wanted, pattern):
            for number in range(min(value_count, _MAX_TEXT)):
                yield _VALUE.unpack_from(self._content, values + number * self._value)
        for number in range(child_count):
            char, child = _CHILD.unpack_from(self._content, children + number * self._child)
            yield from self._matching(child, pattern + chr(char), wanted)

    def _text(self, offset: int) -> str:
        text = self._content[offset : offset + _MAX_TEXT].partition(b"\0")[0]
        return text.decode(errors="replace")


@dataclass(frozen=True, slots=True)
class Devices:
    """Observer of devices; lists all of them again after each kernel event."""

    events: Uevents = field(default_factory=Uevents)
    sys: Path = Path("/sys")
    databases: tuple[Path, ...] = _DATABASES
    # By the device's name in the hardware database: its properties there.
    known: LookupCache[str, Mapping[str, str]] = field(default_factory=lambda: LookupCache({}))
    # From the last listing ("device") and the last read of the database ("database").
    skipped: dict[str, Skipped] = field(default_factory=dict)

    async def observe(self, report: Report) -> None:
        """Follow the host's devices; raises Absent and LostSource."""
        cause, named = "", frozenset[str]()
        # Events without a change in properties are reported at most once a minute for each device.
        reported = Seldom(_EVENT_SECONDS)
        with self.events.follow(*_FOLDERS) as events:
            while True:
                found = await in_thread(self._list)
                for part, skipped in self.skipped.items():
                    report.skip(part, skipped)
                limits = [
                    f"{kind}: there are more than {_MAX_DEVICES:,} devices"
                    for kind, devices in found.items()
                    if len(devices) >= _MAX_DEVICES
                ]
                limits += [f"read every minute: {events.missing}"] if events.missing else []
                report.busy("; ".join(limits))
                for kind, devices in found.items():
                    report.replace(kind, devices, cause)
                    for name in reported.due(named & devices.keys()):
                        report.put(kind, name, devices[name], Cause(cause, is_event=True))
                named = frozenset(await events.wait_for_events())
                cause = CAUSE

    def _list(self) -> dict[str, dict[str, Properties]]:
        """Return the properties of devices by kind and name; raises Absent."""
        if not (self.sys / "class").is_dir():
            raise Absent(f"there is no {self.sys}/class")
        paths = {k: files_in(self.sys / folder)[:_MAX_DEVICES] for k, folder in _FOLDERS.items()}
        wanted = {key for path in (*paths["pci"], *paths["usb"]) if (key := _database_key(path))}
        # the database is read only if there are new devices
        if self.known.lacks(wanted):
            self.skipped["database"] = Skipped()
            database = Database.read(self.databases, self.skipped["database"])
            self.known.learn(wanted, {key: database.find(key) for key in wanted})
        self.skipped["device"] = Skipped()
        readers: dict[str, Callable[[Path], Properties]] = {
            "pci": self._read_pci,
            "usb": self._read_usb,
            "block": partial(_read_block, skipped=self.skipped["device"]),
        }
        return {
            kind: {path.name: found for path in folder if (found := readers[kind](path))}
            for kind, folder in paths.items()
        }

    def _read_pci(self, path: Path) -> Properties:
        known = self.known.get(_database_key(path), {})
        number = _attribute(path, "class").removeprefix("0x")
        class_name = known.get("ID_PCI_SUBCLASS_FROM_DATABASE", "")
        unnamed = f"device of the class {number}" if number else ""
        return _describe(
            {
                "type": name_pci_class(number) or class_name or unnamed,
                "class": class_name,
                "vendor": known.get(_VENDOR) or _attribute(path, "vendor"),
                "model": known.get(_MODEL) or _attribute(path, "device"),
                "driver": _link(path / "driver"),
                "parent": _parent(path),
            }
        )

    def _read_usb(self, path: Path) -> Properties:
        if ":" in path.name:  # an interface of a device
            return {}
        known = self.known.get(_database_key(path), {})
        interfaces = [
            one for one in files_in(path.resolve()) if one.name.startswith(path.name + ":")
        ]
        types = []
        for one, prefix in ((path, "bDevice"), *((one, "bInterface") for one in interfaces)):
            number = _attribute(one, f"{prefix}Class")
            by_protocol = _USB_CLASSES.get(number + _attribute(one, f"{prefix}Protocol"))
            types.append(by_protocol or _USB_CLASSES.get(number, ""))
        drivers = {_link(interface / "driver") for interface in interfaces} - {""}
        return _describe(
            {
                "type": ", ".join(dict.fromkeys(filter(None, types))),
                "vendor": known.get(_VENDOR)
                or _attribute(path, "manufacturer")
                or _attribute(path, "idVendor"),
                "model": known.get(_MODEL)
                or _attribute(path, "product")
                or _attribute(path, "idProduct"),
                "driver": ", ".join(sorted(drivers)),
                "parent": _parent(path),
            }
        )


def name_pci_class(number: str) -> str:
    """Return the plain name of a PCI class such as `030000`; empty if it has none."""
    return next((_PCI_CLASSES[number[:n]] for n in (4, 2) if number[:n] in _PCI_CLASSES), "")


def _read_block(path: Path, skipped: Skipped) -> Properties:
    """Return the properties of a block device; none if it is hidden or an empty virtual device."""
    size = _attribute(path, "size")
    is_number = size.isascii() and size.isdecimal() and len(size) < 20
    if size and not is_number:
        skipped.line(path / "size", 1)
    has_hardware = (path / "device").exists()
    is_empty = not is_number or int(size) == 0
    if (is_empty and not has_hardware) or _attribute(path, "hidden") == "1":
        return {}
    is_part = (path / "partition").exists()
    disk = path.resolve().parent if is_part else path
    vendor = _attribute(path / "device", "vendor")
    gigabytes = round(int(size) * _SECTOR_BYTES / 1e9, 3) if is_number else None
    found = {
        "type": "partition" if is_part else _block_type(path),
        "size_gb": gigabytes,
        # virtio disks have a number here
        "vendor": "" if is_part or vendor.startswith("0x") else vendor,
        "model": "" if is_part else _attribute(path / "device", "model"),
        "label": _attribute(path / "dm", "name"),
        "file": _attribute(path / "loop", "backing_file"),
        "parent": disk.name if is_part else _parent(path),
        "on": [inner.name for inner in files_in(path / "slaves")[:_MAX_LISTED]],
        "used_by": [inner.name for inner in files_in(path / "holders")[:_MAX_LISTED]],
        "read_only": _attribute(path, "ro") == "1",
        "removable": _attribute(disk, "removable") == "1",
    }
    return _describe(found, "" if gigabytes is None else f"{gigabytes:g} GB")


def _block_type(path: Path) -> str:
    """Return the plain name of a whole block device, by its folder in sysfs."""
    if path.name.startswith("dm-"):
        uuid = text_of(path / "dm/uuid", 64)
        return next((w for start, w in _MAPPED_BY.items() if uuid.startswith(start)), "mapped disk")
    if word := _BLOCK_NAMES.get(path.name.rstrip("0123456789")):
        return word
    maker = " ".join(text_of(path / "device" / part, 64) for part in ("vendor", "model")).lower()
    if path.name.startswith(_ROTATION_PREFIXES) and not any(w in maker for w in _HYPERVISORS):
        return _ROTATING.get(_attribute(path, "queue/rotational"), "disk")
    return "disk"


def _describe(found: Mapping[str, Json], size: str = "") -> Properties:
    """Return the properties that have values, with a one-line description in front."""
    names = (found.get(key) for key in ("vendor", "model", "label", "file"))
    name = " ".join(str(value) for value in names if value)
    words = [name, str(found["type"]), str(found.get("class", "")), size]
    words += [f"part of {found['parent']}"] if found["type"] == "partition" else []
    description = ", ".join(dict.fromkeys(filter(None, words)))
    values = {key: value for key, value in found.items() if value not in ("", [], None)}
    return {"description": description, **values}


def _database_key(path: Path) -> str:
    """Return the device's key in the hardware database; empty if it is not listed there."""
    if vendor := _attribute(path, "idVendor"):
        return f"usb:v{vendor.upper()}p{_attribute(path, 'idProduct').upper()}:"
    alias = _attribute(path, "modalias")
    return alias if alias.startswith("pci:") else ""


def _attribute(folder: Path, name: str) -> str:
    return join_words(text_of(folder / name, _MAX_ATTRIBUTE))


def _link(path: Path) -> str:
    try:
        return path.readlink().name
    except OSError:
        return ""


def _parent(path: Path) -> str:
    """Return the nearest PCI or USB ancestor of a device, such as its controller or hub."""
    above = (parent.name for parent in path.resolve().parents)
    return next(filter(_ADDRESS.fullmatch, above), "")


def observer(events: Uevents) -> Observer:
    """Return the observer; other observers share `events`."""
    return Observer("devices", "devices", Devices(events).observe)
