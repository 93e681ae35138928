"""Choice of the log line that says why a unit failed; pure."""

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple


class Line(NamedTuple):
    """A line that a unit logged, or systemd about it, and its priority of syslog(3)."""

    text: str
    priority: int
    is_of_systemd: bool = False


# Results of units whose processes did not exit by themselves, in words.
_KILLED: Final[Mapping[str, str]] = {
    "signal": "killed by {}",
    "core-dump": "killed by {}, with a core dump",
    "timeout": "a time limit was exceeded",
    "watchdog": "the watchdog's time limit was exceeded",
    "oom-kill": "killed since memory was short",
}
_BY_SIGNAL: Final = frozenset(("signal", "core-dump"))
# What systemd says of the process whose end made a unit fail.
_SIGNAL: Final = re.compile(
    r" process exited, code=(?:killed|dumped), status=\d+/([A-Z0-9+-]{1,12})$"
)
_OF_EVERY_FAILURE: Final = re.compile(r"^Failed to start |: Failed with result |process exited, ")
_ERROR_PRIORITY: Final = 3
# Ranks of a line: of an error, of a warning, and without either; those between are of _WORDS.
_ERROR, _WARNING, _PLAIN = 0, 3, 4
# Control sequences of terminals, and the same as syslog daemons write them.
_CONTROL: Final = re.compile(
    r"\x9b[0-?]{0,40}[ -/]{0,4}[@-~]|(?:\x1b|\\x1b|#033)"
    r"(?:[\[(#][0-?]{0,40}[ -/]{0,4}[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)?|[=>@-Z])?"
)
# Words of errors, the system's words for what went wrong, and words that a harmless line may have.
_WORDS: Final = (
    re.compile(
        r"\b(?:critical|fatal|panic(?:ked)?|seg(?:mentation )?fault|err(?:or)?s?|exception"
        r"|terminate called|stack smashing|\w*fehler|erreur|errore|erro|ошибка|błąd|chyba)\b"
        r"|\w(?:Error|Exception)\b|エラー|错误",
        re.IGNORECASE,
    ),
    re.compile(
        r"\b(?:already in use|permission denied|no such file|connection refused|no space left"
        r"|out of memory|cannot allocate memory|read-only file system|too many open files"
        r"|not permitted|invalid argument|unreachable|timed out"
        r"|EADDRINUSE|EACCES|ENOENT|ENOSPC|ECONNREFUSED)\b",
        re.IGNORECASE,
    ),
    re.compile(
        r"\b(?:fail\w*|can(?:no|')t|cannot|could not|unable|denied|invalid|refused|missing|bad"
        r"|not found|no such|unknown|abort\w*|unexpected|illegal|unsupported|corrupt\w*"
        r"|exceeded|unrecogni[sz]ed|not (?:configured|exist)|deadlock detected"
        r"|(?:has|certificate|licen[cs]e) expired|(?<!\d )out of|another instance"
        r"|undefined|attempt to (?:call|index|perform)|exited with [a-z ]{0,20}[1-9]\d*)\b",
        re.IGNORECASE,
    ),
)
_NOUN: Final = (
    r"(?:errors?|err|failures?|exceptions?|faults?|problems?|issues?|warnings?)(?:\(s\))?"
)
_FAULT: Final = (
    rf"(?:{_NOUN}|fail(?:ed|s)?|crit(?:ical)?|fatal|panics?|crash(?:es|ed)?|alerts?|missing"
    r"|invalid|bad|unknown|unexpected|denied|refused|abort(?:ed|s)?)"
)
# Parts of programs that have to do with errors.
_PART: Final = (
    r"(?:handlers?|hooks?|reporters?|logs?|loggers?|pages?|track(?:er|ing)|channels?|recovery"
    r"|budgets?|rates?|correction|thresholds?|toleran\w+|levels?|modes?|middlewares?|listeners?"
    r"|callbacks?|documents?|templates?|notifi\w+|e?-?mails?|monitor(?:s|ing)?|detect(?:ion|ors?)"
    r"|collectors?|output|counters?|counts?|boundar\w+|subscribers?|polic\w+|metrics?"
    r"|stat(?:s|istics)|rules?|manager|mappers?|mapping|queues?|sections?|filters?|free"
    r"|translation|(?:handl|report|logg)ing(?=$|[.,:;]| (?:is|on|off|to|enabled|disabled|set)\b))"
)
_WORD: Final = r"(?:[\w-]{1,40} )"
_END: Final = r"(?= ?(?:$|[,;|)}\]/]|\.(?: |$)|\w{1,40}\W?[:=]|and\b))"
_NOTHING: Final = r"(?:0+(?:\.0+)?%?|none|nil|null|no|false|off|ok|success|undefined|disabled)"
_LOGS: Final = r"(?:writ|send|log|print|redirect|forward|stor|report|output)"
_LOGGED: Final = r"(?:written|sent|logged|printed|redirected|forwarded|reported)"
_SOLVED: Final = r"(?:ignored|suppressed|recovered|cleared|resolved|corrected|fixed|handled)"
_SUFFIXES: Final = r"(?:log|err|txt|conf|cnf|ini|html?|php|py|rb|js|json|ya?ml|so|go|c|h|rs|java)"
# Phrases with words of errors that are none.
_HARMLESS: Final = re.compile(
    # a negation, and a count of 0 before the word or behind it
    r"\b(?:no|zero|none|without|never|non|free of|not an?|not (?:contain|have|find|found|see)"
    rf"\w*)[ -](?!such){_WORD}??{_FAULT}\b(?:,? (?:(?:or|and|nor) {_WORD}?)?{_FAULT}\b)*"
    rf"|(?<![\w.,:-])0 (?:{_WORD}{_WORD}|{_WORD})??{_NOUN}"
    rf"|(?:^|[.,;:(|/] |\b(?:and|with|found) )0 (?:{_WORD}{_WORD}|{_WORD})??{_FAULT}\b"
    rf"|(?<![\w.,:-])0 {_FAULT} \w{{1,40}}s\b"
    rf"|\b{_FAULT}(?: \w{{1,40}})?\"? ?(?:[:=]|\.{{2,}}|is|are|was|were) ?"
    rf"(?:\"\"|''|\[\]|{{}}|[\"'(<\[]?{_NOTHING}[\"')>]?){_END}"
    # what is not heeded, is logged elsewhere, or would happen after an error
    rf"|\b(?:ignor|suppress|skipp)\w* {_WORD}?{_WORD}?(?:{_NOUN}|missing|unknown|invalid|bad)\b"
    rf"|\b(?:recover|clear|resolv|correct|fix)\w* {_WORD}?{_WORD}?{_NOUN}\b"
    rf"|\b{_LOGS}\w* {_WORD}?{_NOUN} (?:to|in|into|via|by|with)\b"
    rf"|\b{_NOUN} (?:are|will be|is) {_LOGGED}\b"
    rf"|\b{_FAULT} {_WORD}?{_SOLVED}\b"
    rf"|\b(?:on|if|in case of|upon)[ _-]?(?:{_NOUN}|fail(?:s|ed)?)\b"
    rf"|\b(?:watch|check|look|scan|search|monitor|wait)\w* (?:\S{{1,40}} )?for {_FAULT}\b"
    rf"|\bmax(?:imum)?[ _-]{_NOUN}\b"
    # an end, for a reason that other lines have
    rf"|\b(?:due to|because of|after) {_WORD}?{_WORD}?{_NOUN}(?=\W{{0,2}}$)"
    # parts of programs and options
    r"|\b(?:errors?|err|exceptions?|failures?|faults?|panics?|crash|fatal|alerts?|critical"
    rf"|warnings?)[ _-]?{_PART}\b(?: (?:for|of) \S+)?"
    r"|\b(?:handlers?|mappers?|listeners?|rules?) (?:for|of) \S+"
    r"|\b(?:errors|panic|\w+OnError)=[\w-]+"
    r"|\b[a-z_]+_errors?\b"
    r"|\berrors?_[a-z_]+\b"
    r"|\bfail-?(?:over|safe|fast|2ban|back)\w*"
    r"|\b(?:log|logging|verbosity|min(?:imum)?)[ _-]?level\W{0,4}"
    r"(?:(?:is|was|set|changed|now|to)\W{1,3}){0,3}\w+"
    # paths, names of files, and frames of a stack
    r"|(?<![\w.@%+~-])[\w.@%+~-]*[/\\][^\s\"']*"
    rf"|(?<![\w.-])[\w-]+(?:\.[\w-]+)*\.{_SUFFIXES}\b"
    r"|^ {0,40}(?:Traceback \(|File \"|at |raise |throw |except |catch |Emitted 'error'"
    r"|During handling|The above exception).*",
    re.IGNORECASE,
)
# The level that a line gives itself: as a key, in brackets, as a word or as a letter.
_LEVEL: Final = re.compile(
    r"\b(?:level(?:name)?|lvl|severity|loglevel|priority)\"? ?[=:] ?[\"'\[]?(?P<key>[a-z]+|\d\d)\b"
    r"|[\[<(] {0,2}(?:\w{1,12}[.:])?(?P<mark>[a-z]+) {0,4}[\])> ]"
    r"|(?:^|[\s|])(?P<word>[a-z]+):(?=\s|$)"
    r"|^(?P<letter>[IWEF])(?:\d{4} |, )"
    r"|:\d\d (?P<short>[A-Z]{3})\]",
    re.IGNORECASE,
)
# One of its first words, if that is in capitals.
_CAPITALS: Final = re.compile(r"[A-Z]{3,11}")
_FIRST_WORDS: Final = 7
_LEVELS: Final[Mapping[str, int]] = {
    **dict.fromkeys(
        "trace debug dbg info inf ii information notice note log ok system hint detail statement"
        " context fine finer config verbose i 10 20 30".split(),
        _PLAIN,
    ),
    **dict.fromkeys("warn warning wrn wng ww w 40".split(), _WARNING),
    **dict.fromkeys(
        "err error eror ee fatal ftl crit critical alert emerg emergency panic severe e f 50 60"
        .split(),
        _ERROR,
    ),
}  # fmt: skip


