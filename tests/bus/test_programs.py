"""The programs that people have, busctl and gdbus, on all that the XML holds."""

import ast
import asyncio
import json
import math
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from conftest import EXAMPLE
from harness.broker import BUSES
from harness.marshal import Variant
from harness.running import (
    OBJECT,
    ROOT_PATH,
    STATE,
    STATE_PATH,
    VECTORIZER,
    Running,
    calling,
    read_lines,
    replace,
    run_program,
    state_file,
)
from harness.wire import Wire

from opdbus.bus.service import contract
from opdbus.bus.transport.connection import RemoteError
from opdbus.client import Client

NAME = "org.opdbus"
SSHD = f"{STATE_PATH}/systemd/unit/sshd_2eservice"
PATHS = {VECTORIZER: ROOT_PATH, STATE: STATE_PATH, OBJECT: SSHD}
# Arguments for each method, as busctl and as gdbus write them; a new method needs a row, unless it
# takes a file descriptor, which neither program can send.
CALLS: dict[str, tuple[list[str], list[str]]] = {
    "Vectorizer1.Vectorize": (["mail", "1", "truncate", "b", "true"], ["mail", "{}"]),
    "Vectorizer1.VectorizeMany": (["2", "mail", "disk", "0"], ["['mail', 'disk']", "{}"]),
    "Vectorizer1.Embed": (["2", "mail", "disk", "0"], ["['mail', 'disk']", "{}"]),
    "Vectorizer1.CountTokens": (["1", "mail", "0"], ["['mail']", "{}"]),
    "Vectorizer1.Tokenize": (["1", "mail", "0"], ["['mail']", "{}"]),
    "Vectorizer1.Levels": (["0"], ["{}"]),
    "Vectorizer1.Status": (["0"], ["{}"]),
    "Vectorizer1.Metrics": (["0"], ["{}"]),
    "Vectorizer1.Reload": (["0"], ["{}"]),
    "Vectorizer1.SetProvider": (["cpu:onnxruntime", "", "0"], ["cpu:onnxruntime", "''", "{}"]),
    "State1.Search": (
        ["mail", "3", "1", "mode", "s", "hybrid"],
        ["mail", "3", "{'plugin': <'systemd'>}"],
    ),
    "State1.Ask": (["are you ready", "3", "0"], ["what drifts?", "3", "{}"]),
    "State1.Similar": ([SSHD, "3", "0"], [SSHD, "3", "{}"]),
    "State1.Clusters": (["3", "0"], ["3", "{}"]),
    "State1.Outliers": (["3", "1", "kind", "s", "unit"], ["3", "{}"]),
    "State1.List": (["1", "plugin", "s", "systemd", "0", "5"], ["{}", "0", "5"]),
    "State1.Fields": (["1", "kind", "s", "unit"], ["{'kind': <'unit'>}"]),
    "State1.Resolve": (["sshd", "0"], ["sshd", "{}"]),
    "State1.Values": (
        ["1", SSHD, "1", "active_state", "0"],
        [f"[objectpath '{SSHD}']", "['enabled']", "{}"],
    ),
    "State1.Get": ([SSHD, "0"], [SSHD, "{}"]),
    "State1.Vector": ([SSHD, "0"], [SSHD, "{}"]),
    "State1.Publish": (
        ["busctl", "1", "p", "k", "busctl", "1", "size", "i", "3", "0"],
        ["gdbus", "[('p', 'k', 'gdbus', {'list': <['a', 'b']>})]", "{}"],
    ),
    "State1.Withdraw": (
        ["1", f"{STATE_PATH}/p/k/busctl", "0"],
        [f"[objectpath '{STATE_PATH}/p/k/gdbus']", "{}"],
    ),
    "State1.DriftReport": (["0"], ["{}"]),
    "State1.DriftOrigins": (["1", SSHD, "0"], [f"[objectpath '{SSHD}']", "{}"]),
    "State1.Unobserved": (["0"], ["{}"]),
    "State1.Baseline": (
        ["1", SSHD, "1", "scope", "s", "all"],
        [f"[objectpath '{SSHD}']", "{'changes': <true>}"],
    ),
    "Object1.GetVector": (["0"], ["{}"]),
    "Object1.Similar": (["3", "0"], ["3", "{}"]),
}
METHODS = [
    pytest.param(name, method, id=f"{name.rpartition('.')[2]}.{method}")
    for name in PATHS
    for method, row in contract.interface(name).methods.items()
    # no program can pass or print a file
    if "h" not in row.inputs + row.outputs
]
PROPERTIES = [(name, p) for name in PATHS for p in contract.interface(name).properties]


