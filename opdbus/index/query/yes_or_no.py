"""Forms of questions whose answer is yes or no: `is bob in the group sudo`. Pure.

The words that state a value, such as `running`, are rows of verdicts.tsv.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final, NamedTuple

from opdbus.index.query import query_terms
from opdbus.language import kinds, routes, tables
from opdbus.state.conditions import AllOf, parse

_WHETHER: Final = ("is", "are", "has", "have", "does", "do", "can", "will")
_ADVERBS: Final = re.compile(
    r" (?:currently|now|right now|still|already|at the moment|today|really|actually|properly|either"
    r"|here|(?:on|of) (?:this|the) (?:host|machine|computer|server|system|box))(?= |$)"
)
# `is nginx no longer running`, `is it not running any more`, `does nginx still run`
_NO_LONGER: Final = re.compile(r"\bno longer\b|\bnot(?= .{0,200} any ?more$)")
_ANY_MORE: Final = re.compile(r" any ?more$")
_STILL_RUNS: Final = re.compile(r"^(?:does|do) (.+) still run$")
_DETERMINERS: Final = frozenset("the a an my our your this that both all any".split())
# Words that stand for no object of that name.
_PRONOUNS: Final = query_terms.STOP_WORDS | frozenset(
    "anything something anyone anybody someone somebody everyone everybody everything nobody"
    " nothing one ones each others another he him".split()
)
_AND: Final = re.compile(r" and (?:the )?")
_MOST_NAMES: Final = 4
_NOT: Final = "not"
_IN: Final = r"(?:in|part of|(?:a )?members? of|among the members of)"
_GROUP: Final = r"(?:the |our )?(?:user |unix )?(?:group )?(?:of )?(?P<of>\S+)(?: group| team)?"
_ANYTHING: Final = r"(?:anything|something|anyone|(?:any|a|some) (?:service|process|program))"
_LISTEN: Final = r"(?:listen(?:ing)?|bound|us(?:e|ing)) (?:on |to )?"
_THE_GROUP: Final = r"(?:the )?(?:group )?(?P<of>\S+)(?: group)?"
_HAVING: Final = r"(?:(?:is|are) there|(?:do|does) (?:we|i|this host|it) have) (?:a |an |any )?"
_CALLED: Final = r"(?:called|named|by the name of|with the name)"
_PORT: Final = r"(?:the )?(?:(?P<protocol>tcp|udp) )?port (?P<of>\d+)(?:/(?P<after>tcp|udp))?"
_NUMBERED: Final = r"(?P<field>[a-z]\w*)(?: number| is)? (?P<of>\d+)"
_TAKEN: Final = r"(?:taken|used|in use|occupied|assigned|given|known|there|present)"
_OPEN: Final = r"(?:open|listening|listened on|in use|used|taken|occupied|busy|bound)"


class Form(NamedTuple):
    """The pattern of questions for a relation or its opposite, and an example (tested).

    Groups of the pattern: `names` of objects, their kind as a `noun`; `of`, a group, a port or the
    number of a `field`.
    """

    relation: str
    pattern: re.Pattern[str]
    example: str
    is_opposite: bool = False


MEMBER, PORT, EXISTS, STATE, NUMBER = "member", "port", "exists", "state", "number"
# Opposites of relations.
ABSENT, FREE, UNUSED = "absent", "free", "unused"
_OPPOSITES: Final = {ABSENT: EXISTS, FREE: PORT, UNUSED: NUMBER}
FORMS: Final = tuple(
    Form(
        _OPPOSITES.get(relation, relation),
        re.compile(f"^(?:{pattern})$"),
        example,
        relation in _OPPOSITES,
    )
    for relation, pattern, example in (
        (PORT, rf"is {_PORT} {_OPEN}", "is port 443 open"),
        (FREE, rf"is {_PORT} (?:free|unused|available|closed)", "is port 443 free"),
        (NUMBER, rf"is (?:the )?{_NUMBERED} {_TAKEN}", "is uid 1002 taken"),
        (UNUSED, rf"is (?:the )?{_NUMBERED} (?:free|unused|available)", "is uid 1002 free"),
        (
            NUMBER,
            rf"{_HAVING}(?P<noun>.+?) (?:with|of|that has|having|whose) (?:the |a )?{_NUMBERED}",
            "is there a user with uid 1004",
        ),
        (
            NUMBER,
            rf"(?:does|do|has) (?:(?:any|a) )?(?P<noun>.+?) (?:have|use|got) (?:the )?{_NUMBERED}",
            "does any user have uid 1004",
        ),
        (
            PORT,
            rf"(?:is|does|has) {_ANYTHING} {_LISTEN}{_PORT}",
            "is anything listening on tcp port 443",
        ),
        (MEMBER, rf"(?:is|are) (?P<names>.+?) {_IN} {_GROUP}", "is bob in the group sudo"),
        (MEMBER, rf"(?:does|do) (?P<names>.+?) belong to {_GROUP}", "does bob belong to sudo"),
        (
            MEMBER,
            rf"does {_THE_GROUP} (?:have|contain|include) (?P<names>.+?)(?: as a member| in it)?",
            "does the group sudo have bob as a member",
        ),
        (EXISTS, r"(?:does|do) (?P<names>.+?) exist", "does alice exist"),
        (EXISTS, r"(?:is|are) (?P<names>.+?) (?:there|present|around)", "is alice there"),
        (ABSENT, r"(?:is|are) (?P<names>.+?) (?:missing|gone|absent)", "is alice gone"),
        (
            EXISTS,
            rf"{_HAVING}(?P<noun>.+?) {_CALLED} (?P<names>\S+)",
            "is there a user called alice",
        ),
    )
)


class StateWords(NamedTuple):
    """Phrases that state a value, alternatives of conditions for yes and no, and their fields."""

    yes: tuple[AllOf, ...]
    no: tuple[AllOf, ...]


class YesOrNo(NamedTuple):
    """A yes-or-no question: its relation, the names in it, and the kinds of its noun.

    `of` is a group, a port or the number of a `field`, `state` the words that state a value.
    """

    relation: str
    names: Sequence[str] = ()
    of: str = ""
    noun: str = ""
    protocol: str = ""
    state: StateWords | None = None
    is_negated: bool = False
    field: str = ""


@cache
def states() -> Mapping[str, StateWords]:
    """Read the table, by phrase."""

    def alternatives(text: str) -> tuple[AllOf, ...]:
        return tuple(AllOf(parse(part)) for part in text.split("|") if part)

    found: dict[str, StateWords] = {}
    for phrases, yes, no in tables.rows("verdicts"):
        row = StateWords(alternatives(yes), alternatives(no))
        found |= dict.fromkeys(phrases.split("|"), row)
    return found


def read(question: str) -> YesOrNo | None:
    """Read a question; None if it is of no form. Names are in lower case."""
    text = _STILL_RUNS.sub(r"is \1 running", routes.plain(question))
    text = _ANY_MORE.sub("", _NO_LONGER.sub(_NOT, text))
    words = _ADVERBS.sub("", text).split()
    if len(words) < 3 or words[0] not in _WHETHER or "or" in words:
        return None
    # `isn't nginx running` asks whether it is
    if words[1] == _NOT:
        del words[1]
    is_negated = words.count(_NOT) == 1
    if words.count(_NOT) > 1:
        return None
    text = " ".join(word for word in words if word != _NOT)
    for relation, pattern, _, is_opposite in FORMS:
        if match := pattern.match(text):
            given = {key: value for key, value in match.groupdict().items() if value}
            names, noun = _names(given.get("names", ""))
            if "names" in match.groupdict() and not names:
                continue
            protocol = given.get("protocol") or given.get("after") or ""
            noun = given.get("noun", noun)
            of, field = given.get("of", ""), given.get("field", "")
            no = is_negated != is_opposite
            return YesOrNo(relation, names, of, noun, protocol, None, no, field)
    return _read_state(text.split(), is_negated=is_negated)


def _read_state(words: Sequence[str], *, is_negated: bool) -> YesOrNo | None:
    """Read a question that ends in words of verdicts.tsv: the longest that name a state."""
    for at in range(2, len(words)):
        if state := states().get(" ".join(words[at:])):
            names, noun = _names(" ".join(words[1:at]))
            if not names:
                return None
            return YesOrNo(STATE, names, "", noun, "", state, is_negated)
    return None


def _names(text: str) -> tuple[Sequence[str], str]:
    """Return the names in `the services nginx and redis`, and the noun of their kind.

    No names if a part has several words besides determiners and a noun.
    """
    names, nouns = list[str](), list[str]()
    for part in _AND.split(text):
        words = [word for word in part.split() if word not in _DETERMINERS]
        own = [word for word in words if not kinds.requested(word, frozenset()).named]
        # `user` alone is a name: is user running
        own = own or words[-1:]
        nouns += [word for word in words if word not in own]
        if len(own) != 1 or own[0] in _PRONOUNS:
            return (), ""
        names += own
    return (names, " ".join(nouns)) if len(names) <= _MOST_NAMES else ((), "")
