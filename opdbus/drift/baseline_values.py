"""Values that a baseline declares for observed ones, and the observed objects that last.

A baseline declares only what stays as it is until somebody changes it, in the notation that the
comparisons read.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from opdbus.drift import network_values, word_values
from opdbus.state.object import Json

Seen: TypeAlias = Mapping[str, Json]
# Takes an object's name, an observed value and all observed properties; returns the value to
# declare, None for none.
Baseline: TypeAlias = Callable[[str, Json, Seen], Json]

_RUNNING_TYPES: Final = (".service", ".socket", ".timer", ".path")
_ENABLED: Final = {"enabled": True, "disabled": False}
# Interfaces of other types come and go with containers, tunnels and virtual machines.
_LASTING_TYPES: Final = frozenset("ethernet wireless bond team bridge vlan wireguard".split())
# Names that the kernel gives to disks in the order in which it finds them.
_NUMBERED: Final = re.compile(r"/dev/(?:[shv]d[a-z]|xvd|nvme|mmcblk|md|dm-|loop|sr)\S*")
_TRANSIENT_MOUNTS: Final = ("/run/", "/media/", "/var/lib/docker/", "/var/lib/containers/")
# Programs rewrite these files with every account, address or release, or another object has what
# is in them.
_REWRITTEN: Final = frozenset(
    "/etc/passwd /etc/group /etc/shadow /etc/gshadow /etc/subuid /etc/subgid /etc/resolv.conf"
    " /etc/machine-id /etc/timezone /etc/os-release /etc/mtab /etc/ld.so.cache"
    " /etc/adjtime /etc/security/opasswd /etc/cups/printers.conf"
    " /etc/cups/subscriptions.conf".split()
)
_OWN_FOLDER: Final = "/etc/op-dbus/"


def as_observed(_name: str, observed: Json, _seen: Seen) -> Json:
    """Return the observed value, None for an empty text."""
    return None if observed == "" else observed


def if_true(_name: str, observed: Json, _seen: Seen) -> Json:
    """Return true, None for any other value."""
    return observed if observed is True else None


def if_false(_name: str, observed: Json, _seen: Seen) -> Json:
    """Return false, None for any other value."""
    return observed if observed is False else None


def is_installed_unit(name: str, seen: Seen) -> bool:
    """Return whether a unit has a file that an administrator enables, disables or masks.

    Of targets and mounts, many are disabled on every host.
    """
    state = seen.get("unit_file_state")
    is_disabled = state == "disabled" and name.endswith(_RUNNING_TYPES)
    return state in {"enabled", "masked"} or is_disabled or _is_script(seen)


def enabled(_name: str, observed: Json, _seen: Seen) -> Json:
    """Return whether a unit starts at boot; None if its file has nothing to enable."""
    return _ENABLED.get(str(observed))


def masked(_name: str, _observed: Json, seen: Seen) -> Json:
    """Return true for a masked unit, None for any other."""
    return True if seen.get("unit_file_state") == "masked" else None


def state_of_enabled(_name: str, observed: Json, seen: Seen) -> Json:
    """Return `active` for an active unit that starts at boot.

    Other units start and stop with what triggers them.
    """
    is_started = seen.get("unit_file_state") == "enabled" or _is_script(seen)
    return observed if observed == "active" and is_started else None


def _is_script(seen: Seen) -> bool:
    """Return whether a unit was generated for a script of /etc/init.d that is started at boot."""
    return str(seen.get("fragment_path")).startswith("/run/systemd/generator.late/")


def is_lasting_interface(_name: str, seen: Seen) -> bool:
    """Return whether an interface is a device or was configured."""
    return seen.get("type") in _LASTING_TYPES


def addresses(_name: str, _observed: Json, seen: Seen) -> Json:
    """Return the addresses that were set, without dynamic and link-local ones."""
    return network_values.lasting_addresses(seen) or None


def dhcp(_name: str, _observed: Json, seen: Seen) -> Json:
    """Return true if an IPv4 address is dynamic."""
    return network_values.is_dynamic(seen, 4) or None


def gateway(family: int) -> Baseline:
    """Return a function that returns the gateways that were set, not assigned with an address."""

    def find(_name: str, _observed: Json, seen: Seen) -> Json:
        if network_values.is_dynamic(seen, family):
            return None
        found = network_values.gateways(seen, family)
        return found[0] if len(found) == 1 else found or None

    return find


def is_chosen_package(_name: str, seen: Seen) -> bool:
    """Return whether a package was installed by itself, not for another one that needs it."""
    return seen.get("status") == "installed" and seen.get("automatic") is not True


def is_lasting_mount(name: str, seen: Seen) -> bool:
    """Return whether a mount is of a disk or a server, and not one that comes and goes."""
    source = str(seen.get("source"))
    is_disk = source.startswith("/dev/") and not source.startswith(("/dev/loop", "/dev/sr"))
    return (is_disk or seen.get("network") is True) and not name.startswith(_TRANSIENT_MOUNTS)


def named_source(_name: str, observed: Json, _seen: Seen) -> Json:
    """Return the source of a mount, None for a disk whose number may change at a boot."""
    return None if _NUMBERED.fullmatch(str(observed)) else observed


def compared_options(_name: str, observed: Json, _seen: Seen) -> Json:
    """Return the mount options that are compared, as fstab has them."""
    found = [one for one in str(observed).split(",") if one in word_values.COMPARED_OPTIONS]
    return ",".join(found) or None


def is_lasting_file(name: str, _seen: Seen) -> bool:
    """Return whether a file is not one of op-dbus itself, which declares this."""
    return not name.startswith(_OWN_FOLDER)


def is_of_parts(name: str) -> bool:
    """Return whether a file is in a folder all files of which are read, such as /etc/sudoers.d."""
    folder = name.rpartition("/")[0]
    return name.startswith("/etc/") and folder.endswith(".d") and is_lasting_file(name, {})


def root_owner(_name: str, observed: Json, seen: Seen) -> Json:
    """Return `root` for a file of root; None for others, and where the owner was not read."""
    return "root" if observed is None and "mode" in seen else None


def digest(name: str, observed: Json, seen: Seen) -> Json:
    """Return the digest of a file that is not as its package has it.

    It is left out for files that programs rewrite.
    """
    is_kept = seen.get("modified") is not False and name not in _REWRITTEN
    return observed if is_kept else None


def of_unread(name: str, observed: Json, seen: Seen) -> Json:
    """Return the size or time of a file whose content is not read, and so has no digest."""
    return observed if "written_at" in seen and name not in _REWRITTEN else None


def lasting_unit(_name: str, observed: Json, _seen: Seen) -> Json:
    """Return the unit of a port, None for one of a session."""
    return None if not observed or str(observed).endswith(".scope") else observed
