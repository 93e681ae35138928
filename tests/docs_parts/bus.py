"""The interfaces on D-Bus, from their XML, and the errors, from their classes."""

from collections.abc import Iterator
from importlib import resources
from xml.etree import ElementTree as ET

from docs_parts.tables import table
from opdbus import errors

_SHORT = ("State", "Object", "History", "Vectorizer", "Job")
_FIRST = tuple(f"org.opdbus.{name}1" for name in _SHORT)
_ACTION = "org.opdbus.Action"
_ERRORS = "org.opdbus.Errors"
_DOC = "org.gtk.GDBus.DocString"
_ACCESS = {"read": "", "readwrite": " May be set.", "write": " Can only be set."}


def interfaces() -> str:
    """Describe every interface of our own, those that search first."""
    folder = resources.files("opdbus.bus") / "interfaces"
    return "\n\n".join(
        part
        for name in _FIRST
        for part in _interface((folder / f"{name}.xml").read_text(encoding="utf-8"))
    )


def _interface(text: str) -> Iterator[str]:
    element = ET.fromstring(text).find("interface")  # noqa: S314 -- our own file
    assert element is not None
    yield f"## {element.attrib['name']}\n\n{_doc(element)}"
    yield from map(_method, element.findall("method"))
    if rows := [_property(each) for each in element.findall("property")]:
        yield "### Properties\n\n" + "\n".join(rows)
    if rows := [_signal(each) for each in element.findall("signal")]:
        yield "### Signals\n\n" + "\n".join(rows)


def _method(element: ET.Element) -> str:
    name, given, taken = element.attrib["name"], _args(element, "in"), _args(element, "out")
    facts = [f"Action: `{_annotation(element, _ACTION)}`."]
    if found := _annotation(element, _ERRORS).split():
        facts.append(f"Errors: {', '.join(f'`{name}`' for name in found)}.")
    return f"### {name}\n\n`{name}({given}) -> ({taken})`\n\n{_doc(element)}\n\n{' '.join(facts)}"


def _property(element: ET.Element) -> str:
    more = _ACCESS[element.attrib["access"]]
    if action := _annotation(element, _ACTION):
        more += f" Action: `{action}`."
    return f"- `{element.attrib['name']}` `{element.attrib['type']}`: {_doc(element)}{more}"


def _signal(element: ET.Element) -> str:
    return f"- `{element.attrib['name']}({_args(element)})`: {_doc(element)}"


def _args(element: ET.Element, direction: str = "") -> str:
    found = [a for a in element.findall("arg") if a.get("direction", "") == direction]
    return ", ".join(f"{a.attrib['type']} {a.attrib['name']}" for a in found)


def _annotation(element: ET.Element, name: str) -> str:
    found = (a.attrib["value"] for a in element.findall("annotation") if a.get("name") == name)
    return next(found, "")


def _doc(element: ET.Element) -> str:
    return " ".join(_annotation(element, _DOC).split())


def error_names() -> str:
    """Make a row of each error that callers see: its name on the bus, exit code and meaning."""
    rows = [
        (f"`{each.dbus_name}`", str(each.exit_code), (each.__doc__ or "").split("\n")[0])
        for each in sorted(errors.tree(), key=lambda each: each.dbus_name)
        if "dbus_name" in vars(each)
    ]
    return table(("error", "exit code of `op-dbus`", "meaning"), rows)
