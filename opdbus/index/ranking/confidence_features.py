"""Features of a query and a hit that the confidence model takes besides the score."""

from typing import Final, NamedTuple


class Missing(NamedTuple):
    """Query terms that no object has, as shares of all terms times a factor for the host's size.

    `names` has those terms that the glossary explains, such as `nginx`: names of objects that this
    host does not have.
    """

    words: float = 0.0
    names: float = 0.0


class ConfidenceFeatures(NamedTuple):
    """Word similarity of a query and an entry, by the static table.

    `alike` is the cosine of the query and the entry's text. `lacking` is the maximum over the
    query's words of rarity times (1 - cosine with the nearest word of the entry). `domain` is the
    standard deviation of the query's cosines with the meanings in the glossary: a query that is not
    about a host is about equally far from all.
    """

    alike: float = 0.4
    lacking: float = 0.4
    domain: float = 0.1


class Mismatch(NamedTuple):
    """Mismatches of a query and an entry, each from 0 to 1: see `search.mismatches`.

    `kind`: the entry is of no requested kind (1 if no entry is). `value`: the share of the
    requested values that it lacks. `name`: the entry's name differs from the name in a question
    about an object's state.
    """

    kind: float = 0.0
    value: float = 0.0
    name: float = 0.0


# Defaults where nothing was computed, such as in vector mode.
NOTHING_MISSING: Final = Missing()
USUAL: Final = ConfidenceFeatures()
AS_ASKED: Final = Mismatch()