def _program(name: str) -> str:
    found = shutil.which(name)
    if not found:
        package = {"busctl": "systemd", "gdbus": "libglib2.0-bin"}[name]
        pytest.skip(f"there is no {name}: `apt install {package}`")
    return found


@pytest.fixture(scope="module")
def served(
    shared_daemons: Callable[..., Running], tmp_path_factory: pytest.TempPathFactory
) -> Running:
    """Serve the example, from a copy that a test may change."""
    file = tmp_path_factory.mktemp("state") / "state.json"
    shutil.copy(EXAMPLE, file)
    return shared_daemons(STATE_FILE=file).start().vectorized()


def run(*command: str) -> str:
    """Run a program that succeeds, and give what it prints."""
    done = run_program(command)
    assert done.returncode == 0, (command, done.stderr)
    return done.stdout


def busctl(daemon: Running, *arguments: str) -> Any:
    """Run busctl, and give its JSON."""
    printed = run(_program("busctl"), f"--address={daemon.bus}", "--json=short", *arguments)
    return json.loads(printed) if printed.strip() else None


def gdbus_call(daemon: Running, path: str, method: str, *arguments: str) -> str:
    """Call a method with gdbus, and give what it prints: the reply as a GVariant."""
    return run(
        _program("gdbus"), "call", "--address", daemon.bus, "--dest", NAME,
        "--object-path", path, "--method", method, *arguments,
    )  # fmt: skip


def test_every_method_has_arguments_here() -> None:
    """Drive each method of the XML, and no other."""
    listed = {f"{p.values[0].rpartition('.')[2]}.{p.values[1]}" for p in METHODS}  # type: ignore[union-attr]
    assert listed == CALLS.keys()


@pytest.mark.parametrize(("interface", "method"), METHODS)
def test_busctl_calls(served: Running, interface: str, method: str) -> None:
    """Answer busctl with the signature that the XML has."""
    row = contract.interface(interface).methods[method]
    arguments = CALLS[f"{interface.rpartition('.')[2]}.{method}"][0]
    answer = busctl(
        served, "call", NAME, PATHS[interface], interface, method, row.inputs, *arguments
    )
    assert (answer["type"] if answer else "") == row.outputs


@pytest.mark.parametrize(("interface", "method"), METHODS)
def test_gdbus_calls(served: Running, interface: str, method: str) -> None:
    """Answer gdbus, which finds the argument types by introspection."""
    arguments = CALLS[f"{interface.rpartition('.')[2]}.{method}"][1]
    answer = gdbus_call(served, PATHS[interface], f"{interface}.{method}", *arguments)
    assert answer.startswith("(")
    assert bool(contract.interface(interface).methods[method].outputs) == (answer != "()\n")


@pytest.mark.parametrize(("interface", "name"), PROPERTIES)
def test_busctl_gets_properties(served: Running, interface: str, name: str) -> None:
    """Give busctl each property, of the XML's type."""
    value = busctl(served, "get-property", NAME, PATHS[interface], interface, name)
    assert value["type"] == contract.interface(interface).properties[name].signature


@pytest.mark.parametrize("interface", PATHS)
def test_gdbus_gets_properties(served: Running, interface: str) -> None:
    """Give gdbus all properties at once, and one by one."""
    every = gdbus_call(
        served, PATHS[interface], "org.freedesktop.DBus.Properties.GetAll", interface
    )
    for name in contract.interface(interface).properties:
        assert f"'{name}': <" in every
    one = gdbus_call(served, ROOT_PATH, "org.freedesktop.DBus.Properties.Get", VECTORIZER, "State")
    assert one == "(<'ready'>,)\n"


