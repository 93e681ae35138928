"""op-dbus(1): the command, from what the command itself knows of its arguments."""

import re
from collections.abc import Iterator

import click
import roff

from opdbus.cli import modules
from opdbus.cli.root import root

_DESCRIPTION = """\
`op-dbus` is the semantic memory of a host: a daemon observes units, packages, accounts, devices,
file systems and the network, reads what the state file declares and what programs publish, turns
each of these objects into a vector, and answers questions about them over D-Bus: what is like
another, what changed, what drifted. It never changes the host. The other commands ask the daemon,
or show the models and the hardware that it can use.

A command that asks the daemon of the system bus starts its service where that was stopped, as any
call to `org.opdbus` does; `changes --watch` does not while it waits. `systemctl mask --now op-dbus`
keeps it stopped.

Objects are named `PLUGIN/KIND/NAME`, as `list` prints them, by their D-Bus path, or by a part
of that name: `sshd` and `unit/sshd` for `systemd/unit/sshd.service`. Of several objects of a
name, the unit is taken, else the package, which is said on stderr; `withdraw` and `history forget`
refuse.
"""
_ORDER = [module.__name__ for module in modules()]
_PLACEHOLDER = re.compile(r"[A-Z]{2,}")
_EXIT = (
    ("0", "Done."),
    (
        "1",
        "Failed; `doctor` or `history verify` found something wrong; `check` read what is refused.",
    ),
    ("2", "Wrong usage, or a setting that is not accepted."),
    ("3", "The provider or the model is not available."),
    ("4", "The daemon cannot be reached; if its service ended by a fault, by which."),
    ("5", "The daemon refused: not authorized."),
    ("10", "With `drift --exit-code`: something is other than declared."),
    ("11", "With `drift --exit-code`: nothing is so far, but not all is known yet."),
    ("12", "`search`, `similar`, `changes` with a question, or `declare` found nothing."),
)
_FILES = (
    (
        "/etc/op-dbus/op-dbus.env",
        "The settings of the service, described in op-dbus.env(5); for root and the service only.",
    ),
    (
        "/etc/op-dbus/state.json",
        "The state that the host declares: `install -g op-dbus-config -m 640` puts it there.",
    ),
    (
        "/etc/op-dbus/notify.toml, /etc/op-dbus/notify.d",
        "The rules of alerts, and the executables that op-dbus-notify.service runs for them.",
    ),
    (
        "/run/op-dbus/http.sock, /run/op-dbus/write.sock",
        "The sockets of the HTTP gateway: `systemctl enable --now op-dbus-gateway.socket`.",
    ),
    (
        "/etc/credstore/op-dbus.http-token, /etc/credstore/op-dbus.http-write-token",
        "The tokens that clients of the gateway send over TCP to read and to publish.",
    ),
    (
        "/etc/credstore/op-dbus.fleet-password",
        "The password by which the gateway reads the fleet's database.",
    ),
    (
        "/etc/op-dbus-gateway",
        "The web configuration of the gateway's metrics, and its certificates.",
    ),
    (
        "/var/lib/op-dbus",
        "The service's database, the graphs built from the models, and the models of root.",
    ),
    (
        "$XDG_STATE_HOME/op-dbus, ~/.local/state/op-dbus",
        "The same of every other program, root's included.",
    ),
)
_ENVIRONMENT = """\
Every command reads its settings, described in op-dbus.env(5), from the environment. An option wins
over the variable.
"""
_EXAMPLES = """\
op-dbus search "what keeps the clock right?"
op-dbus similar systemd/unit/chronyd.service --limit 3
op-dbus drift --severity warning --exit-code
op-dbus models pull low
op-dbus vectorize --bulk texts.jsonl --output vectors.npy"""
_SEE_ALSO = ".BR op\\-dbus.env (5),\n.BR org.opdbus (5),\n.BR busctl (1),\n.BR systemctl (1)"


