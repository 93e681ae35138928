"""Paths, names and volatile fields of common D-Bus services; others are mirrored without these."""

from collections.abc import Mapping
from typing import Final

# Paths of an ObjectManager other than "/" and the path that resembles the service's name.
MANAGERS: Final = {
    "org.freedesktop.NetworkManager": "/org/freedesktop",
    "org.freedesktop.UDisks2": "/org/freedesktop/UDisks2",
    "org.freedesktop.ModemManager1": "/org/freedesktop/ModemManager1",
    "org.bluez": "/",
    "net.connman.iwd": "/",
}
# Interfaces that determine an object's kind if it has several, in order of precedence.
MAIN: Final = ("Block", "Drive", "Device", "Device1", "Adapter1", "Modem", "Network")
# Properties that name an object, in order of precedence; objects named by their path.
NAMING: Final = ("Id", "Name", "Interface", "Address", "Ssid", "UserName", "Filename")
# Those that several objects of a kind may share, and properties that tell these apart.
LABELS: Final = frozenset({"Name", "Ssid"})
IDENTIFYING: Final = ("Uuid", "UUID", "HwAddress")
NAMED_BY_PATH: Final = frozenset({("udisks2", "block")})
# Short-lived objects, one for each operation.
NOT_MIRRORED: Final = frozenset({("udisks2", "job")})
# Volatile fields by plugin and kind. Fields that signal a failing disk are not among them.
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
    """Return the plugin name of a service: udisks2 for org.freedesktop.UDisks2."""
    return service.rpartition(".")[2].lower()


def volatile(plugin: str) -> dict[str, frozenset[str]]:
    """Return the volatile fields by kind."""
    return {kind: frozenset(names.split()) for kind, names in VOLATILE.get(plugin, {}).items()}
