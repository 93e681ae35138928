"""Forms of questions: whether something is so, where it is, what does it. Pure.

`is postgres running` names a thing and asks for its state, so that what runs is not meant by it.
`what throws away old files` asks for what acts, which a file does not. `where are the backups` asks
for a place.
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

# What values count for that are not what is asked for.
DAMPED: Final = 0.3
# All sorts of things, also those that no row of kinds.tsv names.
EVERY: Final = -1
# What people say beside a sort and a value: `which files did someone change here`.
_FILLERS: Final = frozenset(
    "someone somebody anyone anybody nobody everyone everybody currently now right already yet"
    " still ever just really host machine computer box list me all every each at moment present"
    " actually today fully".split()
)
# They ask for a state, and name nothing.
_OF_STATES: Final = frozenset(
    "installed running run runs up here there available exist exists enabled open mounted working"
    " work works alive reachable used use uses configured set present loaded version".split()
)
_VERBS: Final = frozenset(("is", "are"))
# `which version of redis` names one thing, too.
_OF_ONE: Final = frozenset({("version", "of"), ("when", "is"), ("when", "has"), ("long", "has")})
# What has these is no statement of a thing's state.
_NO_STATEMENTS: Final = frozenset(
    "how when why where which what who that there if list show".split()
)
# A search asks several times for the form of its question.
_QUESTIONS: Final = 16

_WORD: Final = re.compile(r"[a-z0-9]+")
_ADDRESS: Final = re.compile(r"[\da-fA-F]*[.:][\da-fA-F.:]+(?:/\d+)?")
_WHETHER: Final = frozenset(
    "is are was were does do did has have had can could may might will would".split()
)
_ASKING: Final = _WHETHER | frozenset("what which who anything".split())
# Words after which what has the value is asked for: `is anything broken`.
_ANY: Final = frozenset("any anything anybody anyone there some something somebody what".split())
_SO_SOON: Final = 4
_WHO: Final = frozenset("what who which".split())
# Verbs that say how something is, not what it does.
_BEING: Final = frozenset(
    "is was has does runs uses goes happens needs holds comes stands lies contains means belongs"
    " lives sits keeps stays gets exists remains starts stops lacks owns waits depends"
    " fires".split()
)
_SHORTEST: Final = 4
# They follow a noun in the plural, not a verb.
_AFTER_NOUNS: Final = frozenset(
    "of that which who with without in on for to from by at as and or under over above below"
    " via than is are has have".split()
)

# What acts on nothing, and how much is taken from it where something that acts is asked for; None
# if that is no more than always.
_PASSIVE: Final[Mapping[str, float | None]] = dict.fromkeys(
    "mount|interface|port|account|session|kernel|memory|disk|device|sysctl|host name|time zone"
    "|language|distribution".split("|"),
    0.15,
) | dict.fromkeys(("address", "route", "group", "file", "module", "kernel parameter"))
# What is taken where a place is asked for: more from what is none.
_OF_A_PLACE: Final = {"package": 0.1, "account": 0.1, "file": 0.0, "mount": -0.1}
# The sorts that have fields of the vocabulary.
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

# Units of any type have the states of services.
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
    """What a question is like, and what follows.

    It asks for some sorts; from things of some `less` is taken than else, or more; a value counts
    less for what is of the `damped` sorts. `is_whether` if it names a thing and ends in a state
    that it asks of it, `is_pure` if it names nothing but values and sorts: what has the values is
    the answer. Of a pure one all `values` must be met together by one of the sorts `holders`, such
    as of `enabled but not active`; if it is `strict`, also where nothing does.
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
    """Return what a question is like."""
    words = _WORD.findall(question.lower()) or [""]
    asked = kinds.requested(question, STOP_WORDS)
    if _ADDRESS.fullmatch(question.strip()):
        return Form(_with(asked, _sorts("address")))
    if words[0] == "where":
        # `where are the users configured` asks for no user
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
        # a nightly run is one of a service
        states = having & ~(_sorts("timer") | _sorts("cron job"))
        asked = _with(asked, states) if is_of_state else RequestedKinds(having, asked.subject)
    found = Form(asked, (), EVERY if is_of_state else 0, is_of_one, _is_pure(question))
    if not found.is_pure or "or" in words:
        return found
    is_strict = not {"not", *vocabulary.CONTRASTS}.isdisjoint(vocabulary.plain(question))
    values = _together(question, holders)
    return found._replace(values=values, holders=holders, is_strict=is_strict)


