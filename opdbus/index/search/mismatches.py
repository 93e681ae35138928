"""Mismatches of a question and a hit: another kind, a missing value, another name.

`is docker installed` is not answered by the service that asks docker, nor `which files were
changed` by an unchanged file.
"""

import json
import re
import string
from collections.abc import Callable
from typing import Final

from opdbus.index.catalogue.catalogue import object_id_of
from opdbus.index.catalogue.entry_view import EntryView
from opdbus.index.changes.connections import UNIT
from opdbus.index.database.store import Content, Entry
from opdbus.index.query import question_patterns
from opdbus.index.ranking.confidence_features import Mismatch
from opdbus.index.ranking.scores import Score
from opdbus.language import kinds, vocabulary
from opdbus.language.glossary import gloss
from opdbus.language.vocabulary import stem
from opdbus.state.fields import split
from opdbus.state.object import Json, ObjectId

OWN: Final = "op-dbus"
_NAMES_US: Final = re.compile(r"\bop[-_ ]?dbus", re.IGNORECASE)
# Fields with other names of an object, or the name of what it belongs to.
_ALIASES: Final = ("aliases unit exec provides image package program command class service").split()
# Mismatch of the kind if objects of the requested kind exist; otherwise it is 1.
_OTHER: Final = 0.5
# Minimum length of a prefix that counts as the same word.
_SHORTEST: Final = 3
# Words that negate, and the number of words after them that they apply to.
_NO: Final = frozenset("not no without lack lacks lost missing".split())
_NEAR: Final = 3
_SAID: Final = dict.fromkeys("yes on true ok".split(), True) | dict.fromkeys(
    "no off false none missing never".split(), False
)
# Weight of missing words that are not names of programs.
_COMMON: Final = 0.5


def left_out(question: str) -> Callable[[ObjectId, Score], bool]:
    """Return a predicate for units that only refer to other objects.

    These are the units of op-dbus, unless the question names op-dbus or only values that the unit
    has, and targets, if a yes-or-no question does not name them: `printer.target` is no printer.
    """
    form, names_us = question_patterns.of(question), bool(_NAMES_US.search(question))
    is_strict = question_patterns.is_yes_or_no(question) and not form.is_pure

    def is_left_out(object_id: ObjectId, score: Score) -> bool:
        if object_id[:2] != UNIT:
            return False
        if object_id.name.startswith(OWN):
            return not names_us and not (form.is_pure and score.values > 0)
        is_unasked = not form.asked.subject & kinds.of_object(object_id)[0]
        is_target = object_id.name.endswith(".target") and object_id.name not in question
        return is_strict and is_target and is_unasked

    return is_left_out


def has_asked_kind(question: str, view: EntryView) -> bool:
    """Return whether an object of the kinds that a question asks for exists.

    True also if it asks for none, or for a kind that op-dbus observes.
    """
    subject = question_patterns.of(question).asked.subject
    is_published = bool(subject) and not subject & ~kinds.published()
    return not is_published or bool((view.kinds[: view.end] & subject).any())


def find_mismatches(question: str, entry: Entry, content: Content, *, has_kind: bool) -> Mismatch:
    """Return the mismatches of an entry; `has_kind` is the result of `has_asked_kind`."""
    form, object_id = question_patterns.of(question), object_id_of(entry)
    subject = form.asked.subject
    is_other = bool(subject) and not subject & kinds.of_object(object_id)[0]
    kind = (_OTHER if has_kind else 1.0) if is_other else 0.0
    asked = [] if form.is_whether else list(vocabulary.asked(question))
    traits = int.from_bytes(entry.traits, "little")
    lacking = sum(not traits & bits for bits in asked) / len(asked) if asked else 0.0
    name = 0.0
    if form.is_whether:
        # an object of a kind without states can only refer to the named one
        only_names = is_other and object_id[:2] in kinds.STATELESS
        name = 1.0 if only_names else _strayed(question_patterns.subject(question), entry, content)
    return Mismatch(kind, lacking, name)


def agreement(question: str, content: Content) -> int:
    """Return -1 if a boolean field that a question names has the opposite value.

    `which slide is not open` asks for False, `which amplifier is muted` for True. Return 1 if both
    are negative, otherwise 0.
    """
    if question_patterns.of(question).damped == question_patterns.EVERY:
        # the answer to `is the printer enabled` may be a printer that is not
        return 0
    words = list(vocabulary.plain(question))
    says = {
        stem(word): _NO.isdisjoint(words[max(0, at - _NEAR) : at]) for at, word in enumerate(words)
    }
    is_no = False
    for name, value in json.loads(content.properties).items():
        own, is_so = {stem(word) for word in split(name)}, _yes_or_no(value)
        if is_so is not None and own and says.keys() >= own:
            if is_so != all(says[word] for word in own):
                return -1
            is_no |= not is_so
    return int(is_no)


def _yes_or_no(value: Json) -> bool | None:
    if isinstance(value, str):
        return _SAID.get(value.lower())
    return value if isinstance(value, bool) else None


def _strayed(asked: list[str], entry: Entry, content: Content) -> float:
    """Return the difference, 0 to 1, of an entry's name from the words asked for."""
    if not asked:
        return 0.0
    own = set(split(entry.identity.name)) | _others(content.properties)
    own |= {word.rstrip(string.digits) for word in own}
    meaning = gloss(entry.identity.name)
    missing = [word for word in asked if not _is_among(word, own) and gloss(word) != meaning]
    is_all = len(missing) == len(asked)
    return 1.0 if is_all and any(map(gloss, missing)) else _COMMON * len(missing) / len(asked)


def _is_among(word: str, own: set[str]) -> bool:
    if word in own or stem(word) in own:
        return True
    is_long = len(word) >= _SHORTEST
    return is_long and any(
        len(one) >= _SHORTEST and (one.startswith(word) or word.startswith(one)) for one in own
    )


def _others(properties: str) -> set[str]:
    """Return the words of other names in an object's properties."""
    if not any(f'"{name}"' in properties for name in _ALIASES):
        return set()
    known = json.loads(properties)
    values = (known.get(name) for name in _ALIASES)
    texts = (one for value in values for one in (value if isinstance(value, list) else [value]))
    return {word for text in texts if isinstance(text, str) for word in split(text)}
