"""Question patterns: `is ... running`, `where is ...`, `what checks ...`. Pure.

`is postgres running` names an object and asks for its state, so that other running objects are no
answers. `what throws away old files` asks for something that acts, which a file does not. `where
are the backups` asks for a place.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache, reduce
from operator import or_
from typing import Final, NamedTuple

from opdbus.index.query import query_terms
from opdbus.index.query.query_terms import STOP_WORDS
from opdbus.language import kinds, vocabulary
from opdbus.language.kinds import Kinds, RequestedKinds

# Factor on the boosts of values for objects of kinds that are not asked for.
DAMPED: Final = 0.3
# The mask of every kind, including those without a row in kinds.tsv.
EVERY: Final = -1
# Words that add nothing to a kind and a value: `which files did someone change here`.
_FILLERS: Final = frozenset(
    "someone somebody anyone anybody nobody everyone everybody currently now right already yet"
    " still ever just really host machine computer box list me all every each at moment present"
    " actually today fully".split()
)
# Words that ask for a state and name no object.
_OF_STATES: Final = frozenset(
    "installed running run runs up here there available exist exists enabled open mounted working"
    " work works alive reachable used use uses configured set present loaded version".split()
)
_VERBS: Final = frozenset(("is", "are"))
# Second and third words of questions about a single object: `which version of redis`.
_OF_ONE: Final = frozenset({("version", "of"), ("when", "is"), ("when", "has"), ("long", "has")})
# A text with one of these words does not state an object's state.
_NO_STATEMENTS: Final = frozenset(
    "how when why where which what who that there if list show".split()
)
# Cached questions: a search asks for the pattern of its question several times.
_QUESTIONS: Final = 16

_WORD: Final = re.compile(r"[a-z0-9]+")
_ADDRESS: Final = re.compile(r"[\da-fA-F]*[.:][\da-fA-F.:]+(?:/\d+)?")
_WHETHER: Final = frozenset(
    "is are was were does do did has have had can could may might will would".split()
)
_ASKING: Final = _WHETHER | frozenset("what which who anything".split())
# After these, the objects with a value are asked for: `is anything broken`.
_ANY: Final = frozenset("any anything anybody anyone there some something somebody what".split())
_SO_SOON: Final = 4
_WHO: Final = frozenset("what who which".split())
# Verbs of state, not of action.
_BEING: Final = frozenset(
    "is was has does runs uses goes happens needs holds comes stands lies contains means belongs"
    " lives sits keeps stays gets exists remains starts stops lacks owns waits depends"
    " fires".split()
)
_SHORTEST: Final = 4
# These follow a plural noun, not a verb.
_AFTER_NOUNS: Final = frozenset(
    "of that which who with without in on for to from by at as and or under over above below"
    " via than is are has have".split()
)

# Kinds that do not act, each with its penalty where something that acts is asked for; None for the
# usual penalty of the kind.
_PASSIVE: Final[Mapping[str, float | None]] = dict.fromkeys(
    "mount|interface|port|account|session|kernel|memory|disk|device|sysctl|host name|time zone"
    "|language|distribution".split("|"),
    0.15,
) | dict.fromkeys(("address", "route", "group", "file", "module", "kernel parameter"))
# Penalties by kind where a place is asked for.
_OF_A_PLACE: Final = {"package": 0.1, "account": 0.1, "file": 0.0, "mount": -0.1}
# Kinds and those of their fields that the vocabulary has conditions on.
_HAVING: Final[Mapping[str, Sequence[str]]] = {
    "service": "active_state sub_state unit_file_state result load_state restart exit_status"
    " need_daemon_reload".split(),
    "timer": ["calendar"],
    "cron job": ["schedule"],
    "mount": "used_percent read_only options fstype".split(),
    "interface": "carrier mtu state".split(),
    "account": "can_log_in administrator".split(),
    "package": "on_hold automatic removed essential".split(),
    "file": "modified obsolete readable".split(),
    "port": ["exposed"],
    "session": ["locked"],
}

# Units of every type have the states of services.
_UNITS: Final = (
    "service",
    "timer",
    "socket unit",
    "mount unit",
    "path unit",
    "target",
    "slice",
    "unit",
)


class Form(NamedTuple):
    """The pattern of a question and its consequences for ranking.

    `asked` are the kinds it names and asks for. `less` replaces the penalty of some kinds. Boosts
    of values are damped for objects of the `damped` kinds. `is_whether`: the question names an
    object and ends in the state it asks about. `is_pure`: the question names only values and kinds,
    so that objects with these values are the answer. For a pure question, one object of the kinds
    `holders` must have all `values` together, as in `enabled but not active`; with `is_strict` the
    result is empty if none has.
    """

    asked: RequestedKinds
    less: Sequence[tuple[Kinds, float]] = ()
    damped: Kinds = 0
    is_whether: bool = False
    is_pure: bool = False
    values: Sequence[vocabulary.Traits] = ()
    holders: Kinds = 0
    is_strict: bool = False


@lru_cache(maxsize=_QUESTIONS)
def of(question: str) -> Form:
    """Return the pattern of a question."""
    words = _WORD.findall(question.lower()) or [""]
    asked = kinds.requested(question, STOP_WORDS)
    if _ADDRESS.fullmatch(question.strip()):
        return Form(_with(asked, _sorts("address")))
    if words[0] == "where":
        # `where are the users configured` does not ask for an account
        files = asked.named & _sorts("file")
        asked = RequestedKinds(files, files) if files else asked
        return Form(asked, () if files else _less(tuple(_OF_A_PLACE.items())))
    if _is_deed(words):
        passive = reduce(or_, map(_sorts, _PASSIVE))
        acting = RequestedKinds(asked.named & ~passive, asked.subject & ~passive)
        return Form(acting, _less(tuple(_PASSIVE.items())), passive)
    holders, asked = asked.subject, _narrowed(question, asked)
    is_whether = words[0] in _WHETHER and _ANY.isdisjoint(words[1:_SO_SOON])
    is_of_state = is_whether or is_statement(question)
    is_of_one = (is_of_state or tuple(words[1:3]) in _OF_ONE) and _ends_in_state(question, words)
    if (words[0] in _ASKING or is_of_state) and not asked.named:
        having = _having(question, words)
        # a nightly run is that of a service, not of a timer
        states = having & ~(_sorts("timer") | _sorts("cron job"))
        asked = _with(asked, states) if is_of_state else RequestedKinds(having, asked.subject)
    found = Form(asked, (), EVERY if is_of_state else 0, is_of_one, _is_pure(question))
    if not found.is_pure or "or" in words:
        return found
    is_strict = not {"not", *vocabulary.CONTRASTS}.isdisjoint(vocabulary.plain(question))
    values = _together(question, holders)
    return found._replace(values=values, holders=holders, is_strict=is_strict)


def _together(question: str, subject: Kinds) -> Sequence[vocabulary.Traits]:
    """Return the values of a question that its subject may have, () if there are fewer than two."""
    units = reduce(or_, map(_sorts, _UNITS))
    found = []
    for bits in vocabulary.asked(question):
        having = reduce(or_, (sorts for bit, sorts in _of_rows().items() if bits & bit), 0)
        having |= units if having & units else 0
        found += [bits] if not subject or having & subject else []
    return found if len(found) > 1 else ()


def is_yes_or_no(question: str) -> bool:
    """Return whether the answer to a question is yes or no: `is the printer out of paper`."""
    return next(iter(_WORD.findall(question.lower())), "") in _WHETHER


def states(question: str) -> set[str]:
    """Return the words of a question that name states, and the usual words of states."""
    said = vocabulary.asked(question).values()
    return {word for phrase in said for word in phrase.split()} | _OF_STATES


def subject(question: str) -> list[str]:
    """Return the terms that name the object whose state is asked for."""
    passed = states(question) | kinds.words(question) | _FILLERS
    return [word for word in query_terms.terms(question) if word not in passed]


def _ends_in_state(question: str, words: Sequence[str]) -> bool:
    """Return whether a question ends in a state, as `is it running` does.

    `is a frontend to various audio converters` does not.
    """
    said = (phrase.split() for phrase in vocabulary.asked(question).values())
    return words[-1] in _OF_STATES or any(words[-len(one) :] == one for one in said)


def is_statement(question: str) -> bool:
    """Return whether a question states the state of an object: `the web server is down`."""
    words = _WORD.findall(question.lower()) or [""]
    if words[0] in _ASKING or not _NO_STATEMENTS.isdisjoint(words):
        return False
    at = next((at for at, word in enumerate(words) if word in _VERBS), 0)
    rest = " ".join(words[at + 1 :])
    return at > 0 and any(rest == phrase for phrase in vocabulary.asked(rest).values())


def _is_pure(question: str) -> bool:
    """Return whether a question has values and, apart from kinds and filler words, nothing else."""
    asked = vocabulary.asked(question)
    said = {word for phrase in asked.values() for word in phrase.split()}
    passed = said | kinds.words(question) | _FILLERS | STOP_WORDS | vocabulary.CONTRASTS
    return bool(asked) and passed.issuperset(vocabulary.plain(question))


def _with(asked: RequestedKinds, sorts: Kinds) -> RequestedKinds:
    return RequestedKinds(asked.named | sorts, asked.subject | sorts)


def _narrowed(question: str, asked: RequestedKinds) -> RequestedKinds:
    """Remove kinds that cannot have the values in the question, if another kind asked for can.

    A `network card that is down` is an interface, not a device.
    """
    having = asked.subject & _having(question, ())
    lacking = asked.subject & ~having if having else 0
    return RequestedKinds(asked.named & ~lacking, asked.subject & ~lacking)


def _having(question: str, words: Sequence[str]) -> Kinds:
    """Return the kinds that may have the values in a question; `did ...` asks for services."""
    if words[:1] == ["did"]:
        return _sorts("service")
    bits = reduce(or_, vocabulary.asked(question), 0)
    return reduce(or_, (sorts for bit, sorts in _of_rows().items() if bits & bit), 0)


@cache
def _of_rows() -> Mapping[vocabulary.Traits, Kinds]:
    """Return the kinds that may have the value of each vocabulary row, by the row's bit."""
    found = {}
    for number, row in enumerate(vocabulary.rows()):
        fields = {condition.field for part in row.alternatives for condition in part}
        of = (_sorts(sort) for sort, having in _HAVING.items() if not fields.isdisjoint(having))
        found[1 << number] = reduce(or_, of, 0)
    return found


@cache
def _sorts(phrase: str) -> Kinds:
    return kinds.requested(phrase, frozenset()).named


@cache
def _acted_on() -> Kinds:
    """Return the kinds whose nouns may follow a verb: `checks certificates`."""
    return _sorts("certificate") | _sorts("rule")


@cache
def _less(amounts: tuple[tuple[str, float | None], ...]) -> Sequence[tuple[Kinds, float]]:
    found: dict[float, Kinds] = {}
    for phrase, amount in amounts:
        if amount is not None:
            found[amount] = found.get(amount, 0) | _sorts(phrase)
    return [(sorts, amount) for amount, sorts in found.items()]


def _is_deed(words: Sequence[str]) -> bool:
    """Return whether words begin with a verb of action, or `what` and one: `checks disks`."""
    is_asking = words[0] in _WHO
    verb, after = (*words[is_asking : is_asking + 2], "", "")[:2]
    if len(verb) < _SHORTEST or not verb.endswith("s") or verb.endswith("ss") or verb in _BEING:
        return False
    if not is_asking and (not after or after in _AFTER_NOUNS or _sorts(after) & ~_acted_on()):
        return False
    return not (_sorts(verb) or vocabulary.asked(verb))