def _together(question: str, subject: Kinds) -> Sequence[vocabulary.Traits]:
    """Return the values that a question names, if there are several that its subject may have."""
    units = reduce(or_, map(_sorts, _UNITS))
    found = []
    for bits in vocabulary.asked(question):
        having = reduce(or_, (sorts for bit, sorts in _of_rows().items() if bits & bit), 0)
        having |= units if having & units else 0
        found += [bits] if not subject or having & subject else []
    return found if len(found) > 1 else ()


def is_yes_or_no(question: str) -> bool:
    """Return whether a question is answered by yes or no: `is the printer out of paper`."""
    return next(iter(_WORD.findall(question.lower())), "") in _WHETHER


def states(question: str) -> set[str]:
    """Return the words by which a question names states."""
    said = vocabulary.asked(question).values()
    return {word for phrase in said for word in phrase.split()} | _OF_STATES


def subject(question: str) -> list[str]:
    """Return the words that name the thing of which a question asks for the state."""
    passed = states(question) | kinds.words(question) | _FILLERS
    return [word for word in query_terms.terms(question) if word not in passed]


def _ends_in_state(question: str, words: Sequence[str]) -> bool:
    """Return whether a question ends in what it asks of a thing: `is it running`.

    `is a frontend to various audio converters` does not.
    """
    said = (phrase.split() for phrase in vocabulary.asked(question).values())
    return words[-1] in _OF_STATES or any(words[-len(one) :] == one for one in said)


def is_statement(question: str) -> bool:
    """Return whether a question says of something how it is: `the web server is down`."""
    words = _WORD.findall(question.lower()) or [""]
    if words[0] in _ASKING or not _NO_STATEMENTS.isdisjoint(words):
        return False
    at = next((at for at, word in enumerate(words) if word in _VERBS), 0)
    rest = " ".join(words[at + 1 :])
    return at > 0 and any(rest == phrase for phrase in vocabulary.asked(rest).values())


def _is_pure(question: str) -> bool:
    """Return whether a question names values, and besides at most the sort of what has them."""
    asked = vocabulary.asked(question)
    said = {word for phrase in asked.values() for word in phrase.split()}
    passed = said | kinds.words(question) | _FILLERS | STOP_WORDS | vocabulary.CONTRASTS
    return bool(asked) and passed.issuperset(vocabulary.plain(question))


def _with(asked: RequestedKinds, sorts: Kinds) -> RequestedKinds:
    return RequestedKinds(asked.named | sorts, asked.subject | sorts)


def _narrowed(question: str, asked: RequestedKinds) -> RequestedKinds:
    """Return without sorts that cannot have a value, if what is asked for is called like others.

    A `network card that is down` is an interface, and no device.
    """
    having = asked.subject & _having(question, ())
    lacking = asked.subject & ~having if having else 0
    return RequestedKinds(asked.named & ~lacking, asked.subject & ~lacking)


def _having(question: str, words: Sequence[str]) -> Kinds:
    """Return the sorts that may have the values that a question names; runs are of services."""
    if words[:1] == ["did"]:
        return _sorts("service")
    bits = reduce(or_, vocabulary.asked(question), 0)
    return reduce(or_, (sorts for bit, sorts in _of_rows().items() if bits & bit), 0)


@cache
def _of_rows() -> Mapping[vocabulary.Traits, Kinds]:
    """Return the sorts that may have the value of each row of the vocabulary, by its bit."""
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
    """Return the sorts that a verb rather than a name stands before: `checks certificates`."""
    return _sorts("certificate") | _sorts("rule")


@cache
def _less(amounts: tuple[tuple[str, float | None], ...]) -> Sequence[tuple[Kinds, float]]:
    found: dict[float, Kinds] = {}
    for phrase, amount in amounts:
        if amount is not None:
            found[amount] = found.get(amount, 0) | _sorts(phrase)
    return [(sorts, amount) for amount, sorts in found.items()]


def _is_deed(words: Sequence[str]) -> bool:
    """Return whether words begin with a verb that says what something does: `checks disks`."""
    is_asking = words[0] in _WHO
    verb, after = (*words[is_asking : is_asking + 2], "", "")[:2]
    if len(verb) < _SHORTEST or not verb.endswith("s") or verb.endswith("ss") or verb in _BEING:
        return False
    if not is_asking and (not after or after in _AFTER_NOUNS or _sorts(after) & ~_acted_on()):
        return False
    return not (_sorts(verb) or vocabulary.asked(verb))
