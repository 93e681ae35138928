"""Dependencies of a unit, without those that nearly every unit has; no I/O."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from opdbus.bus.transport.values import Plain
from opdbus.observe.systemd.unit_values import as_text
from opdbus.state.object import Json

FIELDS: Final = ("requires", "wants", "after")
# Unit types with dependencies shown; other types group these or follow kernel devices.
_OF: Final = (".service", ".timer", ".socket", ".mount")
# They say nothing about a unit, or only what its `what` and its `slice` say.
_COMMON: Final = (".target", ".slice", ".device")
_COMMON_UNITS: Final = frozenset(
    "-.mount tmp.mount systemd-remount-fs.service systemd-tmpfiles-setup.service"
    " systemd-journald.service systemd-journald.socket systemd-journald-dev-log.socket"
    " systemd-journald-audit.socket".split()
)
_MOST: Final = 12


def reading(*keys: str) -> Callable[[Mapping[str, Plain]], list[Json]]:
    """Return a function that lists the units in the properties: at most twelve, sorted."""
    return lambda values: _listed(values, keys)


def _listed(values: Mapping[str, Plain], keys: Sequence[str]) -> list[Json]:
    if not as_text(values["Id"]).endswith(_OF):
        return []
    found = {as_text(name) for key in keys for name in values.get(key, ())}
    return sorted(name for name in found - _COMMON_UNITS if not name.endswith(_COMMON))[:_MOST]
