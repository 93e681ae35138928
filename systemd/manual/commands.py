"""op-dbus(1): the command, from what the command itself knows of its arguments."""

import re
from collections.abc import Iterator

import click
import roff

# each adds its commands to the root
from opdbus.cli import bench, commands, engine, local, models  # noqa: F401
from opdbus.cli.root import root
from opdbus.config import CONFIG_FILE_VARIABLE

_DESCRIPTION = """\
`op-dbus` is the semantic memory of a host: a daemon turns every object that the host declares in its
state file, or that programs publish, into a vector, and answers questions about them over D-Bus. The
other commands ask the daemon, or tell about the models and the hardware that it would run on.""".replace(
    "\n", " "
)
_OBJECTS = """\
Objects are named `PLUGIN/KIND/NAME`, as `list` prints them, or by their D-Bus path."""
_EXIT = (
    ("0", "Done."),
    ("1", "Failed, or `doctor` found something wrong."),
    ("2", "Wrong usage, or a setting that is not accepted."),
    ("3", "The provider or the model cannot be had."),
    ("4", "The daemon cannot be reached."),
    ("5", "The daemon refused: not authorized."),
)
_FILES = (
    ("/etc/op-dbus/op-dbus.env", "The settings of the service, described in op-dbus.env(5)."),
    ("/etc/op-dbus/state.json", "The state that the host declares."),
    ("/var/lib/op-dbus", "The database, the graphs built from the models, and the models."),
)
_EXAMPLES = """\
op-dbus search "what keeps the clock right?"
op-dbus similar systemd/unit/chronyd.service --limit 3
op-dbus models pull low
op-dbus vectorize --bulk texts.jsonl --output vectors.npy"""


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
            roff.section("DESCRIPTION", roff.paragraph(_DESCRIPTION), roff.paragraph(_OBJECTS)),
            roff.section("OPTIONS", *_options(root, context)),
            roff.section("COMMANDS", *_commands(root, context)),
            roff.section("EXIT STATUS", *(roff.tagged(*row) for row in _EXIT)),
            roff.section("ENVIRONMENT", *_environment()),
            roff.section("FILES", *(roff.tagged(roff.bold(name), text) for name, text in _FILES)),
            roff.section("EXAMPLES", roff.example(_EXAMPLES)),
            roff.section("SEE ALSO", _SEE_ALSO),
        ],
    )


_SEE_ALSO = ".BR op\\-dbus.env (5),\n.BR org.opdbus (5),\n.BR busctl (1),\n.BR systemctl (1)"


def _synopsis() -> tuple[str, str]:
    return (
        f"{roff.bold('op-dbus')} [{roff.bold('--bus')} {roff.italic('BUS')}]"
        f" {roff.italic('COMMAND')} [{roff.italic('ARGUMENT')}...]",
        f".br\n{roff.bold('op-dbus daemon')} [{roff.bold('--')}{roff.italic('SETTING')}"
        f" {roff.italic('VALUE')}]...",
    )


def _commands(group: click.Group, context: click.Context) -> Iterator[str]:
    """Describe each command; another name of one that was described is only mentioned."""
    names: dict[int, list[str]] = {}
    for name, command in group.commands.items():
        names.setdefault(id(command), []).append(name)
    for same in names.values():
        command = group.commands[same[0]]
        inner = click.Context(command, info_name=same[0], parent=context)
        if isinstance(command, click.Group):
            yield from _commands(command, inner)
        elif not command.hidden:
            yield from _command(command, inner, same[1:])


def _command(command: click.Command, context: click.Context, aliases: list[str]) -> Iterator[str]:
    name = context.command_path.removeprefix("op-dbus ")
    yield roff.subsection(name, "", _usage(name, command, context))
    for text in _paragraphs(command.help or ""):
        yield roff.paragraph(text)
    if aliases:
        yield roff.paragraph("Also named " + ", ".join(f"`{alias}`" for alias in aliases) + ".")
    yield from _options(command, context)


def _usage(name: str, command: click.Command, context: click.Context) -> str:
    """Show how a command is written."""
    pieces = command.collect_usage_pieces(context)
    shown = [re.sub(r"[A-Z]{2,}", lambda m: roff.italic(m[0]), roff.escaped(p)) for p in pieces]
    options, arguments = shown[0], shown[1:]
    options = options.replace("OPTIONS", "OPTION")
    return " ".join([".PP\n" + roff.bold("op-dbus " + name), options + "...", *arguments])


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    for parameter in command.params:
        record = parameter.get_help_record(context)
        if record is None:
            continue
        yield roff.tagged(_tag(parameter, context), _spelt(record[1]))
    if isinstance(command, click.Group):
        yield roff.tagged(roff.bold("-h") + ", " + roff.bold("--help"), "Tell how it is used.")


def _tag(parameter: click.Parameter, context: click.Context) -> str:
    names = ", ".join(roff.bold(name) for name in sorted(parameter.opts, key=len))
    if getattr(parameter, "is_flag", False):
        return names
    return f"{names} {roff.italic(parameter.make_metavar(context))}"


def _spelt(text: str) -> str:
    """Make a sentence of click's line, which ends with the default in brackets."""
    line, bracket, rest = text.partition("  [")
    return f"{line} [{rest}" if bracket else line


def _paragraphs(text: str) -> list[str]:
    return [part for part in text.split("\n\n") if part.strip()]


def _environment() -> Iterator[str]:
    yield roff.paragraph(
        "Every setting of op-dbus.env(5) is read from the environment, by every command. An option"
        " wins over the variable."
    )
    yield roff.tagged(
        roff.bold(CONFIG_FILE_VARIABLE),
        "A TOML file of the same settings, in lower case and without the prefix. Variables win over"
        " it.",
    )
