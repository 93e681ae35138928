"""Which objects a short name means, such as `sshd` or `unit/sshd`, and whose names are close."""

import difflib
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final, TypeAlias

from opdbus.index.catalogue.catalogue import Catalogue
from opdbus.state.object import ObjectId

# Of either list.
MOST: Final = 10
# As systemctl does: a name without a suffix is a service's.
_SUFFIX: Final = ".service"
# What a typing error adds or leaves out at most.
_LENGTHS: Final = 3
# A wrong letter in four is 0.75; at 0.6, `sshd` was close to `shadow` and to `passwd`.
_CLOSE: Final = 0.7
# To compare 10,000 names takes 70 ms.
_COMPARED: Final = 10_000
# Shorter names are in too many others.
_HELD: Final = 3
# So much of a name is looked for in all others.
_HOLDING: Final = 64

# Returns whether an object's name is what was given.
_Test: TypeAlias = Callable[[str], bool]


def find(object_ids: Sequence[ObjectId], given: str) -> tuple[list[ObjectId], list[ObjectId]]:
    """Return the things that a name means, and where there is none, those with close names.

    The name may follow a plugin, a kind, or both, and is then the whole name of a thing if there is
    one. A blank name means nothing. Takes 0.1 s for 100,000 things.
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
    """Find as in all things; takes milliseconds where some name holds what is given."""
    holding = catalogue.holding(_name(given).lower().removesuffix(_SUFFIX)[:_HOLDING])
    found, close = find(holding, given)
    return (found, close) if found or close else find(catalogue.known(), given)


def _name(given: str) -> str:
    """Return what every name that is meant holds."""
    return given.rpartition("/")[2] or given


def _readings(given: str) -> Iterator[tuple[str, str]]:
    """Yield (what comes before the name, the name): a name may have slashes too."""
    yield "", given
    parts = given.split("/", 2)
    for count in range(1, len(parts)):
        before, name = "/".join(parts[:count]), "/".join(parts[count:])
        if before and name:
            yield before, name


def _tests(name: str) -> Iterator[_Test]:
    """Yield what a name may have to be, the most exact first."""
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
    """Return the things whose names hold this one, and else those that are spelt much like it."""
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
