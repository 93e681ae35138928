"""Command lines: the commands in them, their arguments, and whether they change anything. Pure."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Final

_ASSIGNMENT: Final = re.compile(r"\w+=.*", re.DOTALL)
# Ends of a command of a script, and redirections of its output.
_OPERATORS: Final = "();<>|&\n"
# Programs that run a script.
SHELLS: Final = frozenset("sh bash dash zsh ksh ash".split())
# Commands that run the one after them, with their options that have a value in the next word.
_WRAPPERS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("nohup", "setsid", "command", "chronic", "eatmydata", "unbuffer"), ""),
    **dict.fromkeys(("stdbuf", "run-one", "busybox", "systemd-cat"), "-i -o -e -t -p"),
    "env": "-u -C --unset --chdir",
    "nice": "-n --adjustment",
    "ionice": "-c -n --class --classdata",
    "exec": "-a",
    "time": "-f -o --format --output",
    "timeout": "-k -s --kill-after --signal",
    "flock": "-w -E --timeout --wait --conflict-exit-code",
    "chrt": "-T -P -D",
    "taskset": "",
    "cpulimit": "-l -c -e -p",
    "setpriv": "--reuid --regid --groups",
    "runuser": "-u -g -G --user --group --supp-group",
    "run0": "-u -g -D --user --group --chdir --nice --setenv --unit --property --slice",
    "sudo": "-u -g -h -p -C -D -R -T -r -t --user --group --host --prompt --chdir --chroot",
    "doas": "-u -C",
    **dict.fromkeys(("setlock", "setuidgid", "s6-setuidgid", "gosu", "su-exec"), ""),
    "chpst": "-u -U -b -e -/ -n -l -L -m -d -o -p -f -c",
}
# The same of other programs, for those of which the place of an argument matters.
_VALUED: Final[Mapping[str, str]] = {
    **dict.fromkeys(("apt", "apt-get", "aptitude"), "-o -c -t --option --default-release"),
    **dict.fromkeys(("cp", "mv", "ln"), "-S -t --suffix --target-directory"),
    "install": "-m -o -g -S -t --mode --owner --group --suffix --target-directory",
    "rsync": "-e -f --rsh --exclude --include --filter --files-from --chmod --chown",
    "mount": "-o -t -L -U -O --options --types",
    "touch": "-r -d -t --reference --date",
    "truncate": "-r -s --reference --size",
    "sed": "-e -f -l --expression --file",
    "patch": "-i -d -p -o --input --directory",
    **dict.fromkeys(("vi", "vim", "nvim", "ex"), "-u -c -S --cmd"),
    **dict.fromkeys(SHELLS, "-o -O --rcfile --init-file"),
}
# Those with an argument of their own before the command.
_WITH_OPERAND: Final = frozenset(
    "timeout flock chrt taskset setlock setuidgid s6-setuidgid gosu su-exec".split()
)
# Programs that run a script for a user, whose options may follow.
_SWITCHERS: Final = frozenset(("su", "runuser"))
_OF_SCRIPT: Final = frozenset(("--command", "--session-command"))
_DEEPEST: Final = 3
# Options with which nothing changes: of all programs, and of one.
_LOOKING: Final = re.compile(
    r"--(?:dry-run|simulate|just-print|no-act|recon|list|list-only|status|query|verify|test"
    r"|show\S*|fake|help|version|print\S*|download-?only|assumeno|defaults|check)"
)
_LOOKING_OF: Final[Mapping[str, re.Pattern[str]]] = {
    **dict.fromkeys(("apt", "apt-get", "aptitude"), re.compile(r"-[yqfmub]*[sd]\w*")),
    **dict.fromkeys(("vi", "vim", "nvim", "ex"), re.compile(r"-[RMm]")),
    # of the manager of users, or of another host
    "systemctl": re.compile(r"-[MH].*|--(?:user|global|machine|host|root|image)(?:=.*)?"),
    "sudo": re.compile(r"-n?[lv]+|--list|--validate"),
    "command": re.compile(r"-[vV]"),
    "rpm": re.compile(r"-\w*[qVK]\w*"),
    "chage": re.compile(r"-[a-zA-Z]*l"),
    "passwd": re.compile(r"-a?Sa?"),
    "useradd": re.compile(r"-D"),
    "visudo": re.compile(r"-[a-z]*[cf]|--file.*"),
    "rsync": re.compile(r"-\w*n\w*"),
    "mount": re.compile(r"-[vrwn]*[fl]"),
    "modprobe": re.compile(r"-[a-z]*[nDcR]\w*"),
    "nano": re.compile(r"-v|--view"),
}
# The arguments, or an option, with which these programs change anything.
_SETTING: Final = re.compile(
    r"(?:set-[\w-]+|hostname|icon-name|chassis|deployment|location)(?: .*)", re.DOTALL
)
_OF_APT: Final = re.compile(
    r"(?:install|reinstall|remove|purge|upgrade|full-upgrade|dist-upgrade|safe-upgrade|autoremove"
    r"|autopurge|build-dep|satisfy|dselect-upgrade"
    r"|hold|unhold|markauto|unmarkauto|auto|manual)\b.*",
    re.DOTALL,
)
_OF_DNF: Final = re.compile(
    r"(?:install|localinstall|reinstall|remove|erase|autoremove|swap|up|update|patch|upgrade"
    r"|upgrade-minimal|downgrade|distro-sync|in|rm|dup|dist-upgrade|add|del|fix"
    r"|group\w*|module|history|builddep|system-upgrade)\b.*",
    re.DOTALL,
)
_ACTING: Final[Mapping[str, re.Pattern[str]]] = {
    **dict.fromkeys(("apt", "apt-get", "aptitude", "apt-mark"), _OF_APT),
    **dict.fromkeys(("dnf", "yum", "zypper", "apk"), _OF_DNF),
    "dpkg": re.compile(r"-[irPA]|--(?:install|remove|purge|unpack|configure|set-selections)"),
    "rpm": re.compile(r"-[vh]*[iUFe][vh]*|--(?:install|upgrade|freshen|erase|reinstall)"),
    "pacman": re.compile(r"-S[^silgpc]*|-[RU][^p]*|--(?:sync|remove|upgrade)"),
    "sed": re.compile(r"-[nrEszu]*i.*|--in-place.*"),
    "hostname": re.compile(r"[^-].*|-F", re.DOTALL),
    "op-dbus": re.compile(
        r"(?:publish|withdraw|set-provider|reload|history forget|models)\b.*|--update.*",
        re.DOTALL,
    ),
    **dict.fromkeys(("hostnamectl", "timedatectl", "localectl"), _SETTING),
}


def commands(text: str) -> Iterator[Sequence[str]]:
    """Yield the commands in a command line, each as words: also those of a shell's script."""
    try:
        words = shlex.split(text)
    except ValueError:
        words = text.split()
    yield from unwrap(words)