def is_by_signal(result: str) -> bool:
    """Return whether a signal ended a unit, by systemd's result."""
    return result in _BY_SIGNAL


def strip_control(text: str) -> str:
    """Return a text without control sequences, such as those of colours."""
    return _CONTROL.sub("", text)


def describe_reason(result: str, lines: Sequence[Line]) -> str:
    """Return why a unit failed: systemd's result if it was killed, else the line that says best.

    The first of the lines about an error has its cause more often than later ones; without any, the
    last line counts. What systemd says of every failure says least.
    """
    if result in _KILLED:
        of_systemd = (line.text for line in reversed(lines) if line.is_of_systemd)
        names = (found[1] for text in of_systemd if (found := _SIGNAL.search(text)))
        return _KILLED[result].format(next((f"SIG{name}" for name in names), "a signal"))
    plain = [line._replace(text=strip_control(line.text)) for line in lines]
    ranks = [*map(_rank, plain)]
    best = min(ranks, default=0)
    of_best = [line.text for line, rank in zip(plain, ranks, strict=True) if rank == best]
    return of_best[-1 if best == _PLAIN else 0] if of_best else ""


def _rank(line: Line) -> int:
    """Return the rank of a line, the lowest for one about an error.

    The level that it gives itself counts first, then its words that are in no harmless phrase.
    """
    if line.is_of_systemd:
        return _PLAIN + (2 if _OF_EVERY_FAILURE.search(line.text) else 1)
    text = _HARMLESS.sub(" ", line.text)
    level = _level(text)
    if level in {_ERROR, _PLAIN}:
        return level
    words = next((n for n, words in enumerate(_WORDS) if words.search(text)), _PLAIN)
    if level == _WARNING:
        return _WARNING if words < _PLAIN else _PLAIN
    is_error = line.priority <= _ERROR_PRIORITY and (words < _PLAIN or text == line.text)
    return _ERROR if is_error else words


def _level(text: str) -> int | None:
    """Return the rank of the first level that a line gives itself; None if it has none."""
    found = [(match.start(), match[match.lastgroup or 0]) for match in _LEVEL.finditer(text)]
    first = text.replace("|", " ").split(" ", _FIRST_WORDS)[:_FIRST_WORDS]
    found += [(text.find(word), word) for word in first if _CAPITALS.fullmatch(word)]
    levels = (_LEVELS.get(word.lower()) for _, word in sorted(found))
    return next((level for level in levels if level is not None), None)
