"""Observer of devices: PCI, USB, and block devices such as disks and partitions."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from opdbus.history.change import Why
from opdbus.observe.core.file_reading import files_in, in_thread, text_of
from opdbus.observe.core.lookup_cache import LookupCache
from opdbus.observe.core.pace import Seldom
from opdbus.observe.core.report import Absent, Observer, Report
from opdbus.observe.core.skipped import Skipped
from opdbus.observe.kernel import device_classes
from opdbus.observe.kernel.hwdb import PLACES, Database
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
_PCI_CLASS: Final = "ID_PCI_SUBCLASS_FROM_DATABASE"

Properties = dict[str, Json]


@dataclass(frozen=True, slots=True)
class Devices:
    """Observer of devices; lists all of them again after each kernel event."""

    events: Uevents = field(default_factory=Uevents)
    sys: Path = Path("/sys")
    databases: tuple[Path, ...] = PLACES
    # By the device's name in the hardware database: its properties there.
    known: LookupCache[str, Mapping[str, str]] = field(default_factory=lambda: LookupCache({}))
    # From the last listing ("device") and the last read of the database ("database").
    skipped: dict[str, Skipped] = field(default_factory=dict)

    async def observe(self, report: Report) -> None:
        """Follow the host's devices; raises Absent and LostSource."""
        cause, named = "", frozenset[str]()
        # Events without a change in properties are reported at most once a minute for each device.
        told = Seldom(_EVENT_SECONDS)
        with self.events.follow(*_FOLDERS) as events:
            while True:
                found = await in_thread(self._list)
                for part, skipped in self.skipped.items():
                    report.skip(part, skipped)
                late = f"read every minute: {events.missing}" if events.missing else ""
                report.busy("; ".join(filter(None, [*_limits(found), late])))
                for kind, devices in found.items():
                    report.replace(kind, devices, cause)
                    for name in told.due(named & devices.keys()):
                        report.put(kind, name, devices[name], Why(cause, is_event=True))
                named = frozenset(await events.changed())
                cause = CAUSE

    def _list(self) -> dict[str, dict[str, Properties]]:
        """Return the properties of devices by kind and name; raises Absent."""
        if not (self.sys / "class").is_dir():
            raise Absent(f"there is no {self.sys}/class")
        paths = {k: files_in(self.sys / folder)[:_MAX_DEVICES] for k, folder in _FOLDERS.items()}
        self._look_up([*paths["pci"], *paths["usb"]])
        self.skipped["device"] = skipped = Skipped()
        block = partial(_block, skipped=skipped)
        readers: dict[str, Callable[[Path], Properties]]
        readers = {"pci": self._pci, "usb": self._usb, "block": block}
        return {
            kind: {path.name: told for path in found if (told := readers[kind](path))}
            for kind, found in paths.items()
        }

    def _look_up(self, paths: Iterable[Path]) -> None:
        """Update the vendor and model names; the database is read only if there are new devices."""
        wanted = {name for path in paths if (name := _database_name(path))}
        if self.known.lacks(wanted):
            self.skipped["database"] = skipped = Skipped()
            database = Database.read(self.databases, skipped)
            self.known.learn(wanted, {name: database.find(name) for name in wanted})

    def _pci(self, path: Path) -> Properties:
        said = self.known.get(_database_name(path), {})
        number = _attribute(path, "class").removeprefix("0x")
        unnamed = f"device of the class {number}" if number else ""
        return _described(
            {
                "type": device_classes.of_pci(number) or said.get(_PCI_CLASS) or unnamed,
                "class": said.get(_PCI_CLASS, ""),
                "vendor": said.get(_VENDOR) or _attribute(path, "vendor"),
                "model": said.get(_MODEL) or _attribute(path, "device"),
                "driver": _link(path / "driver"),
                "parent": _parent(path),
            }
        )

    def _usb(self, path: Path) -> Properties:
        if ":" in path.name:  # an interface of a device
            return {}
        said = self.known.get(_database_name(path), {})
        interfaces = [
            one for one in files_in(path.resolve()) if one.name.startswith(path.name + ":")
        ]
        drivers = {_link(interface / "driver") for interface in interfaces} - {""}
        return _described(
            {
                "type": _usb_type(path, interfaces),
                "vendor": said.get(_VENDOR)
                or _attribute(path, "manufacturer")
                or _attribute(path, "idVendor"),
                "model": said.get(_MODEL)
                or _attribute(path, "product")
                or _attribute(path, "idProduct"),
                "driver": ", ".join(sorted(drivers)),
                "parent": _parent(path),
            }
        )


