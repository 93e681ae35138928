"""The interfaces' XML files as values: what dispatch is driven by and Introspect returns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Final
from xml.etree import ElementTree as ET

from opdbus.bus.names import BUS_NAME

if TYPE_CHECKING:
    from collections.abc import Mapping

_EMITS: Final = "org.freedesktop.DBus.Property.EmitsChangedSignal"
_ACTION: Final = f"{BUS_NAME}.Action"
_ERRORS: Final = f"{BUS_NAME}.Errors"


@dataclass(frozen=True, slots=True)
class Method:
    """A method: its signatures, what a caller must be allowed to do, and its own errors."""

    name: str
    inputs: str
    outputs: str
    action: str
    errors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Property:
    """A property; `emits` is `true`, `false` or `const`."""

    name: str
    signature: str
    emits: str


@dataclass(frozen=True, slots=True)
class Interface:
    """One interface: members by name, and its XML element."""

    name: str
    methods: Mapping[str, Method]
    properties: Mapping[str, Property]
    signals: Mapping[str, str]
    xml: str


@cache
def interface(name: str) -> Interface:
    """Read the interface `name` from the package's files."""
    file = resources.files("opdbus.bus") / "interfaces" / f"{name}.xml"
    root = ET.fromstring(file.read_text(encoding="utf-8"))  # noqa: S314 -- our own file
    element = root.find("interface")
    if element is None:
        raise ValueError(f"{file} holds no interface")
    return Interface(
        name=element.attrib["name"],
        methods={m.name: m for m in map(_method, element.findall("method"))},
        properties={
            p.name: p for p in (_property(p, element) for p in element.findall("property"))
        },
        signals={s.attrib["name"]: _signature(s) for s in element.findall("signal")},
        xml=ET.tostring(element, encoding="unicode"),
    )


def _method(element: ET.Element) -> Method:
    return Method(
        name=element.attrib["name"],
        inputs=_signature(element, "in"),
        outputs=_signature(element, "out"),
        action=_annotation(element, _ACTION),
        errors=tuple(_annotation(element, _ERRORS).split()),
    )


def _property(element: ET.Element, parent: ET.Element) -> Property:
    emits = _annotation(element, _EMITS) or _annotation(parent, _EMITS) or "true"
    return Property(element.attrib["name"], element.attrib["type"], emits)


def _signature(element: ET.Element, direction: str = "") -> str:
    arguments = element.findall("arg")
    return "".join(a.attrib["type"] for a in arguments if a.get("direction", "") == direction)


def _annotation(element: ET.Element, name: str) -> str:
    return next(
        (a.attrib["value"] for a in element.findall("annotation") if a.get("name") == name), ""
    )