def unwrap(words: Sequence[str], depth: int = 0) -> Iterator[Sequence[str]]:
    """Yield a command without those that run it, or the commands of the script that it runs."""
    script = ""
    while words:
        program = PurePosixPath(words[0]).name
        script = _script(words) if program in SHELLS | _SWITCHERS else ""
        if _ASSIGNMENT.fullmatch(words[0]):
            words = words[1:]
        elif program in _WRAPPERS and not script:
            options, given = _split(words[1:], _WRAPPERS[program], is_wrapper=True)
            if program in _LOOKING_OF and any(map(_LOOKING_OF[program].fullmatch, options)):
                return
            words = given[program in _WITH_OPERAND :]
            if words[:1] == ["-c"]:  # of flock
                script, words = "".join(words[1:2]), words[1:]
                break
        else:
            break
    if not words or depth > _DEEPEST:
        return
    if not script:
        yield words
    for part in parts(script):
        yield from unwrap(part, depth + 1)


def _script(words: Sequence[str]) -> str:
    """Return the script in the arguments of a shell or of a program that runs one, or empty."""
    program, words = PurePosixPath(words[0]).name, words[1:]
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        if equals and name in _OF_SCRIPT:
            return value
        if re.fullmatch(r"-\w*c", word) or word in _OF_SCRIPT:
            rest = words[at + 1 :]
            if program in _SWITCHERS or (rest and rest[0].split() != rest[:1]):
                return "".join(rest[:1])
            # older versions of sudo log a script without its quotes
            return " ".join(one if one.split() == [one] else shlex.quote(one) for one in rest)
        is_option = word.startswith(("-", "+")) or program in _SWITCHERS
        if not is_option and words[at - 1 : at] not in (["-o"], ["-O"]):
            break
    return ""


def parts(script: str) -> Iterator[Sequence[str]]:
    """Yield the words of each command in a script; a file that one writes to is one of `tee`."""
    lexer = shlex.shlex(script, posix=True, punctuation_chars=_OPERATORS)
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    try:
        tokens = list(lexer)
    except ValueError:
        return
    words: list[str] = []
    redirected = ""
    for token in tokens:
        if not token or token.strip(_OPERATORS):
            if ">" in redirected:
                yield ("tee", token)
            words += [] if redirected else [token]
            redirected = ""
        elif not {"<", ">"}.isdisjoint(token):
            redirected = token
            # as in 2>/dev/null
            words = words[:-1] if words and re.fullmatch(r"\d", words[-1]) else words
        else:
            yield words
            words, redirected = [], ""
    yield words


def _split(
    words: Sequence[str], valued: str, *, is_wrapper: bool = False
) -> tuple[Sequence[str], Sequence[str]]:
    """Return the options and the other arguments of a command.

    `valued` has the options whose value is the next word, which is in neither. The arguments of a
    command that runs another begin after its options.
    """
    with_value, options, given = valued.split(), list[str](), list[str]()
    rest = iter(words)
    for word in rest:
        if word == "--" or (is_wrapper and not word.startswith("-")):
            given += [*([] if word == "--" else [word]), *rest]
        elif not word.startswith("-") or word == "-":
            given.append(word)
        else:
            options.append(word)
            letters = "" if word.startswith("--") else word[1:]
            last = next((at for at, c in enumerate(letters, 1) if f"-{c}" in with_value), 0)
            if word in with_value or last == len(letters) > 0:
                next(rest, "")
    return options, given


def split(words: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Return the options and the other arguments of a command, without values of options."""
    return _split(words[1:], _VALUED.get(PurePosixPath(words[0]).name, ""))


def is_acting(words: Sequence[str]) -> bool:
    """Return whether a command changes anything, and does not only look."""
    program = PurePosixPath(words[0]).name
    options, given = split(words)
    looking = _LOOKING_OF.get(program, _LOOKING)
    if any(one.fullmatch(option) for one in (_LOOKING, looking) for option in options):
        return False
    acting = _ACTING.get(program)
    return not acting or any(map(acting.fullmatch, (*options, " ".join(given))))
