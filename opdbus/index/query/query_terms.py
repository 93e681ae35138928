"""Search terms and names of a question, for lexical search."""

import re
from typing import Final

# Forms of a word share this many first letters.
BEGINNING: Final = 5
# Words of questions that describe no object.
STOP_WORDS: Final = frozenset(
    "a about all also an and any anything are as at be been being but by can could did do "
    "does doing done for from get gets give had has have having here how i if in into is it "
    "its just least like may me might most must my no not of off on or our out over shall she "
    "should show so some something still such tell than that the their them then there these they "
    "thing things this those to up us was we were what when where whether which who whom "
    "whose why will with would you your list find please belong belongs happens happen "
    # remainders of don't, won't and the like
    "aren couldn didn doesn don hasn haven isn wasn weren won wouldn t".split()
)
# Words with a digit that do not identify an object.
_PLAIN: Final = frozenset("ipv4 ipv6 utf8 x86 i386 amd64".split())
_TERM = re.compile(r"[^\W_]+(?:[-._:/@+]+[^\W_]+)*")
_PART = re.compile(r"[^\W_]+")
# A question with more terms is a document, and looking up all of them would take too long.
MAX_TERMS: Final = 64
# Up to this many terms, any word may be a name.
_FEW_TERMS: Final = 2
# Up to this many terms, an identifier alone names an object.
_SHORT: Final = 4


def terms(question: str) -> list[str]:
    """Return the distinct lower-case words of a question without stop words, at most `MAX_TERMS`.

    A compound with digits or slashes, such as an address, a version or a path, is one term and
    matches as a phrase. Other compounds are split into words.
    """
    found: dict[str, None] = {}
    for compound in _TERM.findall(question.lower()):
        parts = _PART.findall(compound)
        exact = len(parts) > 1 and is_identifier(compound)
        found |= dict.fromkeys([compound] if exact else parts)
    return [term for term in found if term not in STOP_WORDS][:MAX_TERMS]


def names(question: str) -> list[str]:
    """Return the words of a question that may be names, as written; at most `MAX_TERMS`."""
    words = dict.fromkeys(word.strip("?!.,;:'\"()") for word in question.split())
    return [word for word in words if word and word.lower() not in STOP_WORDS][:MAX_TERMS]


def name_forms(name: str) -> frozenset[str]:
    """Return an object's name in lower case as a question may write it: nginx of nginx.service."""
    lower = name.lower()
    return frozenset((lower, lower.partition(".")[0], lower.rpartition("/")[2]))


def is_identifier(term: str) -> bool:
    """Return whether a term is an address, port, path or numbered name, not an ordinary word."""
    return "/" in term or (any(c.isdigit() for c in term) and term not in _PLAIN)


def is_exact(term: str, terms: int) -> bool:
    """Return whether a term identifies an object by itself, in a question of `terms` terms.

    A longer question may use `mp3`, `Qt5` or `TCP/IP` as ordinary words.
    """
    has_parts = term.count("/") > 1 or (any(map(str.isdigit, term)) and not term.isalnum())
    return is_identifier(term) and (terms <= _SHORT or has_parts)


def certainty(name: str, terms: int) -> float:
    """Return the certainty, at most 1, that a word is a name in a question of `terms` terms.

    In a longer question a word of letters only, such as `time` or `staff`, is rather an ordinary
    word.
    """
    return min(1.0, _FEW_TERMS / max(1, terms)) if name.isalpha() else 1.0
