"""op-dbus.service on a booted host: its settings, its life, its properties."""

import json
from typing import Any

from system.host import Entry, Host

UNIT = "op-dbus.service"
NAME = "org.opdbus"
ROOT_PATH, STATE_PATH = "/org/opdbus", "/org/opdbus/state"
VECTORIZER, STATE = "org.opdbus.Vectorizer1", "org.opdbus.State1"
STATE_FILE = "/etc/op-dbus/state.json"
SETTINGS = "/etc/op-dbus/op-dbus.env"
STORE = "/var/lib/op-dbus"
_DROP_INS = f"/run/systemd/system/{UNIT}.d"
UNITS = {
    "chrony.service": "keeps the clock right",
    "nginx.service": "web server",
    "resolved.service": "looks up the names of hosts",
}
# SD_MESSAGE_UNIT_STARTED and SD_MESSAGE_UNIT_FAILURE_RESULT of sd-messages.h
STARTED = "39f53479d3a045ac8e11786248231fbf"
FAILED = "d9b373ed55a64feb8242e02dbe79a49c"
CHANGES = (
    f"type='signal',sender='{NAME}'",
    # not of those that ask: each question would ask again
    f"type='signal',sender='org.freedesktop.DBus',member='NameOwnerChanged',arg0='{NAME}'",
)


class Service:
    """The unit, driven with systemctl and busctl as an administrator does.

    It is asked for properties by a user of the host, root if none is given.
    """

    def __init__(self, host: Host, user: str = "") -> None:
        self.host = host
        self.user = user
        self._settings = host.path(SETTINGS).read_text()
        self._is_changed = False

    def settle(self) -> None:
        """Serve with the default settings and three units, all of them vectorized.

        The host is not observed: what it does by itself is not what most tests are about.
        """
        self.declare(UNITS)
        self.systemctl("start")
        self.reload()

    def observe(self, names: str = "auto", level: str = "static") -> None:
        """Start anew with observers of the host, and wait until each has listed what there is.

        Hundreds of objects take the level static a moment, and the level medium seconds.
        """
        self.configure(OBSERVE=names, VECTOR_LEVEL=level)
        self.systemctl("restart")
        with self.host.monitor(*CHANGES) as heard:
            heard.until(lambda: all(row[1] != "starting" for row in self.get("Observers", STATE)))
        self.until_ready()

    def forget(self) -> None:
        """Undo what was changed; what ended by a fault may start again."""
        if self._is_changed:
            self.systemctl("stop")
            self.host.write(SETTINGS, self._settings)
            self.host.ask("rm", "-rf", _DROP_INS)
            self.host.ask("systemctl", "daemon-reload")
        self.host.run("systemctl", "reset-failed", UNIT)

    def configure(self, **settings: object) -> None:
        """Write the settings, which count from the next start on."""
        self._is_changed = True
        given = {"OBSERVE": "none", **settings}
        lines = [f"OP_DBUS_{key}={value}\n" for key, value in given.items()]
        self.host.write(SETTINGS, "".join(lines))

    def drop_in(self, *lines: str) -> None:
        """Change the unit until it is forgotten."""
        self._is_changed = True
        self.host.write(f"{_DROP_INS}/test.conf", "\n".join(["[Service]", *lines, ""]))
        self.host.ask("systemctl", "daemon-reload")

    def declare(self, units: dict[str, str]) -> None:
        """Write the state file: units and their descriptions."""
        described = {name: {"description": text} for name, text in units.items()}
        plugins = {"systemd": {"units": described}}
        self.host.write(STATE_FILE, json.dumps({"version": 1, "plugins": plugins}))

    def systemctl(self, verb: str, *options: str) -> str:
        """Do to the unit what has to succeed."""
        return self.host.ask("systemctl", verb, UNIT, *options)

    def show(self, name: str) -> str:
        """Give a property of the unit."""
        return self.host.show(UNIT, name)

    @property
    def pid(self) -> str:
        """The main process, as the host counts."""
        return self.show("MainPID")

    def get(self, name: str, interface: str = VECTORIZER) -> Any:
        """Read a property of the service, which is not started for it."""
        path = STATE_PATH if interface == STATE else ROOT_PATH
        command = ["busctl", "--json=short", "--auto-start=no", "get-property"]
        text = self.host.ask(*command, NAME, path, interface, name, user=self.user)
        return json.loads(text)["data"]

    def call(self, path: str, member: str, signature: str = "", *arguments: str) -> list[Any]:
        """Call a method that has to succeed, `org.opdbus.State1.Search`, with busctl."""
        interface, name = member.rsplit(".", 1)
        text = self.host.ask(
            "busctl", "--json=short", "call", NAME, path, interface, name, signature, *arguments
        )
        return list(json.loads(text)["data"]) if text else []

    def reload(self) -> None:
        """Have it read the state file, and wait until it has a vector of every object of that.

        `systemctl reload` only sends a signal.
        """
        self.call(ROOT_PATH, f"{VECTORIZER}.Reload", "a{sv}", "0")
        self.until_ready()

    def until_ready(self) -> None:
        """Wait until the model serves and every object has its vector."""
        if not self._is_ready():
            with self.host.monitor(*CHANGES) as heard:
                heard.until(self._is_ready)

    def _is_ready(self) -> bool:
        return (self.get("State"), self.get("Pending", STATE)) == ("ready", 0)

    def until_failed(self, after: str) -> Entry:
        """Wait until it has ended by a fault, and give what systemd says of that."""
        return self.host.await_entry(after, _PID="1", UNIT=UNIT, MESSAGE_ID=FAILED)

    def until_started(self, after: str) -> Entry:
        """Wait until systemd has started it again."""
        return self.host.await_entry(after, _PID="1", UNIT=UNIT, MESSAGE_ID=STARTED)
