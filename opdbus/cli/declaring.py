"""Command that writes a state file from the host as it is, or takes differences over into one."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import click

from opdbus.bus import paths
from opdbus.bus.paths import STATE
from opdbus.cli import completing, output
from opdbus.cli.daemon_calls import ask, path_of, without_empty
from opdbus.cli.drifting import wait_until
from opdbus.cli.find_objects import NO_HITS
from opdbus.cli.root import kind, plugin, root
from opdbus.errors import InvalidArgs
from opdbus.platform import name_lists
from opdbus.state.object import SETTINGS, ObjectId
from opdbus.wording.change_words import plural as plural_words
from opdbus.wording.drift_words import describe_row

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from opdbus.client import Client
    from opdbus.state.document_edit import DocumentEditor

    # an object of State1.Baseline
    Entry: TypeAlias = Mapping[str, Any]
    Plugins: TypeAlias = dict[str, dict[str, Any]]

# Objects of a page: the daemon describes them in 0.2 s.
_AT_A_TIME: Final = 1000
# Objects have a line each; what contains them is indented.
_INDENTED_LEVELS: Final = 4
# Units that are started at boot and are not active; types of those that stay so; names in a line.
_STARTED_AT_BOOT: Final = "plugin=systemd, kind=unit, unit_file_state=enabled, active_state!=active"
_RUNNING: Final = (".service", ".socket", ".timer", ".path")
_MOST_IDLE: Final = 10
_CHOICES: Final = ("y", "n", "q")


@root.command()
@click.argument("objects", nargs=-1, shell_complete=completing.complete_objects)
@plugin
@kind
@click.option(
    "--all",
    "all_",
    is_flag=True,
    help="Also what comes and goes, and all fields that are compared.",
)
@click.option(
    "--update",
    "file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Take over into FILE how the objects differ; without OBJECT, ask for each.",
)
def declare(objects: Sequence[str], all_: bool, file: Path | None, **wanted: str | None) -> int:
    """Print a state file that declares the host as it is.

    It has what stays as it is until somebody changes it; objects that are named, and those of a
    plugin or kind that is named, are declared even if drift has no rules for them. Secrets are left
    out. The exit code is 12 if there is nothing to declare.
    """
    chosen = without_empty(**wanted)
    if file:
        if all_:
            raise click.UsageError("--all goes with a new file, not with --update")
        return _update(file, objects, chosen)
    scope = "all" if all_ else "object" if objects else "kind" if chosen else "stable"
    entries, claims, awaits = ask(partial(_read_baseline, objects, chosen, scope))
    if awaits:
        listed = ", ".join(awaits)
        output.print_note(f"op-dbus: not all is read yet, and so not all declared: {listed}")
    plugins, unnamed = _arrange(entries, claims)
    if not plugins:
        output.print_note("there is nothing to declare")
        return NO_HITS
    text = format_file({"version": 1, "plugins": plugins})
    print(text)
    hidden = sum(entry["hidden"] for entry in entries)
    declared = {(e["plugin"], e["kind"], e["name"]) for e in entries if not _is_secret(e)}
    count = len(declared) - unnamed
    size = max(1, len(text) >> 10)
    output.print_note(f"{count:,} {plural_words('object', count)}, {size:,} KiB")
    if idle := ask(partial(_find_idle_units, declared)) if scope == "stable" else []:
        listed = name_lists.join_first(idle, _MOST_IDLE)
        units = "unit starts" if len(idle) == 1 else "units start"
        they = "does" if len(idle) == 1 else "do"
        output.print_note(
            f"{len(idle):,} {units} at boot and {they} not run: {listed}; declared as enabled only"
        )
    if hidden:
        output.print_note(f"left out: {hidden:,} {plural_words('value', hidden)} with a secret")
    if unnamed:
        output.print_note(f"left out: {unnamed:,} that no state file can name")
    return 0


async def _read_baseline(
    objects: Sequence[str], wanted: Mapping[str, str], scope: str, client: Client
) -> tuple[Sequence[Entry], Sequence[Sequence[str]], Sequence[str]]:
    """Return what to declare, the kinds of which that is all, and the observers to wait for."""
    claims, awaits = await wait_until(client.baseline_kinds, lambda found: not found[1])
    if objects:
        paths = [await path_of(client, name) for name in objects]
        return await client.baseline(paths, scope), [], awaits
    entries: list[Entry] = []
    offset, total = 0, 1
    while offset < total:
        total, rows = await client.page(wanted, offset, _AT_A_TIME)
        if not rows:
            break
        entries += await client.baseline([path for path, *_ in rows], scope)
        offset += len(rows)
    # a kind with an object whose name is a secret is not declared completely
    secret = [[one["plugin"], one["kind"]] for one in entries if _is_secret(one)]
    claims = [one for one in claims if one not in secret and _is_wanted(one, wanted)]
    return entries, claims, awaits


async def _find_idle_units(declared: Collection[tuple[str, str, str]], client: Client) -> list[str]:
    """Return the declared units that start at boot, and could run, and do not.

    A service that ends by itself is none of them.
    """
    _, rows = await client.pages({"where": _STARTED_AT_BOOT}, 0, None)
    rows = [row for row in rows if tuple(row[1:]) in declared and row[3].endswith(_RUNNING)]
    values = await client.values([path for path, *_ in rows], ["type", "unmet_condition"])
    return [
        name
        for (*_, name), (type_, unmet) in zip(rows, values, strict=True)
        if type_ != "oneshot" and not unmet and "@." not in name
    ]


def _is_wanted(kind_id: Sequence[str], wanted: Mapping[str, str]) -> bool:
    plugin, kind = kind_id
    return wanted.get("plugin", plugin) == plugin and wanted.get("kind", kind) == kind


def _is_compared(state: Mapping[str, Any]) -> bool:
    return not state["DriftAwaits"]


def _arrange(entries: Sequence[Entry], claims: Sequence[Sequence[str]]) -> tuple[Plugins, int]:
    """Return the plugins of a state file, and the number of objects that have no place in one."""
    from opdbus.state.flatten import EXCLUSIVE, plural

    plugins: Plugins = {}
    for name, of_kind in sorted(map(tuple, claims)):
        content = plugins.setdefault(name, {EXCLUSIVE: []})
        content[EXCLUSIVE].append(plural(of_kind))
        content[plural(of_kind)] = {}
    unnamed = 0
    for entry in sorted(entries, key=lambda one: (one["plugin"], one["kind"], one["name"])):
        name, key = entry["plugin"], plural(entry["kind"])
        if _is_secret(entry):
            continue
        if entry["kind"] == SETTINGS and entry["name"] == name:
            plugins.setdefault(name, {}).update(entry["properties"])
        elif not key or entry["kind"] == SETTINGS:
            unnamed += 1
        else:
            plugins.setdefault(name, {}).setdefault(key, {})[entry["name"]] = entry["properties"]
    return dict(sorted(plugins.items())), unnamed


def _is_secret(entry: Entry) -> bool:
    """Return whether the name of an object is a secret, so that it cannot be declared."""
    return bool(entry["hidden"]) and not entry["properties"]


def format_file(value: Mapping[str, Any], level: int = 0) -> str:
    """Return a state file as text: a line for each object, so that versions compare well."""
    if level == _INDENTED_LEVELS or not isinstance(value, dict) or not value:
        return output.json_text(value)
    blank = "  " * (level + 1)
    members = (
        f"{blank}{output.json_text(key)}: {format_file(each, level + 1)}"
        for key, each in value.items()
    )
    return "{\n" + ",\n".join(members) + "\n" + "  " * level + "}"


def _update(file: Path, objects: Sequence[str], wanted: Mapping[str, str]) -> int:
    """Take differences over into a file; nothing is written if it is invalid or has changed."""
    from opdbus.state import file as state_file
    from opdbus.state.document_edit import DocumentEditor

    path = file.resolve()
    before = state_file.signature(path)
    data = state_file.read_bytes(path)
    plugins = state_file.parse(data, path)["plugins"]
    if not objects and not sys.stdin.isatty():
        raise click.UsageError("name the objects to take over; a terminal is asked for each")
    paths = ask(partial(_choose_named, objects) if objects else partial(_choose_drifting, wanted))
    if not objects:
        paths = _ask_for_each(paths)
    entries = ask(lambda client: client.baseline([*paths], "object", changes=True))
    edited = DocumentEditor(data.decode())
    done: list[str] = []
    removed: list[tuple[str | int, ...]] = []
    for entry in entries:
        done += _take_over(edited, plugins, entry, removed)
    # the last first: the places of those before it in a list stay as they are
    for at in sorted(removed, key=lambda at: (at[:-1], at[-1]), reverse=True):
        edited.remove(at)
    text = edited.text()
    if text == data.decode():
        output.print_note(f"nothing to take over: {file} is unchanged")
        return 0
    state_file.parse(text.encode(), path)
    if state_file.signature(path) != before:
        raise InvalidArgs(f"{file} was changed meanwhile: it is left as it is; try again")
    output.replace_file(path, text, path.stat())
    for note in done:
        output.print_note(note)
    if Path(ask(lambda client: client.state())["StateFile"]).resolve() == path:
        output.print_note(f"the daemon reads {file} within 2 seconds")
    return 0


async def _choose_named(objects: Sequence[str], client: Client) -> dict[str, list[str]]:
    """Return the objects of some names: of several with one name, those that differ."""
    await wait_until(client.state, _is_compared)
    drifting = {row[0] for row in await client.drift({})}
    chosen: dict[str, list[str]] = {}
    for name in objects:
        same = [] if name.startswith(STATE) else (await client.resolve(name))[0]
        differing = []
        for path, *_ in same if len(same) > 1 else ():
            # declared under another name, its differences are those of that object
            found = await client.baseline([path], "object", changes=True)
            if path in drifting or any(entry.get("changes") for entry in found):
                differing.append(path)
        chosen |= {path: [] for path in differing or [await path_of(client, name)]}
    return chosen


async def _choose_drifting(wanted: Mapping[str, str], client: Client) -> dict[str, list[str]]:
    await wait_until(client.state, _is_compared)
    rows = await client.drift(wanted)
    return {
        row[0]: [f"{bad}: {text}" for bad, text in describe_row(paths.parse(row[0]), row)]
        for row in rows
    }


def _ask_for_each(drifting: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return the objects whose differences the user takes over."""
    chosen: dict[str, list[str]] = {}
    for path, lines in drifting.items():
        for line in lines:
            output.print_note(line)
        said = click.prompt("take over?", "n", type=click.Choice(_CHOICES), err=True)
        if said == "q":
            break
        if said == "y":
            chosen[path] = []
    return chosen


