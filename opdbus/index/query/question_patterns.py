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
from opdbus.language import kinds, tables, vocabulary
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
_RUN_AS: Final = re.compile(r"\brun(?:s|ning)? (?:as|with|without|under)\b", re.IGNORECASE)
# Words that ask for a state and name no object.
_OF_STATES: Final = frozenset(
    "installed running run runs up here there available exist exists enabled open mounted working"
    " work works alive reachable used use uses configured set present loaded version on off".split()
)
SWITCHED: Final = frozenset(("on", "off"))
# Words of states that only what runs, or is set to run, can have.
_RUNNING: Final = SWITCHED | frozenset("enabled disabled active inactive running up down".split())
# Second and third words of questions about a single object: `which version of redis`.
_OF_ONE: Final = frozenset({("version", "of"), ("when", "is"), ("when", "has"), ("long", "has")})
# Cached questions: a search asks for the pattern of its question several times.
_QUESTIONS: Final = 16

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

# Kinds that do not act; the first have this penalty where something that acts is asked for, the
# others their usual one.
_PASSIVE: Final = (
    "mount|interface|port|account|session|kernel|memory|disk|device|sysctl|host name|time zone"
    "|language|distribution"
)
_PASSIVE_PENALTY: Final = 0.15
_ALSO_PASSIVE: Final = "address|route|group|file|module|kernel parameter"
# Penalties of kinds where a place is asked for.
_OF_A_PLACE: Final = (("package|account", 0.1), ("file", 0.0), ("mount", -0.1))
# Kinds whose nouns may follow a verb: `checks certificates`.
_ACTED_ON: Final = "certificate"
# Kinds and those of their fields that the vocabulary has conditions on.
_HAVING: Final[Mapping[str, Sequence[str]]] = {
    "service": "active_state sub_state unit_file_state result load_state user".split(),
    "timer": ["calendar"],
    "cron job": ["schedule"],
    "mount": "used_percent read_only options".split(),
    "interface": "carrier state".split(),
    "account": "can_log_in administrator".split(),
    "package": "on_hold automatic removed essential".split(),
    "file": "modified readable".split(),
    "port": ["exposed"],
    "session": ["locked"],
}
# Units of every type have the states of services.
_UNITS: Final = "service|timer|socket unit|mount unit|path unit|target|slice|unit"


