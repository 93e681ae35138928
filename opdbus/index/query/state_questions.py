"""Questions for all objects in a bad state: `what failed`, `which disks are full`. Pure."""

import re
from typing import Final, NamedTuple

from opdbus.language import routes

FAILED, FULL, WRONG, RUNNING = "failed", "full", "wrong", "running"
# Percent from which on a file system is full, and nearly full.
FULL_PERCENT: Final = 90
NEARLY_FULL_PERCENT: Final = 80

_UNITS: Final = r"(?:systemd )?(?P<noun>units?|services?|timers?|sockets?|mounts?|daemons?)"
_FAILED: Final = r"(?:failed|failing|in (?:a |the )?failed state)"
_RUN: Final = r"(?:(?P<verb>runs?)|running|active|up|started|stopped|inactive|down)"
_DISKS: Final = r"(?:file ?systems?|(?:hard )?dis[kc]s?|drives?|partitions?|volumes?|mount points?)"
_FULL: Final = (
    r"(?:(?P<nearly>nearly|almost|close to(?: being)?|nearing|getting|running|about to be)"
    r"|(?:completely|too|very|really|quite))?(?:(?<=\w) )?full"
)
_HERE: Final = (
    r"(?: (?:here|now|right now|currently|today|at the moment"
    r"|(?:with|on|of|in) (?:this|the|my|our) (?:host|machine|server|system|computer|box)))*"
)
_ANY: Final = r"(?P<whether>(?:is|are|has|have) (?:there )?(?:any|some|a|one|(?:any|one) of the) )"
_ALL: Final = (
    r"(?:(?P<whether>(?:are|is) there )|(?:list|show|give)(?: me| us)? )?(?:all |any |the |a )*"
)
_WRONG: Final = r"(?:wrong|amiss|broken|not (?:ok|okay|right|well|in order|healthy))"
_WELL: Final = r"(?:ok|okay|fine|all right|alright|well|in order|healthy|good)"


class StateQuestion(NamedTuple):
    """The state that is asked for, the noun of a unit's type, and the least percentage.

    `is_whether`: the answer begins with yes or no; if it asks whether all `is_well`, with yes where
    nothing is in that state.
    """

    state: str
    noun: str = ""
    percent: int = 0
    is_whether: bool = False
    is_well: bool = False


class Form(NamedTuple):
    """A pattern of questions, as `routes.plain` writes them, and an example (tested)."""

    state: str
    pattern: re.Pattern[str]
    example: str


FORMS: Final = tuple(
    Form(state, re.compile(f"^(?:{pattern}){_HERE}$"), example)
    for state, pattern, example in (
        (
            FAILED,
            rf"(?:what|which)(?: {_UNITS})?(?: else)?(?: is| are| has| have)?{_HERE} {_FAILED}",
            "what failed",
        ),
        (FAILED, rf"{_ANY}{_UNITS} {_FAILED}", "are any services failed"),
        (
            FAILED,
            rf"(?P<whether>(?:is|are|has|have) (?:anything|something)) {_FAILED}",
            "is anything failed",
        ),
        (FAILED, rf"{_ALL}failed {_UNITS}", "are there any failed units"),
        (
            RUNNING,
            rf"(?:what|which) {_UNITS}(?: is| are| do| does)?{_HERE}(?P<no> not)? {_RUN}",
            "which services run",
        ),
        (
            FULL,
            rf"(?:what|which) (?:of the )?{_DISKS} (?:is|are|gets?|runs?){_HERE} {_FULL}",
            "which disks are full",
        ),
        (FULL, rf"{_ANY}{_DISKS} {_FULL}", "is any disk full"),
        (
            FULL,
            rf"{_ALL}{_FULL} {_DISKS}",
            "full file systems",
        ),
        (WRONG, rf"what(?: all| else)?(?: is)?{_HERE} {_WRONG}", "what is wrong"),
        (
            WRONG,
            rf"(?P<whether>is (?:there )?(?:anything|something))(?: else)? {_WRONG}",
            "is anything wrong",
        ),
        (
            WRONG,
            rf"{_ALL}(?:(?:what|which) )?(?:problems?|faults?)(?: are there)?",
            "are there any problems",
        ),
        (
            WRONG,
            rf"(?P<well>is (?:everything|all|(?:this|the) (?:host|server|system|machine))) {_WELL}",
            "is everything ok",
        ),
    )
)


def read_question(question: str) -> StateQuestion | None:
    """Read a question; None if it does not ask for all objects in a bad state."""
    text = routes.plain(question)
    for state, pattern, _ in FORMS:
        if match := pattern.match(text):
            given = match.groupdict()
            percent = NEARLY_FULL_PERCENT if given.get("nearly") else FULL_PERCENT
            is_well = bool(given.get("well"))
            return StateQuestion(
                state,
                (given.get("noun") or "unit").removesuffix("s"),
                percent if state == FULL else 0,
                is_whether=is_well or bool(given.get("whether")),
                is_well=is_well,
            )
    return None


def state_in_adjectives(question: str) -> str:
    """Return a question such as `which services run` with the adjective, as the vocabulary has it.

    In other questions `run` says what something does or when.
    """
    text = routes.plain(question)
    running = next(form.pattern for form in FORMS if form.state == RUNNING)
    match = running.match(text)
    if not match or not match["verb"]:
        return question
    return f"which {match['noun']} are{match['no'] or ''} running"
