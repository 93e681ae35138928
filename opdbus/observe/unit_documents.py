"""What the host's documents say of units: the package that a unit's file is of, its manual page."""

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress

from opdbus.observe.documents import Documents, Places
from opdbus.observe.reading import in_thread
from opdbus.observe.report import LostSource
from opdbus.state.object import Json

Told = Mapping[str, Json]


class UnitDocuments:
    """Looks units up in the documents, once, and remembers what was found."""

    def __init__(self, places: Places) -> None:
        # set while there are units that are not looked up
        self.has_new = asyncio.Event()
        self._documents = Documents(places)
        self._is_free = asyncio.Lock()
        self._found: dict[str, Told] = {}
        self._new: set[str] = set()

    def of(self, name: str) -> Told:
        """Return what is known of a unit; one that is not known is to be looked up."""
        if name not in self._found:
            self._new.add(name)
            self.has_new.set()
        return self._found.get(name, {})

    def forget(self, names: Iterable[str]) -> None:
        """Have units looked up again, whose files have changed."""
        for name in names:
            self._found.pop(name, None)

    async def look_up(self, told: Mapping[str, Told]) -> list[str]:
        """Look up those of some units that are new; return those of which something was found."""
        # looking for the owners of files takes as long for many as for one
        async with self._is_free:
            wanted = {name: told[name] for name in self._new if name in told}
            self._new.clear()
            self.has_new.clear()
            found: dict[str, Told] = {}
            with suppress(LostSource):  # documents that hang are done without
                found = await in_thread(lambda: _found(self._documents, wanted))
            self._found |= {name: {} for name in wanted} | found
            return [name for name, facts in found.items() if facts]


def _found(documents: Documents, units: Mapping[str, Told]) -> dict[str, Told]:
    paths = {name: str(told.get("fragment_path", "")) for name, told in units.items()}
    # no package has what was made since the host was booted
    owners = documents.owners([p for p in paths.values() if p and not p.startswith("/run/")])
    found: dict[str, Told] = {}
    for name, told in units.items():
        owner = owners.get(paths[name])
        facts: dict[str, Json] = {}
        if owner:
            facts = {"package": owner.package, "package_summary": owner.summary}
        pages = told.get("documentation")
        lines = map(documents.manual, filter(_is_page, pages if isinstance(pages, list) else []))
        facts["manual"] = next(filter(None, lines), "")
        found[name] = {key: value for key, value in facts.items() if value}
    return found


def _is_page(reference: Json) -> bool:
    return isinstance(reference, str) and reference.startswith("man:")
