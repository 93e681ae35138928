"""Package and manual page of units, looked up in the host's documents."""

import asyncio
import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Final

from opdbus.observe.core.file_reading import in_thread
from opdbus.observe.core.report import LostSource
from opdbus.observe.packages.documents import Documents, Places
from opdbus.observe.systemd.unit_properties import names_in
from opdbus.platform.tasks import at_most
from opdbus.state.object import Json

# Pages of programs and of daemons; a page without a section may be one.
_PROGRAM: Final = re.compile(r"man:[^()]+(?:\([18][a-z]*\))?")
# The summary of a package with more units describes none of them.
_MANY: Final = 10
# Longest wait of a report for a lookup: reading all packages takes 0.15 s.
_SOON_SECONDS: Final = 0.3
_OF_PACKAGES: Final = "/usr/lib/systemd/system/"
# The fields that are looked up.
FACTS: Final = frozenset(("package", "package_summary", "manual"))
Fields = Mapping[str, Json]


class UnitDocuments:
    """Cache of the facts that the host's documents have about units."""

    def __init__(self, places: Places) -> None:
        # set while there are units that are not looked up
        self.has_new = asyncio.Event()
        self._documents = Documents(places)
        self._one_lookup = asyncio.Lock()
        self._facts: dict[str, dict[str, Json]] = {}
        self._has_found = asyncio.Event()
        # units whose reports wait for their lookup
        self._expected: Collection[str] = ()
        self._queue: dict[str, Fields] = {}
        self._outdated: set[str] = set()
        # of each package, as far as they were looked up
        self._units: dict[str, set[str]] = {}

    def facts_of(self, name: str, fields: Fields) -> Fields:
        """Return the cached facts of a unit; queue a lookup if it is new or outdated."""
        if name not in self._facts or name in self._outdated:
            self._outdated.discard(name)
            self._queue[name] = fields
            self.has_new.set()
        return self._facts.get(name, {})

    async def expect(self, units: Mapping[str, Fields]) -> None:
        """Wait until queued units among these are looked up, for at most 0.3 s."""
        for name, fields in units.items():
            self.facts_of(name, fields)
        self._expected = units.keys()
        async with at_most(_SOON_SECONDS):  # files may hang
            while not units.keys().isdisjoint(self._queue):
                self._has_found.clear()
                await self._has_found.wait()
        self._expected = ()

    def remember(self, name: str, stored: dict[str, Json]) -> dict[str, Json]:
        """Cache the facts among stored properties, as outdated; return the other properties."""
        self._facts[name] = {key: stored[key] for key in stored.keys() & FACTS}
        self._outdated.add(name)
        return {key: value for key, value in stored.items() if key not in FACTS}

    def outdate(self, names: Iterable[str]) -> None:
        """Mark units for a new lookup; cached facts stay valid until then."""
        self._outdated |= self._facts.keys() & set(names)

    def forget(self, name: str) -> None:
        """Remove a unit from the cache."""
        self._facts.pop(name, None)
        self._queue.pop(name, None)
        self._outdated.discard(name)

    async def look_up(self) -> list[str]:
        """Look up queued units; return those whose facts have changed.

        Units that `expect` waits for are left out.
        """
        # looking for the owners of files takes as long for many as for one
        async with self._one_lookup:
            wanted = dict(self._queue)
            self.has_new.clear()
            before = {name: self._facts.get(name, {}) for name in wanted}
            found: dict[str, dict[str, Json]] = {}
            with suppress(LostSource):  # the documents hang: go on without them
                found = await in_thread(lambda: find_facts(self._documents, wanted))
            packages = {name: str(facts.get("package", "")) for name, facts in found.items()}
            for name, package in packages.items():
                self._units.setdefault(package, set()).add(name)
            for name, package in packages.items():
                if len(self._units[package]) > _MANY:
                    found[name].pop("package_summary", None)
            self._facts |= before | found
            self._queue = {
                name: fields
                for name, fields in self._queue.items()
                if fields is not wanted.get(name)
            }
            self._has_found.set()
            return [
                name for name in wanted.keys() - self._expected if self._facts[name] != before[name]
            ]


def find_facts(documents: Documents, units: Mapping[str, Fields]) -> dict[str, dict[str, Json]]:
    """Return the package, its summary and the line of a manual page of each unit."""
    # a masked unit is a link to nothing: the file of its package counts
    paths = {
        name: f"{_OF_PACKAGES}{name}"
        if fields.get("masked")
        else str(fields.get("fragment_path", ""))
        for name, fields in units.items()
    }
    # files in /run were made since boot, by no package
    owners = documents.owners([p for p in paths.values() if p and not p.startswith("/run/")])
    found: dict[str, dict[str, Json]] = {}
    for name, fields in units.items():
        facts: dict[str, Json] = {}
        if owner := owners.get(paths[name]):
            facts = {"package": owner.package, "package_summary": owner.summary}
        # only pages of programs are about one unit; daemons come first
        pages = filter(_PROGRAM.fullmatch, names_in(fields, "documentation"))
        lines = map(documents.manual, sorted(pages, key=lambda page: not page.endswith("(8)")))
        facts["manual"] = next(filter(None, lines), "")
        found[name] = {key: value for key, value in facts.items() if value}
    return found
