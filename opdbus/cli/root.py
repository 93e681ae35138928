"""Root command: its group, options shared by commands, and conversion of click's errors."""

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from opdbus import __version__, config
from opdbus.cli import completing
from opdbus.errors import InvalidArgs
from opdbus.settings.parsing import decimal

T = TypeVar("T", bound=Callable[..., Any])

as_json = click.option("--json", "json_", is_flag=True, help="Print JSON.")
plugin = click.option(
    "--plugin",
    metavar="NAME",
    help="Only objects of this plugin.",
    shell_complete=completing.plugins,
)
kind = click.option(
    "--kind", metavar="NAME", help="Only objects of this kind.", shell_complete=completing.kinds
)
level_names = completing.words(config.LEVELS)
# largest number of hits, objects or changes that a command returns
MOST = 10_000


class Root(click.Group):
    """Root group that reports click's usage errors in the style of op-dbus."""

    def main(self, *args: Any, **extra: Any) -> Any:  # noqa: ANN401 -- click's signature
        """Run, and convert click's errors to op-dbus errors and exit codes."""
        try:
            return super().main(*args, **extra)
        except click.exceptions.Abort:
            raise KeyboardInterrupt from None
        except click.ClickException as error:
            if type(error).__name__ == "NoArgsIsHelpError":  # click 8.1 does not have this class
                error.show()
                return error.exit_code
            raise InvalidArgs(_usage(error)) from None

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 -- click's signature
        """Run a command; a closed pipe raises OutputClosed, which click would call a failure."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise OutputClosed from None


class OutputClosed(Exception):
    """The reader of standard output closed it, as `head` does."""


def _usage(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    # click writes `No such option '--explain'. Did you mean '--plugin'?`
    said, meant, words = error.format_message().rstrip(".").partition("Did you mean")
    if meant:
        said = f"{said.rstrip(' (.')}; did you mean{words.removesuffix(')')}"
    if not context:
        return said
    between = " See" if said.endswith("?") else "; see"
    return f"{said}{between} `{context.command_path} --help`"


@click.group(cls=Root, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="op-dbus")
@click.option(
    "--bus",
    metavar="BUS",
    help="system, session, or an address (OP_DBUS_BUS).",
    shell_complete=completing.words(("system", "session")),
)
@click.pass_context
def root(context: click.Context, bus: str | None) -> None:
    """Search a host's state by meaning: the semantic memory on D-Bus."""
    context.obj = {"bus": bus} if bus else {}


def where_of(help_text: str) -> Callable[[T], T]:
    """Make the repeatable option --where; the command gets the conditions as one text."""
    joined = lambda _context, _parameter, given: ", ".join(given)  # noqa: E731 -- for click alone
    return click.option("--where", metavar="COND", multiple=True, callback=joined, help=help_text)


def settings(flags: dict[str, str]) -> config.Config:
    """Read the settings for a command."""
    return config.load(os.environ, flags)


def count(text: str | int) -> int:
    """Parse a limit from 1 to MOST; raises BadParameter with the accepted range."""
    return _within(range(1, MOST + 1), text)


def count_or_none(text: str | int) -> int:
    """Parse a limit from 0 to MOST; raises BadParameter with the accepted range."""
    return _within(range(MOST + 1), text)


def number(text: str | int) -> int:
    """Parse an unsigned 32-bit number; raises BadParameter with the accepted range."""
    return _within(range(1 << 32), text)


def _within(accepted: range, text: str | int) -> int:
    found = decimal(str(text))
    if found is not None and found in accepted:
        return found
    raise click.BadParameter(f"{str(text)!r} is not a number from {accepted[0]} to {accepted[-1]}")
