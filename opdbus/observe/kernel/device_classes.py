"""Plain names for classes of PCI, USB and block devices."""

from pathlib import Path
from typing import Final

from opdbus.observe.core.file_reading import text_of
from opdbus.platform.lines import strip_blanks

# By the leading hexadecimal digits of the PCI class (see pci_ids.h). The longest match wins.
_PCI: Final = {
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
_USB: Final = {
    "01": "audio device", "02": "communication device", "0301": "keyboard", "0302": "mouse",
    "03": "input device", "06": "camera", "07": "printer", "08": "storage device", "09": "hub",
    "0b": "smart card reader", "0d": "security device", "0e": "camera", "11": "billboard",
    "e001": "Bluetooth adapter", "e0": "wireless adapter",
}  # fmt: skip
# By the beginning of a block device's name.
_BLOCK: Final = {
    "loop": "loop device", "sr": "optical drive", "md": "software RAID", "zram":
    "compressed memory", "ram": "memory disk", "nbd": "network block device", "rbd":
    "network block device", "mmcblk": "memory card", "drbd": "replicated disk", "fd": "floppy disk",
    "mtdblock": "flash memory", "pmem": "persistent memory", "bcache": "cached disk",
    "zd": "ZFS volume",
}  # fmt: skip
# By the beginning of the device-mapper uuid.
_MAPPED: Final = {
    "LVM-": "logical volume",
    "CRYPT-": "encrypted volume",
    "mpath-": "multipath disk",
}
_ROTATING: Final = {"0": "solid state disk", "1": "hard disk"}
_TELLING: Final = ("sd", "hd", "nvme")
# Hypervisors report their disks as rotational.
_VIRTUAL: Final = ("virtual", "qemu", "vbox", "vmware", "msft")
_LONGEST: Final = 4


def of_pci(number: str) -> str:
    """Return the plain name of a PCI class such as `030000`; empty if it has none."""
    lengths = range(_LONGEST, 1, -2)
    return next((_PCI[number[:length]] for length in lengths if number[:length] in _PCI), "")


def of_usb(number: str, protocol: str) -> str:
    """Return the plain name of a USB class, of a device or an interface; empty if it has none."""
    return _USB.get(number + protocol) or _USB.get(number, "")


def of_block(name: str, disk: Path, *, is_partition: bool) -> str:
    """Return the plain name of a block device; `disk` is the sysfs folder of the whole disk."""
    if is_partition:
        return "partition"
    if name.startswith("dm-"):
        made_by = text_of(disk / "dm/uuid", 64)
        return next((w for start, w in _MAPPED.items() if made_by.startswith(start)), "mapped disk")
    if word := _BLOCK.get(name.rstrip("0123456789")):
        return word
    maker = " ".join(text_of(disk / "device" / part, 64) for part in ("vendor", "model")).lower()
    if name.startswith(_TELLING) and not any(word in maker for word in _VIRTUAL):
        return _ROTATING.get(strip_blanks(text_of(disk / "queue/rotational", 8)), "disk")
    return "disk"
