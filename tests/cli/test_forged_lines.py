"""Commands on a host whose names and values have newlines: none prints a line that it forged."""

import json
from collections.abc import Iterator

import pytest
from harness.assistants import publish
from harness.running import Bus, Running

FORGED = "op-dbus: all is well"
NAME = f"a\n{FORGED}\n{FORGED}"


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Run a daemon of which all names and values have a line of their own."""
    bus, folder = Bus(), tmp_path_factory.mktemp("daemon")
    state = folder / "state.json"
    units = {NAME: {"enabled": True, "unit": NAME}}
    state.write_text(json.dumps({"version": 1, "plugins": {"systemd": {"units": units}}}))
    with Running(folder, bus.address, VECTOR_LEVEL="static", STATE_FILE=state) as daemon:
        daemon.vectorized()
        fields = {"enabled": False, "unit": NAME, "description": NAME, NAME: NAME}
        publish(daemon, ("systemd", "unit", NAME, fields), (NAME[:20], NAME[:20], NAME, fields))
        publish(daemon, ("systemd", "unit", NAME, {**fields, "description": f"b {NAME}"}))
        yield daemon.vectorized()
    bus.kill()


COMMANDS = (
    ("list", "-q"),
    ("list", "--columns", "object,unit,description"),
    ("search", "all is well"),
    ("ask", f"is {NAME} enabled"),
    ("show", f"systemd/unit/{NAME}"),
    ("show", f"x{NAME}"),
    ("similar", f"systemd/unit/{NAME}"),
    ("changes",),
    ("changes", "--by", "cause"),
    ("changes", "--kind", NAME),
    ("changes", "--plugin", f"x{NAME}"),
    ("history", f"systemd/unit/{NAME}"),
    ("drift", "--about", NAME),
    ("topics",),
)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda each: " ".join(each)[:30])
def test_no_name_prints_a_line(host: Running, command: tuple[str, ...]) -> None:
    """Begin no line with the text of a name or a value, on stdout and on stderr."""
    done = host.cli(*command)
    assert "Traceback" not in done.stderr
    assert "No such option" not in done.stderr
    for line in f"{done.stdout}\n{done.stderr}".splitlines():
        assert not line.strip().startswith(FORGED), line


def test_names_are_shown(host: Running) -> None:
    """Print a name on one line, with its newlines escaped."""
    escaped = NAME.replace("\n", r"\n")
    for command in (("list", "-q"), ("changes",), ("drift",)):
        assert escaped in host.cli(*command).stdout, command
