"""Package and manual page of units, looked up in the host's documents."""

import asyncio
import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Final

from opdbus.observe.core.file_reading import in_thread
from opdbus.observe.core.report import LostSource
from opdbus.observe.packages.documents import Documents, Places
from opdbus.platform.tasks import at_most
from opdbus.state.object import Json

# Pages of programs and of daemons; a page without a section may be one.
_PROGRAM: Final = re.compile(r"man:[^()]+(?:\([18][a-z]*\))?")
# Of more units a package's summary does not tell what one of them is.
_MANY: Final = 10
# So long a unit waits to be looked up before it is told: reading all packages takes 0.15 s.
_SOON_SECONDS: Final = 0.3
_OF_PACKAGES: Final = "/usr/lib/systemd/system/"
# The fields that tell what the documents say.
FACTS: Final = frozenset(("package", "package_summary", "manual"))
Told = Mapping[str, Json]


class UnitDocuments:
    """Cache of the facts that the host's documents have about units."""

    def __init__(self, places: Places) -> None:
        # set while there are units that are not looked up
        self.has_new = asyncio.Event()
        self._documents = Documents(places)
        self._is_free = asyncio.Lock()
        self._found: dict[str, Told] = {}
        self._has_found = asyncio.Event()
        # what was returned last of each
        self._given: dict[str, Told] = {}
        # units that are told when they are looked up
        self._expected: Collection[str] = ()
        self._new: dict[str, Told] = {}
        self._outdated: set[str] = set()
        # of each package, as far as they were looked up
        self._units: dict[str, set[str]] = {}

    def of(self, name: str, told: Told) -> Told:
        """Return the cached facts of a unit; queue a lookup if it is new or outdated."""
        if name not in self._found or name in self._outdated:
            self._outdated.discard(name)
            self._new[name] = told
            self.has_new.set()
        facts = self._given[name] = self._found.get(name, {})
        return facts

    async def expect(self, told: Mapping[str, Told]) -> None:
        """Wait until queued units among these are looked up, for at most 0.3 s."""
        for name, properties in told.items():
            self.of(name, properties)
        self._expected = told.keys()
        async with at_most(_SOON_SECONDS):  # files may hang
            while not told.keys().isdisjoint(self._new):
                self._has_found.clear()
                await self._has_found.wait()
        self._expected = ()

    def remember(self, name: str, stored: dict[str, Json]) -> dict[str, Json]:
        """Cache the facts among stored properties, as outdated; return the other properties."""
        rest = {key: value for key, value in stored.items() if key not in FACTS}
        self._found[name] = {key: stored[key] for key in stored.keys() - rest.keys()}
        self._outdated.add(name)
        return rest

    def outdate(self, names: Iterable[str]) -> None:
        """Mark units for a new lookup; cached facts stay valid until then."""
        self._outdated |= self._found.keys() & set(names)

    def forget(self, name: str) -> None:
        """Remove a unit from the cache."""
        for known in (self._found, self._given, self._new):
            known.pop(name, None)
        self._outdated.discard(name)

    async def look_up(self) -> list[str]:
        """Look up queued units; return those whose facts differ from the ones last returned.

        Units that `expect` waits for are left out.
        """
        # looking for the owners of files takes as long for many as for one
        async with self._is_free:
            wanted = dict(self._new)
            self.has_new.clear()
            before = {name: self._found.get(name, {}) for name in wanted}
            found: dict[str, Told] = {}
            with suppress(LostSource):  # the documents hang: go on without them
                found = await in_thread(lambda: _found(self._documents, wanted))
            self._found |= before | self._telling(found)
            left = self._new.items()
            self._new = {name: told for name, told in left if told is not wanted.get(name)}
            self._has_found.set()
            return [
                name
                for name in wanted.keys() - self._expected
                if self._found[name] != self._given.get(name, {})
            ]

    def _telling(self, found: Mapping[str, Told]) -> dict[str, Told]:
        """Leave out what a package says that has many units: it says little of each."""
        for name, facts in found.items():
            if package := facts.get("package"):
                self._units.setdefault(str(package), set()).add(name)
        many = {package for package, units in self._units.items() if len(units) > _MANY}
        return {
            name: {
                key: value
                for key, value in facts.items()
                if key != "package_summary" or facts.get("package") not in many
            }
            for name, facts in found.items()
        }


def _found(documents: Documents, units: Mapping[str, Told]) -> dict[str, Told]:
    paths = {name: _path(name, told) for name, told in units.items()}
    # files in /run were made since boot, by no package
    owners = documents.owners([p for p in paths.values() if p and not p.startswith("/run/")])
    found: dict[str, Told] = {}
    for name, told in units.items():
        owner = owners.get(paths[name])
        facts: dict[str, Json] = {}
        if owner:
            facts = {"package": owner.package, "package_summary": owner.summary}
        lines = map(documents.manual, _pages(told.get("documentation")))
        facts["manual"] = next(filter(None, lines), "")
        found[name] = {key: value for key, value in facts.items() if value}
    return found


def _path(name: str, told: Told) -> str:
    """Return the file of a unit; of a masked one, which is a link to nothing, that of packages."""
    return f"{_OF_PACKAGES}{name}" if told.get("masked") else str(told.get("fragment_path", ""))


def _pages(references: Json) -> list[str]:
    """Return the manual pages of programs, daemons first: others are not about one unit."""
    given = references if isinstance(references, list) else []
    found = [page for page in given if isinstance(page, str) and _PROGRAM.fullmatch(page)]
    return sorted(found, key=lambda page: not page.endswith("(8)"))