class Form(NamedTuple):
    """The pattern of a question and its consequences for ranking.

    `asked` are the kinds it names and asks for. `less` replaces the penalty of some kinds. Boosts
    of values are damped for objects of the `damped` kinds. `is_whether`: the question names an
    object and ends in the state it asks about. `is_pure`: the question names only values and kinds,
    so that objects with these values are the answer. For a pure question, one object of the kinds
    `holders` must have all `values` together, as in `enabled but not active`; with `is_strict` the
    result is empty if none has. Of a single value it must have that one: `changed config files`.
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
    words, asked = tables.words_of(question) or [""], kinds.requested(question, STOP_WORDS)
    forms = (read(question, words, asked) for read, _ in PATTERNS)
    return next(filter(None, forms))


def _of_address(question: str, _words: Sequence[str], asked: RequestedKinds) -> Form | None:
    address = kinds.of_phrases("address")
    is_address = _ADDRESS.fullmatch(question.strip())
    return Form(RequestedKinds(*(named | address for named in asked))) if is_address else None


def _of_place(_question: str, words: Sequence[str], asked: RequestedKinds) -> Form | None:
    """Read a question for a place; `where are the users configured` asks for files alone."""
    if words[0] != "where":
        return None
    if files := asked.named & kinds.of_phrases("file"):
        return Form(RequestedKinds(files, files))
    return Form(asked, [(kinds.of_phrases(each), amount) for each, amount in _OF_A_PLACE])


def _of_deed(_question: str, words: Sequence[str], asked: RequestedKinds) -> Form | None:
    """Read a verb of action, or `what` and one: `checks disks`."""
    is_asking = words[0] in _WHO
    verb, after = (*words[is_asking : is_asking + 2], "", "")[:2]
    if len(verb) < _SHORTEST or not verb.endswith("s") or verb.endswith("ss") or verb in _BEING:
        return None
    of_after = kinds.requested(after, frozenset()).named & ~kinds.of_phrases(_ACTED_ON)
    if not is_asking and (not after or after in _AFTER_NOUNS or of_after):
        return None
    if kinds.requested(verb, frozenset()).named or vocabulary.values_in(verb):
        return None
    less = kinds.of_phrases(_PASSIVE)
    passive = less | kinds.of_phrases(_ALSO_PASSIVE)
    acting = RequestedKinds(*(named & ~passive for named in asked))
    return Form(acting, [(less, _PASSIVE_PENALTY)], passive)


def _of_values(question: str, words: Sequence[str], asked: RequestedKinds) -> Form:
    """Read a question about the state of an object, or for all objects with some values."""
    is_pure = _is_pure(question)
    phrases = vocabulary.values_in(question)
    having = _kinds_having(reduce(or_, phrases, 0))
    having |= kinds.of_phrases("service|interface") if words[-1] in SWITCHED else 0
    # a `network card that is down` is an interface, not a device
    can_have = asked.subject & having
    lacking = asked.subject & ~having if can_have else 0
    holders, asked = asked.subject, RequestedKinds(*(named & ~lacking for named in asked))
    is_whether = words[0] in _WHETHER and _ANY.isdisjoint(words[1:_SO_SOON])
    # `is it running` ends in a state, `is a frontend to various audio converters` does not
    ends = [phrase.split() for phrase in phrases.values()]
    ends_in_state = words[-1] in _OF_STATES or any(words[-len(one) :] == one for one in ends)
    is_of_one = (is_whether or tuple(words[1:3]) in _OF_ONE) and ends_in_state
    if words[0] in _ASKING and not asked.named:
        having = kinds.of_phrases("service") if words[0] == "did" else having
        # a nightly run is that of a service, not of a timer
        states = having & ~kinds.of_phrases("timer|cron job")
        asked = (
            RequestedKinds(*(named | states for named in asked))
            if is_whether
            else RequestedKinds(having, asked.subject)
        )
    found = Form(asked, (), EVERY if is_whether else 0, is_of_one, is_pure)
    if not is_pure or "or" in words:
        return found
    # the values that the subject may have, if there are several
    units, values = kinds.of_phrases(_UNITS), list[vocabulary.Traits]()
    for bits in phrases:
        own = _kinds_having(bits)
        own |= units if own & units else 0
        values += [bits] if not holders or own & holders else []
    if values and holders & kinds.of_phrases("service") and _RUN_AS.search(question):
        # a service that does not run runs as nobody
        values += [] if _running() in values else [_running()]
    is_strict = not {"not", *vocabulary.CONTRASTS}.isdisjoint(vocabulary.plain(question))
    together = values if len(values) > 1 or holders else ()
    return found._replace(values=together, holders=holders, is_strict=is_strict)


# The readers of questions and an example of each (tested); the first that returns a form counts.
PATTERNS: Final = (
    (_of_address, "192.0.2.1"),
    (_of_place, "where are the backups"),
    (_of_deed, "what throws away old files"),
    (_of_values, "is postgres running"),
)


def is_yes_or_no(question: str) -> bool:
    """Return whether the answer to a question is yes or no: `is the printer out of paper`."""
    return next(iter(tables.words_of(question)), "") in _WHETHER


def is_switch(question: str) -> bool:
    """Return whether a question asks if an object is on or off: `is swap on`."""
    return is_yes_or_no(question) and tables.words_of(question)[-1] in SWITCHED


def is_of_running(question: str) -> bool:
    """Return whether a question asks for a state that a package or a setting cannot have."""
    return is_yes_or_no(question) and tables.words_of(question)[-1] in _RUNNING


def states(question: str) -> set[str]:
    """Return the words of a question that name states, and the usual words of states."""
    return {*" ".join(vocabulary.values_in(question).values()).split()} | _OF_STATES


def subject(question: str) -> list[str]:
    """Return the terms that name the object whose state is asked for."""
    passed = states(question) | kinds.kind_words(question) | _FILLERS
    return [word for word in query_terms.terms(question) if word not in passed]


@cache
def _running() -> vocabulary.Traits:
    """Return the value of what runs."""
    (running,) = vocabulary.values_in("running")
    return running


def _is_pure(question: str) -> bool:
    """Return whether a question has values and, apart from kinds and filler words, nothing else."""
    asked = vocabulary.values_in(question)
    own = {*" ".join(asked.values()).split()}
    passed = own | kinds.kind_words(question) | _FILLERS | STOP_WORDS | vocabulary.CONTRASTS
    return bool(asked) and passed.issuperset(vocabulary.plain(question))


def _kinds_having(values: vocabulary.Traits) -> Kinds:
    """Return the kinds that may have one of some values."""
    return reduce(or_, (of_row for bit, of_row in _kinds_by_row().items() if values & bit), 0)


@cache
def _kinds_by_row() -> Mapping[vocabulary.Traits, Kinds]:
    """Return the kinds that may have the value of each vocabulary row, by the row's bit."""
    found = {}
    for number, row in enumerate(vocabulary.rows()):
        fields = {condition.field for part in row.alternatives for condition in part}
        of = [kind for kind, having in _HAVING.items() if not fields.isdisjoint(having)]
        found[1 << number] = kinds.of_phrases("|".join(of))
    return found
