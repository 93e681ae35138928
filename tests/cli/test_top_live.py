"""`op-dbus top` on a terminal, beside a daemon, through its restarts and to every end."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness.commands import ok
from harness.running import POLICY, Bus, Running, environment, state_file
from harness.screens import Screen

DOWN, ENTER, ESCAPE = "\x1b[B", "\r", "\x1b"
SHOWN, GONE = "\x1b[?1049h\x1b[?25l\x1b[?7l", "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
UNITS = {"nginx.service": "web server", "evil\x1b[2J.service": "\u65e5\u672c"}


@pytest.fixture(scope="module")
def served(
    shared_daemons: Callable[..., Running], tmp_path_factory: pytest.TempPathFactory
) -> Running:
    """Serve two units without a model, which are declared after the first listing."""
    file = state_file(tmp_path_factory.mktemp("declared") / "state.json", {})
    daemon = shared_daemons(STATE_FILE=file, VECTOR_LEVEL="none").start().vectorized()
    state_file(file, UNITS)
    return daemon


LISTED = "declared (by the state file)"


@pytest.fixture
def shown(served: Running) -> Iterator[Screen]:
    """Show it on a terminal."""
    with Screen(environ_of(served), "top") as screen:
        screen.until(LISTED)
        yield screen


def environ_of(daemon: Running) -> dict[str, str]:
    """Give the environment of a command beside a daemon."""
    environ = environment(daemon.bus, daemon.state_dir, daemon.settings)
    environ.pop("NO_COLOR", None)
    return environ


def test_one_screen_is_printed_into_a_pipe(served: Running) -> None:
    """`--once`, and any output that is no terminal, gives one screen without commands for one."""
    for arguments in (("top", "--once"), ("top",)):
        lines = ok(served, *arguments).splitlines()
        assert lines[0].split()[0] == "op-dbus"
        assert lines[1] == "serves    words only: OP_DBUS_VECTOR_LEVEL is none"
        assert max(map(len, lines)) <= 80


def test_pages_are_reached_by_keys(shown: Screen) -> None:
    """A question finds an object as it is typed, Enter shows it, and each page has its key."""
    shown.press("/")
    shown.until("/_")
    shown.press("web")
    shown.until("> systemd/unit/nginx.service")
    shown.press(ENTER)
    text = shown.until('"description": "web server"')
    assert "State file" not in text
    shown.press(ESCAPE)
    shown.until("/web_")
    shown.press(ESCAPE)
    shown.until("q quit")
    for key, heading in (("c", "the newest first"), ("o", "each observer"), ("?", "choose a line")):
        shown.press(key)
        shown.until(heading)
    assert "\\x1b[2J.service" in shown.sent
    shown.press("q")
    assert_ended(shown, 0)


def assert_ended(shown: Screen, code: int) -> None:
    """See that the program ended, and left the terminal as it found it."""
    assert shown.exit_code() == code
    assert shown.sent.startswith(SHOWN)
    assert shown.sent.endswith(GONE)
    assert shown.settings == shown.before


def test_colours_are_for_those_that_want_them(shown: Screen, served: Running) -> None:
    """NO_COLOR takes the colours, and the screen says the same."""
    assert "\x1b[0;36m" in shown.sent
    with Screen(environ_of(served) | {"NO_COLOR": "1"}, "top") as plain:
        plain.until(LISTED)
        assert "\x1b[0;3" not in plain.sent
        # both show how long ago something was, and how much memory is in use
        plain.until(lambda text: text.splitlines()[1:] == shown.text.splitlines()[1:])
        plain.press("\x03")
        assert_ended(plain, 130)


def test_every_size_is_drawn(shown: Screen) -> None:
    """After a change of its size the terminal shows all of a screen of that size."""
    for columns, rows in ((60, 15), (300, 30), (10, 3)):
        shown.resize(columns, rows)
        end = "q quit"[:columns]
        shown.until(lambda text, end=end: text.splitlines()[-1].startswith(end))
        assert shown.text.splitlines()[0][-3] == ":"
    shown.press("\x1c")
    assert_ended(shown, 131)


def test_it_can_be_stopped_and_goes_on(shown: Screen) -> None:
    """Ctrl-Z gives the terminal back, and afterwards the whole screen is drawn again."""
    shown.press("\x1a")
    os.waitpid(shown.process.pid, os.WUNTRACED)
    assert shown.settings == shown.before
    # what was drawn before is not read as what is drawn afterwards
    shown.until(lambda _: shown.sent.endswith(GONE))
    shown.resize(80, 24)
    os.kill(shown.process.pid, signal.SIGCONT)
    shown.until(LISTED)
    assert shown.sent.count(SHOWN) == 2
    os.kill(shown.process.pid, signal.SIGHUP)
    assert_ended(shown, 129)


def test_restarts_are_waited_out(shown: Screen, served: Running) -> None:
    """While nothing serves that is said, and all is read anew when something does."""
    served.kill()
    shown.until("! waiting for op-dbus ...")
    state_file(Path(served.settings["OP_DBUS_STATE_FILE"]), UNITS | {"two.service": "time"})
    served.start()
    text = shown.until("two.service declared")
    assert "!" not in text
    assert "nginx.service" in text
    os.kill(shown.process.pid, signal.SIGTERM)
    assert_ended(shown, 143)


def test_what_may_not_be_read_and_a_bus_that_goes_are_told(tmp_path: Path) -> None:
    """A caller without the right to read is told what is not shown; where no bus is, all are."""
    bus = Bus(POLICY + '<deny send_interface="org.opdbus.History1"/>')
    with Running(tmp_path, bus.address, VECTOR_LEVEL="none").start() as daemon:
        with Screen(environ_of(daemon), "top") as shown:
            shown.until("! what serves, objects, changes and drift are not shown: ")
            daemon.kill()
            shown.until("! waiting for op-dbus ...")
            bus.kill()
            shown.until("is gone: trying again")
        with Screen(environ_of(daemon), "top") as shown:
            assert shown.exit_code() == 4
            assert (shown.sent, shown.settings) == ("", shown.before)
            assert "cannot reach the message bus" in shown.errors


def test_the_terminal_is_as_before_after_a_defect(tmp_path: Path) -> None:
    """An exception is told on a terminal that is as it was."""
    code = "from opdbus.cli.top.terminal import Terminal\nwith Terminal(is_coloured=True): 1 / 0"
    with Screen(environment("", tmp_path, {}), "-c", code) as shown:
        assert_ended(shown, 1)
        assert "ZeroDivisionError" in shown.errors