@pytest.mark.parametrize("interface", PATHS)
def test_busctl_introspects(served: Running, interface: str) -> None:
    """Show busctl every member, with its signatures and how it changes."""
    text = run(_program("busctl"), f"--address={served.bus}", "introspect", NAME, PATHS[interface])
    rows = {line.split()[0]: line for line in text.splitlines() if line.startswith(".")}
    known = contract.interface(interface)
    assert rows.keys() >= {f".{m}" for m in (*known.methods, *known.properties, *known.signals)}
    for name, method in known.methods.items():
        assert rows[f".{name}"].split()[1:4] == ["method", method.inputs, method.outputs or "-"]
    xml = run(
        _program("busctl"), f"--address={served.bus}", "--xml-interface", "introspect", NAME,
        PATHS[interface],
    )  # fmt: skip
    shown = ET.fromstring(xml).find(f"interface[@name='{interface}']")  # noqa: S314
    assert shown is not None
    docs = shown.findall("*/annotation[@name='org.gtk.GDBus.DocString']")
    assert len(docs) == len(known.methods) + len(known.properties) + len(known.signals)
    assert not any("  " in doc.attrib["value"] for doc in docs)


def test_programs_walk_the_tree(served: Running) -> None:
    """Let busctl and gdbus find every object from the root, with no path that does not answer."""
    tree = run(_program("busctl"), f"--address={served.bus}", "--list", "tree", NAME).split()
    total = busctl(served, "get-property", NAME, STATE_PATH, STATE, "Count")["data"]
    assert sum(path.count("/") == 6 for path in tree) == total
    assert SSHD in tree
    text = run(
        _program("gdbus"), "introspect", "--address", served.bus, "--dest", NAME,
        "--object-path", "/", "--recurse",
    )  # fmt: skip
    assert f"node {SSHD} {{" in text
    assert "Error:" not in text


@pytest.mark.parametrize(
    "path",
    [
        *("/systemd", "/systemd/unit", SSHD.removeprefix(STATE_PATH)),
        *(f"{STATE_PATH}x/systemd", f"{STATE_PATH}x", f"{ROOT_PATH}/systemd"),
        *(f"{STATE_PATH}/syste", f"{SSHD}/x"),
    ],
)
async def test_an_object_has_one_path(served: Running, path: str) -> None:
    """Find nothing at a path that is not below the one of the state."""
    async with calling(served.bus) as caller:
        for there in (f"{STATE_PATH}/systemd", f"{STATE_PATH}/systemd/unit", SSHD):
            assert await caller.call(there, "org.freedesktop.DBus.Introspectable.Introspect")
        with pytest.raises(RemoteError) as caught:
            await caller.call(path, "org.freedesktop.DBus.Introspectable.Introspect")
        assert caught.value.name.endswith(".UnknownObject")


def test_errors_reach_the_programs(served: Running) -> None:
    """Show busctl and gdbus an error's name and sentence."""
    for command in (
        [_program("busctl"), f"--address={served.bus}", "call", NAME, STATE_PATH, STATE, "Get",
         "oa{sv}", "/a", "0"],
        [_program("gdbus"), "call", "--address", served.bus, "--dest", NAME, "--object-path",
         STATE_PATH, "--method", f"{STATE}.Get", "/a", "{}"],
    ):  # fmt: skip
        done = run_program(command)
        assert done.returncode != 0
        assert "is not the path of a state object" in done.stderr


def test_numbers_that_json_lacks_are_published(served: Running) -> None:
    """Take NaN and infinities, which a D-Bus double may be, and keep them as strings."""
    arguments = ["measures", "1", "p", "k", "sensor", "2", "heat", "d", "nan", "list", "ad", "2",
                 "inf", "-inf", "0"]  # fmt: skip
    busctl(
        served, "--", "call", NAME, STATE_PATH, STATE, "Publish", "sa(sssa{sv})a{sv}", *arguments
    )
    path = f"{STATE_PATH}/p/k/sensor"

    def kept() -> Any:
        answer = busctl(served, "call", NAME, STATE_PATH, STATE, "Get", "oa{sv}", path, "0")
        return json.loads(answer["data"][0])["observed"]

    assert kept() == {"heat": "NaN", "list": ["Infinity", "-Infinity"]}

    async def publish() -> None:
        async with Client(served.bus) as client:
            await client.publish("measures", [("p", "k", "sensor", {"heat": [math.nan, math.inf]})])

    asyncio.run(publish())
    assert kept() == {"heat": ["NaN", "Infinity"]}
    busctl(served, "call", NAME, STATE_PATH, STATE, "Withdraw", "aoa{sv}", "1", path, "0")


