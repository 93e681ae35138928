"""The XML files, and that everything that repeats them agrees."""

from importlib import resources
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from opdbus import errors
from opdbus.bus import names
from opdbus.bus.service import contract
from opdbus.bus.service.history1 import HistoryInterface
from opdbus.bus.service.job1 import Job
from opdbus.bus.service.object1 import ObjectInterface
from opdbus.bus.service.standard import LogControlInterface
from opdbus.bus.service.state1 import StateInterface
from opdbus.bus.service.vectorizer1 import VectorizerInterface
from opdbus.bus.transport.values import split

INTERFACES = {
    names.VECTORIZER: VectorizerInterface,
    names.STATE: StateInterface,
    names.OBJECT: ObjectInterface,
    names.HISTORY: HistoryInterface,
    names.JOB: Job,
    names.LOG_CONTROL: LogControlInterface,
}
FILES = sorted(
    Path(str(file))
    for file in (resources.files("opdbus.bus") / "interfaces").iterdir()
    if file.name.endswith(".xml")
)
METHODS = [
    pytest.param(name, method, id=f"{name}.{method.name}")
    for name in INTERFACES
    for method in contract.interface(name).methods.values()
]


def test_every_file_is_an_interface_that_is_served() -> None:
    """Hold one interface in each file, named as the file is, and serve each."""
    assert {file.stem for file in FILES} == set(INTERFACES)
    for file in FILES:
        assert contract.interface(file.stem).name == file.stem


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_xml_is_as_the_specification_says(file: Path) -> None:
    """Use only elements, directions and single complete types that D-Bus knows."""
    root = ET.parse(file).getroot()  # noqa: S314 -- our own file
    assert root.tag == "node"
    for element in root.iter():
        assert element.tag in {
            "node", "interface", "method", "signal", "property", "arg", "annotation",
        }  # fmt: skip
        if "type" in element.attrib:
            assert split(element.attrib["type"]) == (element.attrib["type"],)
    for method in root.iter("method"):
        assert {arg.get("direction") for arg in method.iter("arg")} <= {"in", "out"}
        assert all(arg.get("name") for arg in method.iter("arg"))
    assert {element.get("access") for element in root.iter("property")} <= {"read", "readwrite"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_everything_is_documented(file: Path) -> None:
    """Describe each interface and member in the annotation that D-Bus programs read."""
    for element in ET.parse(file).iter():  # noqa: S314 -- our own file
        if element.tag in {"interface", "method", "signal", "property"}:
            docs = element.findall("annotation[@name='org.gtk.GDBus.DocString']")
            assert [bool(doc.attrib["value"].strip()) for doc in docs] == [True], element.attrib


@pytest.mark.parametrize(("name", "method"), METHODS)
def test_every_error_exists(name: str, method: contract.MethodInfo) -> None:
    """List only errors that errors.py has."""
    known = {kind.dbus_name for kind in errors.tree()}
    for short in method.errors:
        full = f"org.opdbus.{short}" if short.startswith("Error.") else ""
        assert {full, f"org.freedesktop.DBus.Error.{short}"} & known, f"{name}: {short}"


@pytest.mark.parametrize(("name", "method"), METHODS)
def test_every_method_checks_its_arguments(name: str, method: contract.MethodInfo) -> None:
    """List InvalidArgs with every method, since each refuses options that it does not know."""
    assert "a{sv}" in method.inputs or not method.inputs
    assert "InvalidArgs" in method.errors, f"{name}.{method.name}"


def test_errors_have_names_and_codes_of_their_own() -> None:
    """Give every error a valid D-Bus name and an exit code that design.md knows."""
    for kind in errors.tree():
        assert kind.dbus_name.startswith(("org.opdbus.Error.", "org.freedesktop.DBus.Error."))
        assert kind.exit_code in {1, 2, 3, 4, 5}


def test_an_object_says_how_its_properties_change() -> None:
    """Let a property take its interface's annotation where it has none of its own."""
    emits = {p.emits for p in contract.interface(names.OBJECT).properties.values()}
    assert emits == {"false"}
    properties = contract.interface(names.VECTORIZER).properties
    assert (properties["Version"].emits, properties["State"].emits) == ("const", "true")


def test_no_property_emits_otherwise_than_dbus_knows() -> None:
    """Refuse an annotation that clients, and the announcer, would not understand."""
    with pytest.raises(ValueError, match="'invalidate'"):
        contract.PropertyInfo("A", "s", "invalidate", "read", "")


MADE_UP = """<node><interface name="org.example.MadeUp">
  <method name="Melt">{method}</method>
  <property name="Heat" type="u" access="{access}">{property}</property>
</interface></node>"""
ACTION = '<annotation name="org.opdbus.Action" value="{}"/>'


@pytest.mark.parametrize("action", ["", ACTION.format(""), ACTION.format("melt")])
def test_a_method_without_an_action_cannot_be_made(action: str) -> None:
    """Refuse an interface of which a method names no action, or one that nobody knows."""
    with pytest.raises(ValueError, match=r"Melt has the action .* must name one of read, vector"):
        contract.parse_interface(MADE_UP.format(method=action, access="read", property=""))


@pytest.mark.parametrize("action", ["", ACTION.format(""), ACTION.format("melt")])
def test_a_property_that_can_be_set_names_its_action(action: str) -> None:
    """Refuse an interface of which anyone might set a property; one to be read needs no action."""
    method = ACTION.format("read")
    with pytest.raises(ValueError, match=r"Heat has the action .* must name one of read, vector"):
        contract.parse_interface(MADE_UP.format(method=method, access="readwrite", property=action))
    found = contract.parse_interface(MADE_UP.format(method=method, access="read", property=action))
    assert not found.properties["Heat"].is_writable


def test_what_cannot_be_read_is_no_property() -> None:
    """Refuse an access that the standard interfaces do not serve."""
    method = ACTION.format("read")
    with pytest.raises(ValueError, match="Heat has the access 'write'"):
        contract.parse_interface(MADE_UP.format(method=method, access="write", property=method))


@pytest.mark.parametrize(
    ("interface", "member", "actions"),
    [
        (names.STATE, "Publish", {"publish"}),
        ("", "Reload", {"manage"}),
        ("", "Similar", {"read"}),
        (names.STATE, "Reload", {"read"}),
        ("org.example.MadeUp", "Melt", {"read"}),
    ],
)
def test_what_a_call_takes_is_known_by_its_names(
    interface: str, member: str, actions: set[str]
) -> None:
    """Want the action of the method that is named, and `read` for what is not there."""
    assert contract.actions(interface, member) == actions