def _limits(found: Mapping[str, Mapping[str, Properties]]) -> Iterator[str]:
    for kind, devices in found.items():
        if len(devices) >= _MAX_DEVICES:
            yield f"{kind}: there are more than {_MAX_DEVICES:,} devices"


def _block(path: Path, skipped: Skipped) -> Properties:
    """Return the properties of a block device; none if it is hidden or an empty virtual device."""
    size = _attribute(path, "size")
    sectors = _number(size)
    if sectors is None and size:
        skipped.line(path / "size", 1)
    has_hardware = (path / "device").exists()
    if not (sectors or has_hardware) or _attribute(path, "hidden") == "1":
        return {}
    is_part = (path / "partition").exists()
    disk = path.resolve().parent if is_part else path
    made_by = _attribute(path / "device", "vendor")
    found = {
        "type": device_classes.of_block(path.name, disk, is_partition=is_part),
        "size_gb": None if sectors is None else round(sectors * _SECTOR_BYTES / 1e9, 3),
        # virtio disks have a number here
        "vendor": "" if is_part or made_by.startswith("0x") else made_by,
        "model": "" if is_part else _attribute(path / "device", "model"),
        "label": _attribute(path / "dm", "name"),
        "file": _attribute(path / "loop", "backing_file"),
        "parent": disk.name if is_part else _parent(path),
        "on": _names(path / "slaves"),
        "used_by": _names(path / "holders"),
        "read_only": _attribute(path, "ro") == "1",
        "removable": _attribute(disk, "removable") == "1",
    }
    return _described(found, "" if sectors is None else f"{found['size_gb']:g} GB")


def _described(found: Mapping[str, Json], size: str = "") -> Properties:
    """Return the properties that have values, with a one-line description in front."""
    names = (found.get(key) for key in ("vendor", "model", "label", "file"))
    name = " ".join(str(value) for value in names if value)
    words = [name, str(found["type"]), str(found.get("class", "")), size]
    whole = [f"part of {found['parent']}"] if found["type"] == "partition" else []
    description = ", ".join(dict.fromkeys(word for word in (*words, *whole) if word))
    told = {key: value for key, value in found.items() if value not in ("", [], None)}
    return {"description": description, **told}


def _database_name(path: Path) -> str:
    """Return the device's key in the hardware database; empty if it is not listed there."""
    if vendor := _attribute(path, "idVendor"):
        return f"usb:v{vendor.upper()}p{_attribute(path, 'idProduct').upper()}:"
    alias = _attribute(path, "modalias")
    return alias if alias.startswith("pci:") else ""


def _usb_type(path: Path, interfaces: list[Path]) -> str:
    codes = [_attribute(path, f"bDevice{part}") for part in ("Class", "Protocol")]
    every = [codes] + [
        [_attribute(one, f"bInterface{part}") for part in ("Class", "Protocol")]
        for one in interfaces
    ]
    found = (device_classes.of_usb(*one) for one in every)
    return ", ".join(dict.fromkeys(word for word in found if word))


def _names(folder: Path) -> list[Json]:
    return [path.name for path in files_in(folder)[:_MAX_LISTED]]


def _attribute(folder: Path, name: str) -> str:
    return join_words(text_of(folder / name, _MAX_ATTRIBUTE))


def _link(path: Path) -> str:
    try:
        return path.readlink().name
    except OSError:
        return ""


def _parent(path: Path) -> str:
    """Return the nearest PCI or USB ancestor of a device, such as its controller or hub."""
    return next(
        (above.name for above in path.resolve().parents if _ADDRESS.fullmatch(above.name)), ""
    )


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else None


def observer(events: Uevents) -> Observer:
    """Return the observer; other observers share `events`."""
    return Observer("devices", "devices", Devices(events).observe)
