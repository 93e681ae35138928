"""op-dbus.env(5) and the file it describes: the settings, from the table in opdbus.config."""

import textwrap
from collections.abc import Iterator

import roff

from opdbus import config

_HEAD = """\
Settings of op-dbus.service, each with its default: remove the # to change one, and then
`systemctl restart op-dbus`. An empty variable counts as
unset, also where the unit sets it: OP_DBUS_STATE_DIR and OP_DBUS_MODEL_DIR. See op-dbus.env(5).
"""
_DESCRIPTION = """\
The service `op-dbus.service` reads its settings from `/etc/op-dbus/op-dbus.env`, a file of
variables as systemd.exec(5) describes it under `EnvironmentFile=`. The same variables can be given
to every command of op-dbus(1), and each is an option of `op-dbus daemon`: lower case, hyphens,
without the prefix.

All values that are not accepted are reported together, each with what is accepted, and the program
ends with status 2. So is a name that begins with the prefix and is not a setting.

Only root and the service, by the group `op-dbus-config`, may read `/etc/op-dbus`, since what lies
there may hold secrets. `op-dbus config` of another user shows the settings of that user's shell.

systemd reads the file when it starts the service: after a change, `systemctl restart op-dbus`.
Settings in the TOML file that `OP_DBUS_CONFIG` names can change while the service runs: `systemctl
reload op-dbus` applies those of the model and its provider, and the log names those that need a
restart.

The service keeps its data in `/var/lib/op-dbus`. It may write nowhere else and cannot see home
folders: another `OP_DBUS_STATE_DIR` has to be named in `ReadWritePaths=` in a drop-in.

If the service does not start, `op-dbus doctor` says why and what to do.
"""
_CONFIG_DOC = (
    "A TOML file of the same settings, in lower case and without the prefix; variables win over it."
)
_EXAMPLE = """\
OP_DBUS_EXECUTION_PROVIDER=cuda,cpu
OP_DBUS_VECTOR_LEVEL=high
OP_DBUS_THREADS=2"""


def file() -> str:
    """Write op-dbus.env: every variable as a comment, with its default and what it is for."""
    blocks = [f"{_commented(doc)}#{name}={default}\n" for name, default, doc in _rows()]
    return "\n".join([_commented(_HEAD), *blocks])


def page() -> str:
    """Write the manual page."""
    return roff.page(
        "op-dbus.env",
        5,
        "File Formats",
        [
            roff.section("NAME", "op\\-dbus.env \\- settings of op\\-dbus"),
            roff.section("SYNOPSIS", roff.bold("/etc/op-dbus/op-dbus.env")),
            roff.section("DESCRIPTION", roff.paragraphs(_DESCRIPTION)),
            roff.section("SETTINGS", *_settings()),
            roff.section("EXAMPLE", roff.example(_EXAMPLE)),
            roff.section("SEE ALSO", ".BR op\\-dbus (1),\n.BR systemd.exec (5)"),
        ],
    )


def _settings() -> Iterator[str]:
    for name, default, doc in _rows():
        yield roff.tagged(roff.bold(name), doc, f"Default: `{default}`." if default else "")


def _rows() -> Iterator[tuple[str, str, str]]:
    """Give each variable with its default and a sentence."""
    for setting in config.SETTINGS:
        yield setting.variable, setting.default, setting.doc[0].upper() + setting.doc[1:] + "."
    yield config.CONFIG_FILE_VARIABLE, "", _CONFIG_DOC


def _commented(text: str) -> str:
    return textwrap.indent(textwrap.fill(" ".join(text.split()), 97), "# ") + "\n"
