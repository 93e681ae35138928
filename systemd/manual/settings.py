"""op-dbus.env(5) and the file it describes: the settings, from the table in opdbus.config."""

import textwrap
from collections.abc import Iterator

import roff

from opdbus import config

_HEAD = """\
Settings of op-dbus.service. Each line below holds a default: remove the # to change one, then
`systemctl reload op-dbus`, or `restart` where the log asks for it. A variable without a value is
the same as none. op-dbus.env(5) says more.
"""
_DESCRIPTION = (
    "The service `op-dbus.service` reads its settings from `/etc/op-dbus/op-dbus.env`, a file of"
    " variables as systemd.exec(5) describes it under `EnvironmentFile=`. The same variables can be"
    " given to every command of op-dbus(1), and each is an option of `op-dbus daemon`: lower case,"
    " hyphens, without the prefix.",
    "All values that are not accepted are reported together, each with what is, and the program ends"
    " with status 2. So does a name that begins with the prefix and is no setting.",
    "After a change, `systemctl reload op-dbus` takes in what concerns the model and its provider"
    " while the service goes on; other settings wait for a restart, and the log says so.",
    "The service keeps its data under `/var/lib/op-dbus`, unless `OP_DBUS_STATE_DIR` and"
    " `OP_DBUS_MODEL_DIR` name other folders. It may write nowhere else: a drop-in with"
    " `ReadWritePaths=` allows more.",
)
_EXAMPLE = """\
OP_DBUS_EXECUTION_PROVIDER=cuda,cpu
OP_DBUS_VECTOR_LEVEL=high
OP_DBUS_THREADS=2"""


def file() -> str:
    """Write op-dbus.env: every variable as a comment, with its default and what it is for."""
    blocks = [_commented(_HEAD)]
    for setting in config.SETTINGS:
        doc = setting.doc[0].upper() + setting.doc[1:] + "."
        blocks.append(f"{_commented(doc)}#{setting.variable}={setting.default}\n")
    return "\n".join(blocks)


def page() -> str:
    """Write the manual page."""
    return roff.page(
        "op-dbus.env",
        5,
        "File Formats",
        [
            roff.section("NAME", "op\\-dbus.env \\- settings of op\\-dbus"),
            roff.section("SYNOPSIS", roff.bold("/etc/op-dbus/op-dbus.env")),
            roff.section("DESCRIPTION", *map(roff.paragraph, _DESCRIPTION)),
            roff.section("SETTINGS", *_settings()),
            roff.section("EXAMPLE", roff.example(_EXAMPLE)),
            roff.section("SEE ALSO", ".BR op\\-dbus (1),\n.BR systemd.exec (5)"),
        ],
    )


def _settings() -> Iterator[str]:
    for setting in config.SETTINGS:
        doc = setting.doc[0].upper() + setting.doc[1:] + "."
        default = f"Default: `{setting.default}`." if setting.default else ""
        yield roff.tagged(roff.bold(setting.variable), doc, default)


def _commented(text: str) -> str:
    return textwrap.indent(textwrap.fill(" ".join(text.split()), 97), "# ") + "\n"
