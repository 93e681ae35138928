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
    shell_complete=completing.complete_plugins,
)
kind = click.option(
    "--kind",
    metavar="NAME",
    help="Only objects of this kind.",
    shell_complete=completing.complete_kinds,
)
level_names = completing.complete_words(config.LEVELS)
# largest number of hits, objects or changes that a command returns
MAX_ROWS = 10_000


class NumberIn(click.ParamType):  # type: ignore[type-arg]  # not generic in click 8.1
    """Type of an option that accepts the numbers of a range."""

    name = "number"

    def __init__(self, accepted: range) -> None:
        self._accepted = accepted

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse a number; fails with the accepted range."""
        found, accepted = decimal(str(value)), self._accepted
        if found is None or found not in accepted:
            wanted = f"a number from {accepted[0]} to {accepted[-1]}"
            self.fail(f"{str(value)!r} is not {wanted}", param, ctx)
        return found


COUNT = NumberIn(range(1, MAX_ROWS + 1))
COUNT_OR_ZERO = NumberIn(range(MAX_ROWS + 1))
NUMBER = NumberIn(range(1 << 32))


class Root(click.Group):
    """Root group that reports click's usage errors in the style of op-dbus."""

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run, and convert click's errors to op-dbus errors and exit codes."""
        try:
            return super().main(*args, **extra)
        except click.exceptions.Abort:
            raise KeyboardInterrupt from None
        except click.ClickException as error:
            if type(error).__name__ == "NoArgsIsHelpError":  # click 8.1 does not have this class
                error.show()
                return error.exit_code
            raise InvalidArgs(_describe_usage_error(error)) from None

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; a closed pipe raises OutputClosed, which click would call a failure."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise OutputClosed from None


class OutputClosed(Exception):
    """The reader of standard output closed it, as `head` does."""


def _describe_usage_error(error: click.ClickException) -> str:
    """Return click's message as one sentence, with the command that shows the usage."""
    context = getattr(error, "ctx", None)
    # click writes `No such option '--explain'. Did you mean '--plugin'?`
    text, is_hint, words = error.format_message().rstrip(".").partition("Did you mean")
    if is_hint:
        text = f"{text.rstrip(' (.')}; did you mean{words.removesuffix(')')}"
    if not context:
        return text
    between = " See" if text.endswith("?") else "; see"
    return f"{text}{between} `{context.command_path} --help`"


@click.group(cls=Root, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="op-dbus")
@click.option(
    "--bus",
    metavar="BUS",
    help="system, session, or an address (OP_DBUS_BUS).",
    shell_complete=completing.complete_words(("system", "session")),
)
@click.pass_context
def root(context: click.Context, bus: str | None) -> None:
    """Search a host's state by meaning: the semantic memory on D-Bus."""
    context.obj = {"bus": bus} if bus else {}


def where_option(help_text: str) -> Callable[[T], T]:
    """Make the repeatable option --where; the command gets the conditions as one text."""

    def join(_context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> str:
        return ", ".join(given)

    return click.option("--where", metavar="COND", multiple=True, callback=join, help=help_text)


def load_settings(flags: dict[str, str]) -> config.Config:
    """Read the settings for a command."""
    return config.load(os.environ, flags)