def _provoke(served: Running) -> None:
    """Have the daemon send each signal that it sends while it runs."""
    file = Path(served.settings["OP_DBUS_STATE_FILE"])
    replace(file, "{ bad")
    served.wait_for_log("state file refused")
    state_file(file, {"drifting": "network name server"})
    # declared before it is observed
    busctl(served, "call", NAME, ROOT_PATH, VECTORIZER, "Reload", "a{sv}", "0")
    busctl(
        served, "call", NAME, STATE_PATH, STATE, "Publish", "sa(sssa{sv})a{sv}",
        "drift", "1", "systemd", "unit", "drifting", "1", "description", "s", "0 1 2 3", "0",
    )  # fmt: skip


SIGNALS = {"Changed", "Vectorized", "DriftDetected", "PropertiesChanged"}


def test_every_signal_is_watched_here() -> None:
    """Watch each signal of the XML; ProviderChanged comes at the start, in test_daemon."""
    known = {s for name in PATHS for s in contract.interface(name).signals}
    assert known | {"PropertiesChanged"} == SIGNALS | {"ProviderChanged"}


def test_busctl_monitors(daemons: Callable[..., Running], tmp_path: Path) -> None:
    """Show busctl every signal, of the XML's signature."""
    daemon = daemons(
        STATE_FILE=state_file(tmp_path / "state.json", {"a": "mail"}), DRIFT_THRESHOLD="info"
    )
    command = [_program("busctl"), f"--address={daemon.bus}", "--json=short", "monitor"]
    with subprocess.Popen(
        [*command, NAME], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as watching:
        read_lines(watching, lambda text: "Monitoring bus" in text)
        with daemon:
            daemon.vectorized()
            _provoke(daemon)
            wanted = SIGNALS | {"ProviderChanged"}
            text = read_lines(
                watching,
                lambda text: all(
                    f'"member":"{name}"' in text.rpartition("\n")[0] for name in wanted
                ),
            )
        watching.terminate()
    # the last line may be unfinished
    lines = text.rpartition("\n")[0].splitlines()
    messages = [json.loads(line) for line in lines if line.endswith("}")]
    signatures = {
        name: signature
        for interface in PATHS
        for name, signature in contract.interface(interface).signals.items()
    }
    sent = {m["member"]: m["payload"].get("type") for m in messages if m["type"] == "signal"}
    assert {name: sent[name] for name in signatures} == signatures


def test_gdbus_monitors(daemons: Callable[..., Running], tmp_path: Path) -> None:
    """Show gdbus every signal from the daemon's name."""
    daemon = daemons(
        STATE_FILE=state_file(tmp_path / "state.json", {"a": "mail"}), DRIFT_THRESHOLD="info"
    )
    command = [_program("gdbus"), "monitor", "--address", daemon.bus, "--dest", NAME]
    with daemon, subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
        daemon.vectorized()
        read_lines(watching, lambda text: "is owned by" in text)
        _provoke(daemon)
        text = read_lines(watching, lambda text: all(f".{name} (" in text for name in SIGNALS))
        watching.terminate()
    found = re.search(rf"{STATE_PATH}: {STATE}\.DriftDetected \((.*)\)", text)
    assert found
    path, what, severity, fields = ast.literal_eval(f"({found[1]})".replace("objectpath ", ""))
    assert (path, fields) == (f"{STATE_PATH}/systemd/unit/drifting", ["description"])
    assert (what, severity) == ("drift", "info")


@pytest.mark.parametrize("kind", BUSES)
def test_large_replies_reach_programs(daemons: Callable[..., Running], kind: str) -> None:
    """Give programs every reply of more than a message's usual size, on both kinds of bus."""
    bus, text = BUSES[kind](), "mail " * 50_000
    with daemons(bus=bus.address) as daemon:
        daemon.wait_for_log("state file read")
        with Wire(bus.address) as wire:
            item = ("p", "k", "n", {"text": Variant("s", text)})
            wire.call(STATE_PATH, f"{STATE}.Publish", "sa(sssa{sv})a{sv}", "large", [item], {})
        path = f"{STATE_PATH}/p/k/n"
        busctl = ["busctl", f"--address={bus.address}", "call", NAME, STATE_PATH, STATE, "Get"]
        gdbus = ["gdbus", "call", f"--address={bus.address}", f"--dest={NAME}"]
        gdbus += [f"--object-path={STATE_PATH}", f"--method={STATE}.Get", path, "{'large': <true>}"]
        for command in ([*busctl, "oa{sv}", path, "1", "large", "b", "true"], gdbus) * 3:
            if shutil.which(command[0]):
                assert text.strip() in run_program(command, check=True).stdout
    bus.kill()
