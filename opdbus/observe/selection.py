"""Built-in observers, and the selection of observers by OP_DBUS_OBSERVE."""

import difflib
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import entry_points
from itertools import chain
from typing import Final

from opdbus.errors import ConfigError
from opdbus.observe.core.report import Observer
from opdbus.observe.dbus import login1, machined
from opdbus.observe.dbus.mirror import INTROSPECT, Mirror
from opdbus.observe.host import config_files, cron, host_facts, users
from opdbus.observe.kernel import filesystems, hardware, kernel
from opdbus.observe.kernel.uevents import Uevents
from opdbus.observe.network import network, sockets
from opdbus.observe.packages import package_observer
from opdbus.observe.systemd import unit_observer
from opdbus.settings.parsing import AUTO

# Entry point group in which other packages register observers.
_GROUP: Final = "opdbus.observers"
# Built-in observers that need no socket from systemd.
OURS: Final = (
    cron.OBSERVER,
    config_files.OBSERVER,
    filesystems.OBSERVER,
    host_facts.OBSERVER,
    login1.OBSERVER,
    machined.OBSERVER,
    package_observer.OBSERVER,
    unit_observer.OBSERVER,
    users.OBSERVER,
)


def select_observers(names: Sequence[str], passed: Mapping[str, socket.socket]) -> list[Observer]:
    """Return the observers that OP_DBUS_OBSERVE names; `auto` means all built-in ones.

    A name with a dot or colon that is no plug-in is a service on the system bus, to be mirrored.

    `passed` maps the names of systemd's socket units (FileDescriptorName=) to open sockets.
    Raises ConfigError for an unknown or repeated name, and if an observer cannot be loaded.
    """
    # devices and kernel share one socket
    events = Uevents(passed.get("uevent"))
    all_ours = (
        *OURS,
        hardware.observer(events),
        kernel.observer(events),
        network.observer(passed.get("route")),
        sockets.observer(passed.get("diag")),
    )
    ours = {observer.name: observer for observer in all_ours}
    named = dict.fromkeys(chain.from_iterable(ours if n == AUTO else [n] for n in names))
    if not named.keys() - ours.keys():
        return [ours[name] for name in named]
    found = [ours.get(name) or _load_other(name, ours) for name in named]
    counted = Counter(observer.name for observer in found).most_common(1)
    if counted[0][1] > 1:
        raise ConfigError(f"OP_DBUS_OBSERVE: {counted[0][0]} is named twice")
    return found


def names_of_plugin(plugin: str) -> list[str]:
    """Return the names of the built-in observers of a plugin."""
    return [each.name for each in select_observers([AUTO], {}) if each.plugin == plugin]


def add_volatile(observers: Sequence[Observer], fields: Sequence[str]) -> list[Observer]:
    """Return the observers with added volatile fields, each given as plugin/kind:field."""
    found = []
    for observer in observers:
        volatile = dict(observer.volatile)
        for field in fields:
            path, _, name = field.partition(":")
            plugin, _, kind = path.partition("/")
            if plugin == observer.plugin:
                volatile[kind] = volatile.get(kind, frozenset()) | {name}
        found.append(replace(observer, volatile=volatile))
    return found


def _load_other(name: str, ours: Mapping[str, Observer]) -> Observer:
    """Return a mirror of a bus service, or load an observer of another package."""
    others = {point.name: point for point in entry_points(group=_GROUP)}
    if name not in others and set(".:") & set(name):
        with suppress(ValueError):
            return Mirror(name).observer
        raise ConfigError(
            f"OP_DBUS_OBSERVE: {name!r} is no service: give its name on the bus such as"
            " org.freedesktop.UDisks2, with the path of its ObjectManager where that is not known"
            f" (NAME:/path), or {INTROSPECT}NAME for one without"
        )
    if name not in others:
        there_are = [*ours, *others]
        close = difflib.get_close_matches(name, there_are, n=1)
        hint = f": did you mean {close[0]}?" if close else f"; there are {', '.join(there_are)}"
        raise ConfigError(f"OP_DBUS_OBSERVE: there is no observer {name!r}{hint}")
    try:
        found = others[name].load()
    except Exception as error:
        raise ConfigError(f"OP_DBUS_OBSERVE: cannot load {name!r}: {error}") from error
    if not isinstance(found, Observer):
        raise ConfigError(
            f"OP_DBUS_OBSERVE: {others[name].value} is no opdbus.observe.core.report.Observer"
        )
    return replace(found, name=name)
