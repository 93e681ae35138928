"""A host's devices as files: a folder like /sys, a hardware database, and the kernel's events."""

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attacks.kernel import sent

_HEADER_BYTES, _NODE_BYTES, _CHILD_BYTES, _VALUE_BYTES = 80, 24, 16, 16


def uevent(action: str, subsystem: str, path: str = "/devices/x", sender: int = 0) -> bytes:
    """Give an event of the kernel, or of another process, as FakeKernel tells it."""
    fields = f"ACTION={action}\0DEVPATH={path}\0SUBSYSTEM={subsystem}\0SEQNUM=7\0"
    return sent(f"{action}@{path}\0{fields}".encode(), sender)


def device(sys: Path, at: str, link: str, driver: str = "", **attributes: str) -> Path:
    """Add a device to a /sys: its folder below devices, and the link that lists it."""
    folder = sys / "devices" / at
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in attributes.items():
        file = folder / name.replace("__", "/")
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"{value}\n")
    if driver:
        (folder / "driver").symlink_to(f"/sys/drivers/{driver}")
    (sys / link).mkdir(parents=True, exist_ok=True)
    (sys / link / folder.name).symlink_to(folder)
    return folder


def database(file: Path, patterns: Mapping[str, Mapping[str, str]]) -> Path:
    """Write a hwdb.bin, one letter to a node."""
    tree: dict[str, Any] = {}
    for pattern, values in patterns.items():
        node = tree
        for char in pattern:
            node = node.setdefault(char, {})
        node[""] = values
    strings = bytearray(b"\0")
    nodes = bytearray()

    def text(value: str) -> int:
        strings.extend(value.encode() + b"\0")
        return len(strings) - len(value.encode()) - 1

    def write(node: dict[str, Any]) -> int:
        values = [(text(f" {key}"), text(value)) for key, value in node.get("", {}).items()]
        children = [(ord(char), write(child)) for char, child in sorted(node.items()) if char]
        offset = _HEADER_BYTES + len(nodes)
        nodes.extend(struct.pack("<QB7xQ", 0, len(children), len(values)))
        for char, child in children:
            nodes.extend(struct.pack("<B7xQ", char, child))
        for key, value in values:
            # strings follow all nodes, whose length is not known yet
            nodes.extend(struct.pack("<QQ", key, value))
            spots.append(len(nodes) - _VALUE_BYTES)
        return offset

    spots: list[int] = []
    root = write(tree)
    start = _HEADER_BYTES + len(nodes)
    for spot in spots:
        key, value = struct.unpack_from("<QQ", nodes, spot)
        struct.pack_into("<QQ", nodes, spot, key + start, value + start)
    sizes = (_HEADER_BYTES, _NODE_BYTES, _CHILD_BYTES, _VALUE_BYTES)
    whole = start + len(strings)
    header = struct.pack("<8s9Q", b"KSLPHHRH", 252, whole, *sizes, root, len(nodes), len(strings))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(header + nodes + strings)
    return file
