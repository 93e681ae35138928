"""Fields that a question asks for by name: `user id` for uid, `how full` for used_percent. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final

from opdbus.index.query.query_terms import STOP_WORDS
from opdbus.language import vocabulary
from opdbus.state.fields import split
from opdbus.state.flatten import singular

# Abbreviations and compounds, by the words they stand for.
_SPELT: Final[Mapping[str, str]] = {
    "filesystem": "file system",
    "fstype": "file system type",
    "gid": "group id",
    "hostname": "host name",
    "pid": "process id",
    "timezone": "time zone",
    "uid": "user id",
}
# Words of questions, and words of the field names they ask for.
_MEANT: Final[Mapping[str, Sequence[str]]] = {
    "account": ("user",),
    "big": ("size",),
    "directory": ("home", "path"),
    "folder": ("home", "path"),
    "full": ("used",),
    "ip": ("address",),
    "large": ("size",),
    "manufacturer": ("vendor",),
    "often": ("schedule",),
    "permission": ("mode",),
    "release": ("version",),
    "space": ("used", "size"),
    "usage": ("used",),
    "when": ("schedule", "elapse", "since"),
    "who": ("members",),
}
_UNITS: Final = frozenset("bytes gb kb mb percent seconds".split())
# Share of a field that a vocabulary phrase such as `at boot` asks for without naming it.
BY_PHRASE: Final = 0.9
# Cache size: publishers may use any field names.
_MOST_NAMES: Final = 4096


class RequestedFields:
    """The fields that a question asks for; `terms` are its search terms."""

    def __init__(self, question: str, terms: Sequence[str]) -> None:
        asking = [*terms, *(w for w in split(question) if w in _MEANT and w not in terms)]
        self._forms = {word: _forms(word) for word in asking}
        # field -> vocabulary phrase whose conditions are on it
        self._about = {
            field: phrase
            for traits, phrase in vocabulary.asked(question).items()
            for field in vocabulary.fields(traits)
        }

    def asking(self, name: str) -> tuple[float, list[str]]:
        """Return the share of a field's name that a question asks for, and the words that do.

        A full name counts 1; a vocabulary phrase adds `BY_PHRASE`.
        """
        key = name.rpartition(".")[2]
        named, about = _named(key), self._about.get(key)
        met = {word: both for word, forms in self._forms.items() if (both := forms & named)}
        share = len(frozenset().union(*met.values())) / max(1, len(named))
        return (share + BY_PHRASE, [about]) if about else (share, list(met))


@lru_cache(_MOST_NAMES)
def _named(name: str) -> frozenset[str]:
    return frozenset(_plain(word for word in split(name) if word not in _UNITS | STOP_WORDS))


def _forms(word: str) -> frozenset[str]:
    plain = singular(word)
    return frozenset([*_plain(split(plain)), *_plain(_MEANT.get(plain, ()))])


def _plain(words: Iterable[str]) -> Iterator[str]:
    """Yield the stems of words, with abbreviations and compounds expanded."""
    for word in words:
        yield from map(vocabulary.stem, _SPELT.get(word, word).split())
