"""Questions for commands that were run as root: `who used sudo`, `what did bob do`. Pure."""

import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Final, NamedTuple

from opdbus.history import acts
from opdbus.history.row_filter import Row
from opdbus.language import routes
from opdbus.state.object import Json

_AS_ROOT: Final = (
    r"(?:as (?:the )?(?:root|superuser)(?: user)?|as an? admin(?:istrator)?"
    r"|(?:with|through|by|via|using) (?:the )?(?:sudo|su|doas|pkexec|root(?: rights| privileges)?))"
)
_RAN: Final = r"(?:ran|run|executed|typed|issued|entered|invoked|called)"
_ANYBODY: Final = (
    r"(?:anyone|anybody|someone|somebody|everyone|everybody|people|users?|the users|they|we|root"
    r"|admins?|the admins?)"
)
_AT_ANY_TIME: Final = re.compile(r"(?: (?:lately|recently|ever|so far|at all|here|today)){1,4}$")
_IS_ANYBODY: Final = re.compile(_ANYBODY)
_WHO: Final = (
    r"(?:who|whom|which (?:users?|persons?|people|accounts?|admin\w*))(?: else| all)*"
    r"(?: has| have| had| was| is| just| recently| lately| last| ever| been)*"
)
_ANY: Final = (
    r"(?:(?:a|any|some|the|all|which|what|other) )?"
    r"(?:commands?|command lines?|anything|something|stuff|things?|programs?|what|everything)"
)
_WAS: Final = r"(?:was|were|has been|have been|had been|got|is|are)"
# Programs that run a command as root.
_PROGRAMS: Final = frozenset("sudo su doas pkexec run0".split())
_PROGRAM: Final = r"(?P<command>sudo|su|doas|pkexec|run0)"
_ROOT: Final = r"(?:the )?(?:root|superuser)(?: user)?"
_FILLERS: Final = frozenset("the a an command commands program".split())


class CommandQuestion(NamedTuple):
    """The commands that a question asks for: those of a user, those with some words, or all.

    `is_only`: the question can mean nothing else, so that no other change answers it.
    """

    user: str = ""
    words: tuple[str, ...] = ()
    is_only: bool = True


class Form(NamedTuple):
    """A pattern of questions, as `routes.plain` writes them, and an example (tested).

    Groups of the pattern: `user`, and `command`, what was run.
    """

    pattern: re.Pattern[str]
    example: str
    is_only: bool = True


_SUCH: Final = rf"commands? (?:that |which )?(?:{_WAS} )?{_RAN}"
_THIS_USER: Final = r"(?:user )?(?P<user>[\w.-]+)"
_DONE: Final = r"(?:do|done|run|change|changed|executed?|typed?)"
FORMS: Final = tuple(
    Form(re.compile(f"^(?:{pattern})$"), example, is_only)
    for pattern, example, is_only in (
        (rf"{_WHO} (?:{_RAN}|did) {_ANY} {_AS_ROOT}", "who ran commands as root", True),
        (rf"{_WHO} {_RAN} (?:any |some )?(?:root |sudo )?commands?", "who ran commands", True),
        (rf"{_WHO} (?:used?|using) {_PROGRAM}(?: for .+)?", "who used sudo", True),
        (rf"{_WHO} (?:was|became|worked as|acted as) {_ROOT}", "who was root", False),
        (rf"{_WHO} (?:had|opened|got) a root (?:shell|session)", "who had a root shell", True),
        (rf"(?:.*\b)?{_SUCH}(?: {_AS_ROOT})?", "which commands were run as root", True),
        (rf"(?:what|which \w+) {_WAS} (?:{_RAN}|done) {_AS_ROOT}", "what was run as root", True),
        (
            rf"what (?:commands? )?did {_ANYBODY} {_DONE} {_AS_ROOT}",
            "what did anyone do as root",
            True,
        ),
        (rf"which commands? did {_ANYBODY} {_DONE}.*", "which commands did anyone run", True),
        (
            r"(?:(?:list|show|the|all|any|last|recent) )*(?:sudo|root) commands",
            "all sudo commands",
            True,
        ),
        (rf"(?:what|which)\b.*\b(?:did|has) {_THIS_USER} {_DONE}\b.*", "what did bob do", False),
        (rf"(?:.*\b)?{_SUCH} by {_THIS_USER}", "which commands were run by bob", False),
        (rf"{_WHO} {_RAN} (?P<command>.+?) {_AS_ROOT}", "who ran visudo as root", True),
        (rf"{_WHO} {_RAN} (?P<command>.+)", "who ran systemctl restart chrony", False),
    )
)


def read_question(question: str) -> CommandQuestion | None:
    """Read a question; None if it does not ask for commands."""
    text = _AT_ANY_TIME.sub("", routes.plain(question))
    for pattern, _, is_only in FORMS:
        if match := pattern.match(text):
            given = {key: value for key, value in match.groupdict().items() if value}
            words = tuple(w for w in given.get("command", "").split() if w not in _FILLERS)
            user = given.get("user", "")
            if _IS_ANYBODY.fullmatch(user):
                continue
            return CommandQuestion(user, words, is_only)
    return None


def answers(asked: CommandQuestion, row: Row) -> bool:
    """Return whether a row has a command that a question asks for, or a session as root."""
    if asked.user and row.identity.name.lower() != asked.user:
        return False
    if not asked.words:
        return any(_values(row))
    return any(_has_words(act, asked.words) for act in acts_in(row))


def acts_in(row: Row) -> list[acts.Act]:
    """Return the commands that a row of a user has, and the sessions as root that began."""
    return [a for value in _values(row) for a in acts.acts_of(row.identity.name, value, row.seq)]


def _values(row: Row) -> list[Json]:
    sides = [acts.values_of(row, field) for field in ("ran", "as_root")]
    return [side[1] for side in sides if side]


def _has_words(act: acts.Act, asked: Sequence[str]) -> bool:
    """Return whether a command line has words one after another, besides options and paths."""
    line = [act.program, *act.command.split()]
    words = [_plain_word(word) for word in line if not word.startswith("-")]
    wanted = [_plain_word(word) for word in asked if not word.startswith("-")]
    if wanted[:1] and wanted[0] in _PROGRAMS:
        words = [word for at, word in enumerate(words) if not at or word != words[at - 1]]
    size = len(wanted)
    return any(words[at : at + size] == wanted for at in range(len(words) - size + 1))


def _plain_word(word: str) -> str:
    name = PurePosixPath(word).name if word.startswith("/") else word
    return name.lower().removesuffix(".service")