def page() -> str:
    """Write the page."""
    context = click.Context(root, info_name="op-dbus")
    return roff.page(
        "op-dbus",
        1,
        "User Commands",
        [
            roff.section("NAME", "op\\-dbus \\- search the state of a host by meaning"),
            roff.section("SYNOPSIS", *_synopsis()),
            roff.section("DESCRIPTION", roff.paragraphs(_DESCRIPTION)),
            roff.section("OPTIONS", *_options(root, context)),
            roff.section("COMMANDS", *_commands(root, context)),
            roff.section("EXIT STATUS", *(roff.tagged(*row) for row in _EXIT)),
            roff.section("ENVIRONMENT", roff.paragraphs(_ENVIRONMENT)),
            roff.section("FILES", *(roff.tagged(roff.bold(name), text) for name, text in _FILES)),
            roff.section("EXAMPLES", roff.example(_EXAMPLES)),
            roff.section("SEE ALSO", _SEE_ALSO),
        ],
    )


def _synopsis() -> tuple[str, str]:
    general = r"\fBop\-dbus\fR [\fB\-\-bus\fR \fIBUS\fR] \fICOMMAND\fR [\fIARGUMENT\fR...]"
    daemon = r"\fBop\-dbus daemon\fR [\fB\-\-\fISETTING\fR \fIVALUE\fR]..."
    return general, ".br\n" + daemon


def _commands(group: click.Group, context: click.Context) -> Iterator[str]:
    """Describe each command; another name of one that was described is only mentioned."""
    names: dict[click.Command, list[str]] = {}
    for name, command in group.commands.items():
        names.setdefault(command, []).append(name)
    for command in sorted(names, key=_rank):
        name, *aliases = names[command]
        inner = click.Context(command, info_name=name, parent=context)
        if isinstance(command, click.Group):
            yield from _commands(command, inner)
        else:
            yield from _command(command, inner, aliases)


def _rank(command: click.Command) -> int:
    return _ORDER.index(getattr(command.callback, "__module__", ""))


def _command(command: click.Command, context: click.Context, aliases: list[str]) -> Iterator[str]:
    name = context.command_path.removeprefix("op-dbus ")
    yield roff.subsection(name, _usage(name, command, context))
    yield roff.paragraphs(command.help or "")
    if aliases:
        yield roff.paragraphs("Also named " + ", ".join(f"`{alias}`" for alias in aliases) + ".")
    yield from _options(command, context)


def _usage(name: str, command: click.Command, context: click.Context) -> str:
    """Show how a command is written; what stands for something else is in italics."""
    _, *arguments = command.collect_usage_pieces(context)
    shown = [_PLACEHOLDER.sub(lambda m: roff.italic(m[0]), roff.escaped(a)) for a in arguments]
    option = f"[{roff.italic('OPTION')}]..." if any(_described(command)) else ""
    return " ".join(filter(None, [".PP\n" + roff.bold("op-dbus " + name), option, *shown]))


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    for option in _described(command):
        yield roff.tagged(_tag(option, context), _help(option))
    if command is root:
        yield roff.tagged(f"{roff.bold('-h')}, {roff.bold('--help')}", "Show help and exit.")


def _described(command: click.Command) -> Iterator[click.Option]:
    return (option for option in command.params if isinstance(option, click.Option))


def _tag(option: click.Option, context: click.Context) -> str:
    names = ", ".join(roff.bold(name) for name in sorted(option.opts, key=len))
    if option.is_flag:
        return names
    if option.metavar or isinstance(option.type, click.Choice):
        return f"{names} {roff.italic(option.make_metavar(context))}"
    # click would name the type, which says less than the option's own name
    value = "FILE" if isinstance(option.type, click.Path) else (option.name or "").upper()
    return f"{names} {roff.italic(value)}"


def _help(option: click.Option) -> str:
    default = f" [{option.default}]" if option.show_default else ""
    return f"{option.help}{default}"
