"""Command `op-dbus ask`: sends a question to the command that can answer it."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout
from datetime import UTC, datetime
from typing import Any

import click

from opdbus.cli import output, rows
from opdbus.cli.root import as_json, root
from opdbus.errors import InvalidArgs
from opdbus.language import routes
from opdbus.platform.lines import split_lines


@root.command()
@click.argument("question", nargs=-1, required=True)
@as_json
@click.pass_context
def ask(context: click.Context, question: tuple[str, ...], json_: bool) -> Any:  # noqa: ANN401, FBT001
    """Send QUESTION to search, changes, drift or status.

    The first line says which command that is; what follows, and the exit code, are its own. A
    question about what happened, and when or why, is one for changes; whether all is as it should
    be, one for drift; what op-dbus itself does or knows, one for the status; any other is one for
    search.
    """
    text = " ".join(question)
    if not text.strip():
        raise InvalidArgs("the question is empty: ask in words")
    route = route_of(text)
    arguments = route.arguments(text)
    context.meta[rows.ASKED] = arguments
    if not json_:
        print(output.style(f"{route.name}: {output.visible(route.command(text))}", "bold"))
        return _run(context, arguments)
    with redirect_stdout(io.StringIO()) as printed:
        code = _run(context, [arguments[0], "--json", *arguments[1:]])
    answer = _read(printed.getvalue(), is_lines=route.name == "changes")
    output.as_json({"route": route.name, "command": route.command(text), "answer": answer})
    return code


def route_of(question: str) -> routes.Route:
    """Return the route of a question that is asked now."""
    return routes.find_route(question, datetime.now(UTC).astimezone().replace(tzinfo=None))


def _run(context: click.Context, arguments: list[str]) -> Any:  # noqa: ANN401 -- as of click
    """Run another command and return its exit code."""
    command = root.commands[arguments[0]]
    with command.make_context(arguments[0], arguments[1:], parent=context) as inner:
        return command.invoke(inner)


def _read(printed: str, *, is_lines: bool) -> Any:  # noqa: ANN401 -- any JSON
    """Parse the JSON that a command printed: one value, or one a line."""
    return [json.loads(line) for line in split_lines(printed)] if is_lines else json.loads(printed)
