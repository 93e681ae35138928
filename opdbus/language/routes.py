"""Routes of questions, by their form: to objects, changes, drift or status. Pure.

`who changed sshd_config` goes to changes, `is everything as declared` to drift, `are you ready` to
status, any other question to objects. The forms are in routes.tsv; times in a question become
options of `op-dbus changes`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

from opdbus.language import past_spans, tables

if TYPE_CHECKING:
    from datetime import datetime

OBJECTS: Final = "objects"
# The op-dbus command for each route.
COMMANDS: Final[Mapping[str, str]] = {
    OBJECTS: "search",
    "changes": "changes",
    "drift": "drift",
    "status": "status",
}
# Characters that decide the route; a longer question is a document that asks at its beginning.
MOST_CHARACTERS: Final = 300

_WORD: Final = re.compile(r"[\w./:@+*-]*\w")
# `today's lunch`: what is left of a possessive names nothing
_POSSESSIVE: Final = re.compile(r"(?<=\w)'s?(?!\w)")
_SHORT: Final = {
    "what's": "what is", "who's": "who is", "when's": "when is", "where's": "where is",
    "how's": "how is", "why's": "why is", "it's": "it is", "that's": "that is",
    "there's": "there is", "everything's": "everything is", "can't": "can not",
    "cannot": "can not", "won't": "will not", "aint": "is not", "isnt": "is not",
    "you're": "you are", "they're": "they are", "who'd": "who had", "i'm": "i am",
}  # fmt: skip
_POLITE: Final = re.compile(
    r"^(?:(?:hi|hello|hey|ok|okay|please|so|and|well|now|op-dbus) )*"
    r"(?:(?:(?:can|could|would|will) you (?:please |kindly )?|please )?"
    r"(?:tell|show|list|find|give|say|explain|let)(?: me| us)?(?: know)? (?:please )?"
    r"|do you (?:happen to )?(?:know|remember|see) |any idea |i (?:want|would like|need) to know "
    r"|i wonder )"
    r"(?=(?:what|who|whom|when|where|which|why|how|if|whether|is|are)\b)(?:(?:if|whether) )?"
)
_WHETHER: Final = re.compile(r"^(?:if|whether) ")

# Words that routes.tsv has in <brackets>. Verbs of actions and events:
_EVENTS: Final = (
    "installed upgraded updated added deleted created restarted rebooted started relaunched"
    " downgraded purged uninstalled deinstalled reloaded replaced renamed granted revoked dropped"
    " removed reinstalled killed launched mounted unmounted opened closed terminated reconfigured"
    " booted reset rotated promoted demoted logged plugged unplugged unloaded renewed scheduled"
    " given taken crashed unmasked unlocked interrupted switched turned moved written made freed"
).replace(" ", "|")
# Participles that may also be a state: `were disabled` is an event, `are disabled` a state.
_STATES: Final = (
    "stopped|disabled|enabled|masked|unmasked|locked|unlocked|modified|changed|held|edited|altered"
    "|touched|tampered"
)
# Ends of drift.
_HEALED: Final = re.compile(
    r"\bhealed\b|\b(?:no longer|stopped|ceased to) drift\w*|\bdrift\w* any ?more\b"
    r"|\bas declared again\b"
)
_WORDS: Final[Mapping[str, str]] = {
    "event": _EVENTS,
    "state": _STATES,
    "done": f"{_EVENTS}|{_STATES}",
    # events without an actor
    "gone": "happened|appeared|disappeared|vanished|restarted|rebooted|occurred|gone wrong"
    "|went (?:wrong|down|away|offline)|came (?:up|back|online)|been (?:going on|up)",
    "causes": "caused|led to|triggered|preceded|broke|killed|brought .* down|took .* down|made .*"
    " (?:fail|crash|stop|restart|break)|was responsible for|is to blame for",
    "healed": _HEALED.pattern,
    "past": f"{_EVENTS}|{_STATES}|did|made|broke|took|ran|put|gave|set|turned|switched|shut|wrote"
    "|happened|failed|crashed|caused|went|came|got|messed|signed|brought|became|lost|began"
    "|(?:was|were) (?:logged|running)",
}


class Route(NamedTuple):
    """The route of a question, and the options of its command."""

    name: str
    options: Mapping[str, str] = {}

    def arguments(self, question: str) -> list[str]:
        """Return the arguments of `op-dbus`, the command first."""
        given = [part for key, value in self.options.items() for part in (f"--{key}", value)]
        return [COMMANDS[self.name], *given, *(["--", question] if self.name == OBJECTS else [])]

    def command(self, question: str) -> str:
        """Return the command line, quoted for a shell."""
        words = [word for word in self.arguments(question) if word != "--"]
        return shlex.join(["op-dbus", *words])


@cache
def rows() -> Sequence[tuple[str, re.Pattern[str], str]]:
    """Read the table: route, pattern, example."""
    words = {**_WORDS, "us": "op-?dbus", "time": past_spans.pattern()}

    def pattern(text: str) -> re.Pattern[str]:
        return re.compile(re.sub(r"<(\w+)>", lambda m: f"(?:{words[m[1]]})", text))

    return [(route, pattern(text), example) for route, text, example in tables.rows("routes")]


def plain(question: str) -> str:
    """Return a question in lower case, without punctuation, politeness and contractions."""
    text = question[:MOST_CHARACTERS].lower().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    words = [_SHORT.get(word, re.sub(r"n't$", " not", word)) for word in text.split()]
    found = " ".join(_WORD.findall(_POSSESSIVE.sub("", " ".join(words))))
    return _WHETHER.sub("", _POLITE.sub("", found))


def name_of(question: str) -> str:
    """Return the name of a question's route."""
    text = plain(question)
    return next((route for route, form, _ in rows() if form.search(text)), OBJECTS)


