"""org.opdbus(5): the service on D-Bus, from the annotations in the interfaces' XML."""

import xml.etree.ElementTree as ET
from collections.abc import Iterator
from importlib import resources

import roff

from opdbus.bus.service.contract import annotation

_INTRODUCTION = """\
`op-dbus.service` owns the name `org.opdbus` on the system bus; a call to that name starts it. The
interfaces below are its contract, which Introspect gives too. The number that ends an interface's
name grows when callers have to change.

Each method belongs to an action: `read`, `vectorize`, `publish` or `manage`. root may do
everything. Where polkit(8) answers, its rules decide about everybody else, by the names
`org.opdbus.read` and so on; the rule that comes with op-dbus grants the first three to members of
the group `op-dbus`. Where it does not, the group may do these three, and nobody else anything. Who
may not is answered AccessDenied, or InteractiveAuthorizationRequired where asking somebody for a
password would help and the call did not allow that.

Errors without a prefix are those of org.freedesktop.DBus.Error; `Error.` stands for
org.opdbus.Error. Past a limit, a call is answered LimitsExceeded.
"""
_EXAMPLES = """\
busctl introspect org.opdbus /org/opdbus
busctl call org.opdbus /org/opdbus/state org.opdbus.State1 Search \\
    'sua{sv}' 'name resolution' 3 0"""
_ACTION = "org.opdbus.Action"
_ERRORS = "org.opdbus.Errors"
_DOC = "org.gtk.GDBus.DocString"
# The order of reading: what searches, what vectorizes, then what these point to.
_SHORT = ("State", "Object", "History", "Vectorizer", "Job")
_FIRST = tuple(f"org.opdbus.{name}1" for name in _SHORT)


def page() -> str:
    """Write the page."""
    return roff.page(
        "org.opdbus",
        5,
        "D-Bus Interfaces",
        [
            roff.section("NAME", "org.opdbus \\- the D\\-Bus service of op\\-dbus"),
            roff.section("DESCRIPTION", roff.paragraphs(_INTRODUCTION)),
            *(part for text in _texts() for part in _interface(text)),
            roff.section("EXAMPLES", roff.example(_EXAMPLES)),
            roff.section("SEE ALSO", ".BR op\\-dbus (1),\n.BR busctl (1),\n.BR polkit (8)"),
        ],
    )


def _texts() -> list[str]:
    """Read each interface's file, in the order of reading."""
    files = (resources.files("opdbus.bus") / "interfaces").iterdir()
    texts = {f.name.removesuffix(".xml"): f.read_text(encoding="utf-8") for f in files}
    return [texts[name] for name in sorted(texts, key=_rank)]


def _rank(name: str) -> tuple[int, str]:
    return (_FIRST.index(name) if name in _FIRST else len(_FIRST), name)


def _interface(text: str) -> Iterator[str]:
    """Describe an interface and its members, each by its annotation."""
    interface = ET.fromstring(text).find("interface")  # noqa: S314 -- our own file
    if interface is None:
        raise ValueError(f"no interface in {text}")
    yield roff.section(interface.attrib["name"], roff.paragraphs(annotation(interface, _DOC)))
    for element in interface:
        if element.tag in _MEMBERS:
            yield _MEMBERS[element.tag](element)


def _method(element: ET.Element) -> str:
    action, errors = annotation(element, _ACTION), annotation(element, _ERRORS)
    return roff.tagged(
        f"{roff.bold(element.attrib['name'])}({_arguments(element, 'in')})"
        f" \\(-> ({_arguments(element, 'out')})",
        annotation(element, _DOC),
        f"Action: `{action}`." + (f" Errors: {', '.join(errors.split())}." if errors else ""),
    )


def _signal(element: ET.Element) -> str:
    tag = f"signal {roff.bold(element.attrib['name'])}({_arguments(element)})"
    return roff.tagged(tag, annotation(element, _DOC))


def _property(element: ET.Element) -> str:
    access = {"read": "", "readwrite": ", may be set", "write": ", can only be set"}
    action = annotation(element, _ACTION)
    tag = (
        f"property {roff.bold(element.attrib['name'])}"
        f" {roff.escaped(element.attrib['type'])}{access[element.attrib['access']]}"
    )
    return roff.tagged(tag, annotation(element, _DOC), f"Action: `{action}`." if action else "")


_MEMBERS = {"method": _method, "signal": _signal, "property": _property}


def _arguments(element: ET.Element, direction: str = "") -> str:
    found = [a for a in element.findall("arg") if a.get("direction", "") == direction]
    return ", ".join(
        f"{roff.escaped(a.attrib['type'])} {roff.italic(a.attrib['name'])}" for a in found
    )
