"""Resolution of short names, such as `sshd` or `unit/sshd`, to objects, and close names."""

import difflib
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final, TypeAlias

from opdbus.index.catalogue.catalogue import Catalogue
from opdbus.state.object import ObjectId

# Maximal length of either list.
MOST: Final = 10
# As in systemctl, a name without a suffix means a service.
_SUFFIX: Final = ".service"
# Maximal difference in length of a mistyped name.
_LENGTHS: Final = 3
# Minimal difflib ratio: one wrong letter in four gives 0.75, `sshd` and `shadow` less than 0.7.
_CLOSE: Final = 0.7
# Maximal number of names compared by difflib.
_COMPARED: Final = 10_000
# Minimal length of a name that is searched for inside others: shorter ones match too many.
_HELD: Final = 3
# Characters of a name that are searched for inside others.
_HOLDING: Final = 64

# Tests an object's name.
_Test: TypeAlias = Callable[[str], bool]


def find(object_ids: Sequence[ObjectId], given: str) -> tuple[list[ObjectId], list[ObjectId]]:
    """Return the objects that a name means and, if there is none, objects with close names.

    Each list has at most MOST objects. The name may follow a plugin, a kind, or both; a full object
    path means only that object if it exists. A blank name means no object. Takes 0.1 s for 100,000
    objects.
    """
    if not given.strip():
        return [], []
    parts = given.split("/", 2)
    if len(parts) == len(ObjectId._fields) and (whole := ObjectId(*parts)) in object_ids:
        return [whole], []
    found: list[ObjectId] = []
    for reading in _readings(given):
        for test in _tests(reading[1]):
            found = found or _matching(object_ids, reading[0], test)
    return sorted(found)[:MOST], [] if found else _close(object_ids, _name(given))


def find_in(catalogue: Catalogue, given: str) -> tuple[list[ObjectId], list[ObjectId]]:
    """Run `find` on all objects; takes milliseconds if a name contains the given one."""
    holding = catalogue.names_containing(_name(given).lower().removesuffix(_SUFFIX)[:_HOLDING])
    found, close = find(holding, given)
    return (found, close) if found or close else find(catalogue.all_object_ids(), given)


def _name(given: str) -> str:
    """Return the part of `given` that every matching name contains."""
    return given.rpartition("/")[2] or given


def _readings(given: str) -> Iterator[tuple[str, str]]:
    """Yield each (qualifier, name) that `given` may mean; the qualifier is "" in the first.

    A name may contain slashes.
    """
    yield "", given
    parts = given.split("/", 2)
    for count in range(1, len(parts)):
        before, name = "/".join(parts[:count]), "/".join(parts[count:])
        if before and name:
            yield before, name


def _tests(name: str) -> Iterator[_Test]:
    """Yield tests of object names, the most exact first."""
    whole, folded = {name, name + _SUFFIX}, {name.lower(), name.lower() + _SUFFIX}
    yield lambda known: known in whole
    yield lambda known: known.startswith(f"{name}.") or known.endswith(f"/{name}")
    yield lambda known: known.lower() in folded


def _matching(object_ids: Sequence[ObjectId], before: str, test: _Test) -> list[ObjectId]:
    found = [object_id for object_id in object_ids if test(object_id.name)]
    if not before:
        return found
    return [t for t in found if before in {t.plugin, t.kind, f"{t.plugin}/{t.kind}"}]


def _close(object_ids: Sequence[ObjectId], name: str) -> list[ObjectId]:
    """Return the objects whose names contain `name`, or else those with a similar spelling."""
    wanted = name.lower().removesuffix(_SUFFIX)
    is_long = len(wanted) >= _HELD
    holding = [
        object_id for object_id in object_ids if is_long and wanted in object_id.name.lower()
    ]
    if holding:
        return sorted(holding, key=lambda object_id: (len(object_id.name), object_id))[:MOST]
    stems: dict[str, list[ObjectId]] = {}
    for object_id in object_ids:
        stem = object_id.name.removesuffix(_SUFFIX).lower()
        is_alike = stem[:1] == wanted[:1] or stem[-1:] == wanted[-1:]
        if is_alike and abs(len(stem) - len(wanted)) <= _LENGTHS:
            stems.setdefault(stem, []).append(object_id)
    compared = islice(stems, _COMPARED)
    close = difflib.get_close_matches(wanted, compared, n=MOST, cutoff=_CLOSE)
    return [object_id for stem in close for object_id in sorted(stems[stem])][:MOST]