def _take_over(
    edited: DocumentEditor, plugins: Plugins, entry: Entry, removed: list[tuple[str | int, ...]]
) -> list[str]:
    """Edit the declaration of one object; return a line for each change.

    The path of an object to remove is added to `removed`.
    """
    from opdbus.state import flatten

    object_id = ObjectId(entry["plugin"], entry["kind"], entry["name"])
    name = "/".join(object_id)
    found = flatten.find_member(plugins, object_id)
    at = ("plugins", *found)
    if "changes" not in entry:
        if found:
            return [f"{name} is declared already"]
        _add(edited, plugins, object_id, entry["properties"])
        return [f"{name}: declared"]
    if not found:
        return [f"{name}: this file does not declare it under that name"]
    notes = []
    for path, declared, *observed in entry["changes"]:
        field = f"{name}: {'.'.join(path)}"
        if not path and object_id.kind != SETTINGS:
            removed.append(at)
            notes.append(f"{name}: declared no more")
        elif _value_at(plugins, (*found, *path)) != declared:
            notes.append(f"{field} is not what op-dbus has read: left as it is")
        elif observed and declared is None:
            edited.set((*at, *path), observed[0])
            notes.append(f"{field} {output.json_text(observed[0])}: declared")
        elif observed:
            edited.set((*at, *path), observed[0])
            notes.append(f"{field} {output.json_text(declared)} -> {output.json_text(observed[0])}")
        else:
            edited.remove((*at, *path))
            notes.append(f"{field} declared no more")
    return notes


