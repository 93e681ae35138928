"""What tells whether a hit is right besides what it is ranked by: see calibration."""

from typing import Final, NamedTuple


class Missing(NamedTuple):
    """How much of a question no object has: shares of its words, as of matches.

    `names` counts those that the glossary explains, such as `nginx`: they name what is not here.
    """

    words: float = 0.0
    names: float = 0.0


class ConfidenceFeatures(NamedTuple):
    """What the words of a question and of an entry are to each other, by the static table.

    `alike` is the cosine of both as wholes. `lacking` says how much a word of the question tells
    that the entry lacks: the more, the rarer it is in the language, and the less it is like any of
    the entry's words; of several words the highest counts. `domain` is how far the cosines of the
    question with the meanings of the glossary spread: what is about no host is as far from all.
    """

    alike: float = 0.4
    lacking: float = 0.4
    domain: float = 0.1


class Mismatch(NamedTuple):
    """How far an entry is not what a question asks for, each from 0 to 1: see mismatches.

    `kind`: it is of no sort that is asked for, most if nothing is. `value`: it has none of the
    values. `name`: it is called otherwise than the thing of which the state is asked for.
    """

    kind: float = 0.0
    value: float = 0.0
    name: float = 0.0


# What is missing where words do not count.
NOTHING_MISSING: Final = Missing()
# What is usual, where it was not looked for.
USUAL: Final = ConfidenceFeatures()
AS_ASKED: Final = Mismatch()