def find_route(question: str, now: datetime) -> Route:
    """Return the route of a question; `now` is local time without a zone.

    That to changes has an event in `before` or a subject in `about`, and times.
    """
    name = name_of(question)
    if name != "changes":
        return Route(name, {"about": question} if name == "drift" else {})
    times, rest = past_spans.find_span(plain(question), now)
    if _HEALED.search(rest):
        times = {"what": "healed", **times}
        rest = " ".join(_HEALED.sub("", rest).split())
    match = _EVENT.search(rest)
    event = next(filter(None, match.groups())) if match else ""
    if len(event.split()) > 1:
        span = {"until" if key == "before" else key: value for key, value in times.items()}
        return Route(name, {"before": event, **span})
    about = {} if _NAMELESS.issuperset(rest.split()) else {"about": rest}
    return Route(name, about | times)


# Drift: the object that a question is about.

_AS_DECLARED: Final = re.compile(
    r"^(?:is|does|has) (?:(?:not|the|my|our|this|that) )*(?!(?:all|every|each|any) )(?P<name>.+?)"
    r" (?:(?:not|no longer|really|still|now|quite|exactly|just|actually|running|set up|configured"
    r"|installed) )*"
    r"(?:as|like|the way|how|what|where|other than|unlike|compliant|match\w*|drift\w*|conform\w*"
    r"|differ\w*|deviat\w*|correspond\w*|in the state|in line)\b"
)


def subject_of(question: str) -> list[str]:
    """Return candidates for the name of the object that may differ from its declaration.

    The longest first; empty if the question is about all objects or has another form.
    """
    match = _AS_DECLARED.search(plain(question))
    words = match["name"].split() if match else []
    if len(words) > 1:
        words = [" ".join(words), *reversed(words)]
    return [word for word in words if word not in _NAMELESS]


# Words of which each turns the meaning of yes.
_DIFFERENCE: Final = re.compile(
    r"\b(?:drift\w*|differ\w*|deviat\w*|other than|otherwise|unlike|not|no longer)\b"
)


def asks_for_difference(question: str) -> bool:
    """Return whether yes means that an object is other than declared.

    `isn't curl as declared` asks whether it is.
    """
    text = re.sub(r"^(\w+) not ", r"\1 ", plain(question))
    return len(_DIFFERENCE.findall(text)) % 2 == 1


# Changes: times, and the rest of a question without them.

_EVENT: Final = re.compile(
    r"^how come (?P<come>.+)$"
    r"|^(?:why|for what reason|how) "
    r"(?:did|does|do|has|have|is|are|was|were|had|can|could|will|would) (?P<why>.+)$"
    r"|^what (?:(?:has |had )?happened|changed|was (?:done|changed)|came|went on)"
    r" (?:right |just |shortly )?before (?P<before>.+)$"
    r"|^(?:what|who) (?:caused|led to|triggered|preceded|(?:is|was) responsible for"
    r"|is to blame for) (?P<effect>.+)$"
)
# Words that name no object: if no others are left, all changes are listed.
_NAMELESS: Final = frozenset(
    "what which who has have had did was were is are been there any anything something everything"
    " all the a an that on in at of to me us show list give tell happened happen happening changed"
    " change changes events event new news went going wrong ever here this host machine system"
    " server computer box it and or so far around about during within from just".split()
)
