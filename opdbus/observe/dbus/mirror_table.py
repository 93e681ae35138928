"""What is known of services that are often mirrored; others are mirrored as well without it."""

from collections.abc import Mapping
from typing import Final

# Where the ObjectManager is, unless at "/" or at the path that is like the service's name.
MANAGERS: Final = {
    "org.freedesktop.NetworkManager": "/org/freedesktop",
    "org.freedesktop.UDisks2": "/org/freedesktop/UDisks2",
    "org.freedesktop.ModemManager1": "/org/freedesktop/ModemManager1",
    "org.bluez": "/",
    "net.connman.iwd": "/",
}
# The interfaces that say what an object is, before those that it has besides.
MAIN: Final = ("Block", "Drive", "Device", "Device1", "Adapter1", "Modem", "Network")
# Properties that name an object, best first, and the objects that nobody calls by these.
NAMING: Final = ("Id", "Name", "Interface", "Address", "Ssid", "UserName", "Filename")
NAMED_BY_PATH: Final = frozenset({("udisks2", "block")})
# What comes and goes with each piece of work.
NOT_MIRRORED: Final = frozenset({("udisks2", "job")})
# By plugin and kind: fields that move by themselves. What says that a disk fails is none of them.
VOLATILE: Final[Mapping[str, Mapping[str, str]]] = {
    "networkmanager": {
        "access_point": "strength last_seen",
        "device": "tx_bytes rx_bytes last_scan bitrate",
    },
    "udisks2": {
        "drive": "smart_updated smart_temperature smart_power_on_seconds smart_power_on_hours"
        " smart_selftest_status smart_selftest_percent_remaining",
        "nv_me_controller": "smart_updated smart_temperature smart_power_on_hours",
    },
    "bluez": {"device": "rssi tx_power manufacturer_data service_data advertising_data"},
    "modemmanager1": {"modem": "signal_quality location"},
    "upower": {
        "device": "percentage time_to_empty time_to_full update_time energy energy_rate voltage"
        " temperature",
    },
}  # fmt: skip


def plugin_of(service: str) -> str:
    """Return the short name of a service: udisks2 of org.freedesktop.UDisks2."""
    return service.rpartition(".")[2].lower()


def volatile(plugin: str) -> dict[str, frozenset[str]]:
    """Return the fields of each kind of a service's objects that move by themselves."""
    return {kind: frozenset(names.split()) for kind, names in VOLATILE.get(plugin, {}).items()}