def _add(
    edited: DocumentEditor, plugins: Plugins, object_id: ObjectId, properties: Mapping[str, Any]
) -> None:
    """Add an object to the table of its kind, which is made if there is none."""
    from opdbus.state import flatten

    plugin_name, of_kind, name = object_id
    if plugin_name not in plugins:
        edited.set(("plugins", plugin_name), {})
        plugins[plugin_name] = {}
    if of_kind == SETTINGS:
        for field, value in properties.items():
            edited.set(("plugins", plugin_name, field), value)
        return
    key = flatten.find_table(plugins, plugin_name, of_kind)
    table = plugins[plugin_name].get(key)
    if table is None:
        edited.set(("plugins", plugin_name, key), {})
        table = plugins[plugin_name][key] = {}
    if isinstance(table, dict):
        edited.set(("plugins", plugin_name, key, name), properties)
        table[name] = properties
        return
    naming = next((each for each in flatten.NAMING_KEYS if table and each in table[0]), "name")
    edited.set(("plugins", plugin_name, key, len(table)), {naming: name, **properties})
    table.append({naming: name, **properties})


def _value_at(plugins: Plugins, path: Sequence[str | int]) -> Any:
    found: Any = plugins
    for key in path:
        if not isinstance(found, dict | list) or (isinstance(found, dict) and key not in found):
            return None
        found = found[key]  # type: ignore[index]  # a list's index is a number
    return found
