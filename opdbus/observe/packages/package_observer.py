"""Observer of installed packages, from dpkg's status file or else from rpm."""

import os
import re
import time
from asyncio import sleep
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TypeAlias

from opdbus.observe.core.file_reading import in_thread, read_at_most
from opdbus.observe.core.pace import Allowance
from opdbus.observe.core.report import Absent, Observer, Report, join_by_name
from opdbus.observe.core.skipped import Skipped
from opdbus.observe.packages import rpm
from opdbus.observe.packages.documents import Places
from opdbus.observe.packages.dpkg import Package, StatusFile
from opdbus.observe.packages.package_runs import Runs, UnloggedRuns
from opdbus.platform.lines import join_words
from opdbus.settings.parsing import decimal
from opdbus.state.object import Json
from opdbus.state.redact import redact_text
from opdbus.state.watch import changes

# Events within this time are handled together: an installation changes many files.
_SETTLE_SECONDS: Final = 1.0
# A listing by rpm takes a second.
_MOST_REST_SECONDS: Final = 60.0
_MAX_STATES_BYTES: Final = 8 << 20
# Fields of dpkg that become properties unchanged.
_FIELDS: Final = ("Section", "Priority", "Homepage")
_AUTOMATIC = re.compile(rb"^Package: (\S+)\nArchitecture: (\S+)\nAuto-Installed: 1$", re.MULTILINE)


# Architectures that run on any machine, and dpkg's names of what the kernel calls a machine.
_ANY: Final = frozenset(("all", "noarch", "(none)", ""))
_DEBIAN: Final = {
    "x86_64": "amd64", "aarch64": "arm64", "armv7l": "armhf", "i586": "i386", "i686": "i386",
    "loongarch64": "loong64", "mips64": "mips64el", "ppc64le": "ppc64el",
}  # fmt: skip

# The name, the architecture and the properties of a package.
_Row: TypeAlias = tuple[str, str, dict[str, Json]]


@dataclass(frozen=True, slots=True)
class Packages:
    """Observer of packages, and the folders that it reads."""

    places: Places = field(default_factory=Places)
    # apt's list of packages that were installed only as dependencies
    states: Path = Path("/var/lib/apt/extended_states")
    # the folder with the logs of dpkg and apt
    logs: Path = Path("/var/log")
    machine: str = os.uname().machine

    async def observe(self, report: Report) -> None:
        """List packages, and again after each change; raises Absent and LostSource."""
        if self.places.has_dpkg:
            await self._dpkg(report)
        elif self.places.has_rpm:
            await self._rpm(report)
        else:
            raise Absent(f"there is neither {self.places.dpkg}/status nor a database of rpm")

    async def _dpkg(self, report: Report) -> None:
        status = StatusFile(self.places.dpkg / "status")
        allowance = Allowance()
        runs = Runs(self.places.dpkg, self.states, self.logs, report.causes)

        def list_packages() -> dict[str, dict[str, Json]]:
            automatic, packages = _automatic(self.states), status.read()
            if runs.is_going:  # only of the first listing: the run has yet to process triggers
                packages = [
                    replace(package, status="installed") if package.is_configured else package
                    for package in packages
                ]
            native = _DEBIAN.get(self.machine, self.machine)
            return _by_name([_of_dpkg(package, automatic) for package in packages], "dpkg", native)

        try:
            async for cause in runs.changes():
                started = time.monotonic()
                report.replace("package", await in_thread(list_packages), cause)
                report.busy(status.limited)
                report.skip("package", status.skipped)
                report.skip("run", runs.skipped)
                await sleep(allowance.rest(time.monotonic() - started))
        finally:
            runs.close()

    async def _rpm(self, report: Report) -> None:
        allowance = Allowance(most=_MOST_REST_SECONDS)
        runs = UnloggedRuns("rpm")
        files = [db / name for db in self.places.rpm_databases for name in rpm.DATABASE_FILES]
        async for _ in changes(*files, settle=_SETTLE_SECONDS):
            started = time.monotonic()
            skipped = Skipped()
            rows = await rpm.list_packages(self.places.rpm, skipped)
            report.skip("package", skipped)
            cause = runs.cause() if report.has_listed("package") else ""
            packages = _by_name(list(map(_of_rpm, rows)), "rpm", self.machine)
            report.replace("package", packages, cause)
            await sleep(allowance.rest(time.monotonic() - started))


def _by_name(packages: Sequence[_Row], manager: str, native: str) -> dict[str, dict[str, Json]]:
    """Return properties by name; a package of another architecture has that in its name.

    The `native` architecture is that of the package `manager`, if that is listed.
    """
    native = next((architecture for name, architecture, _ in packages if name == manager), native)
    # redacted separately: joined, a secret may look harmless
    return join_by_name(
        (name if of in {native, *_ANY} else f"{name}:{redact_text(of)}", properties)
        for name, of, properties in packages
    )


def _of_dpkg(package: Package, automatic: Mapping[str, set[str]] | None) -> _Row:
    fields = package.fields
    properties: dict[str, Json] = {
        "version": fields.get("Version", ""),
        "architecture": package.architecture,
        "status": package.status,
        "description": package.summary,
        "source": fields.get("Source", package.name).partition(" ")[0],
    }
    properties |= {name.lower(): fields[name] for name in _FIELDS if name in fields}
    if (size := decimal(fields.get("Installed-Size", ""))) is not None:
        properties["installed_size_mb"] = round(size / 1024, 1)
    if fields.get("Essential") == "yes":
        properties["essential"] = True
    if package.wanted == "hold":
        properties["on_hold"] = True
    if package.status == "config-files":
        properties["removed"] = True
    elif automatic is not None:
        # apt records the host's architecture for packages of the architecture `all`
        of = automatic.get(package.name, set())
        properties["automatic"] = package.architecture in of or bool(
            of and package.architecture == "all"
        )
    return package.name, package.architecture, _without_empty(properties)


def _of_rpm(row: Mapping[str, str]) -> _Row:
    epoch = "" if row["epoch"] == "0" else f"{row['epoch']}:"
    # separately: joined, a secret may look harmless
    version, release = redact_text(row["version"]), redact_text(row["release"])
    name, full = row["name"], f"{epoch}{version}-{release}"
    properties: dict[str, Json] = {
        "version": full,
        "architecture": row["architecture"],
        "status": "installed",
        "description": join_words(row["summary"]),
        "source": row["source"].removesuffix(".rpm"),
        "section": row["section"],
        "homepage": row["homepage"],
    }
    if (size := decimal(row["size"])) is not None:
        properties["installed_size_mb"] = round(size / (1 << 20), 1)
    # of these, several versions stay installed
    name = f"{name}-{full}" if row["beside"] else name
    return name, row["architecture"], _without_empty(properties)


def _without_empty(properties: Mapping[str, Json]) -> dict[str, Json]:
    return {name: value for name, value in properties.items() if value not in {"", "(none)"}}


def _automatic(states: Path) -> dict[str, set[str]] | None:
    """Return the architectures of packages installed as dependencies; None without apt's states."""
    try:
        content, _ = read_at_most(states, _MAX_STATES_BYTES)
    except OSError:
        return None
    found: dict[str, set[str]] = {}
    for name, architecture in _AUTOMATIC.findall(content):
        architectures = found.setdefault(name.decode(errors="replace"), set())
        architectures.add(architecture.decode(errors="replace"))
    return found


OBSERVER: Final = Observer("packages", "packages", Packages().observe)
