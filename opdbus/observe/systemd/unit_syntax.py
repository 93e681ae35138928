"""Parser of unit files: lines, sections, specifiers (systemd.syntax(7), systemd.unit(5))."""

import os
import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from pwd import getpwuid
from typing import Final, NamedTuple

# Each of the three ends a line, and so does a row of different ones; after NUL a new line begins.
_LINE_END: Final = re.compile("\0|\n\r?\0?|\r\n?\0?")
# LONG_LINE_MAX of systemd, in bytes: it reads a file to a longer line, and not further.
MAX_LINE: Final = 1 << 20
_BLANKS: Final = " \t\n\r"
_BYTE_ORDER_MARK: Final = "\ufeff"
_UNSAFE: Final = re.compile(r"[\x00-\x1f\x7f\"'\\]")
_SPECIFIER: Final = re.compile("%([%A-Za-z0-9])")
# `documentation_url_is_valid` of systemd: these, and something in ASCII after them
_REFERENCE: Final = re.compile(r"(?:https?://|file:/|info:|man:)[\x00-\x7f]+")
_ESCAPED: Final = re.compile(rb"\\x([0-9a-fA-F]{2})")
# Of the system's manager, which runs as root.
_CONSTANT: Final = {
    "%": "%", "C": "/var/cache", "E": "/etc", "L": "/var/log", "S": "/var/lib", "t": "/run",
    "D": "/usr/share", "T": "/tmp", "V": "/var/tmp",  # noqa: S108 -- systemd's words
    "u": "root", "U": "0", "g": "root", "G": "0", "h": "/root",
    # the root of its control groups, in which all is that is not loaded
    "r": "", "R": "",
}  # fmt: skip
_OF_RELEASE: Final = {
    "A": "IMAGE_VERSION", "B": "BUILD_ID", "M": "IMAGE_ID", "o": "ID", "w": "VERSION_ID",
    "W": "VARIANT_ID",
}  # fmt: skip
_IDS: Final = {"b": "/proc/sys/kernel/random/boot_id", "m": "/etc/machine-id"}
_ARCHITECTURES: Final = {
    "x86_64": "x86-64", "i686": "x86", "aarch64": "arm64", "ppc64le": "ppc64-le", "armv7l": "arm",
}  # fmt: skip
# They name the instance, which a template has not.
_OF_INSTANCE: Final = frozenset("iInNf")


class Assignment(NamedTuple):
    """One `Key=Value` of a section; an empty value resets a list."""

    section: str
    key: str
    value: str


def assignments(content: bytes) -> Iterator[Assignment]:
    """Yield the assignments of a file, up to the error at which systemd stops."""
    section = ""
    for line in _logical_lines(content):
        if not _is_text(line):
            return
        if line.startswith("["):
            if not line.endswith("]") or _UNSAFE.search(line):
                return
            section = line[1:-1]
            continue
        key, separator, value = line.partition("=")
        if section and separator and key.strip(_BLANKS):
            yield Assignment(section, key.strip(_BLANKS), value.strip(_BLANKS))


def expand(text: str, name: str, path: str = "") -> str | None:
    """Replace the specifiers of a text in the file `path` of a unit.

    A template's keep what only an instance has. None for a text that systemd ignores: with an
    unknown specifier, or where a name that is to be unescaped is not escaped.
    """
    try:
        return _SPECIFIER.sub(lambda found: _value(found[1], name, path), text)
    except ValueError:
        return None


def references(text: str) -> list[str]:
    """Return the documents that one value of Documentation= names, without those of no known kind.

    At a quotation mark that is never closed systemd stops.
    """
    words = shlex.shlex(text, posix=True)
    words.whitespace_split, words.commenters, words.escape = True, "", ""
    found: list[str] = []
    with suppress(ValueError):
        for word in words:
            found.append(word)  # noqa: PERF402 -- those before an error count
    return list(filter(_REFERENCE.fullmatch, found))


def _logical_lines(content: bytes) -> Iterator[str]:
    """Yield lines as they are after continuation, without comments and blanks around."""
    begun: list[str] = []
    size = 0
    has_mark = False
    # bytes that are no text become surrogates
    for read in _LINE_END.split(content.decode(errors="surrogateescape")):
        if len(read) + size > MAX_LINE:
            return
        # also in the middle of a continued line
        if read.lstrip(_BLANKS).startswith(("#", ";")):
            continue
        line = read if has_mark else read.removeprefix(_BYTE_ORDER_MARK)
        has_mark = has_mark or line != read
        if (len(line) - len(line.rstrip("\\"))) % 2:
            begun.append(f"{line[:-1]} ")
            size += len(line)
            continue
        yield "".join([*begun, line]).strip(_BLANKS)
        begun, size = [], 0
    yield "".join(begun).strip(_BLANKS)


def _is_text(line: str) -> bool:
    """Return whether systemd takes a line as UTF-8."""
    return line.isascii() or not any(
        "\ud800" <= char <= "\udfff" or "\ufdd0" <= char <= "\ufdef" or ord(char) & 0xFFFE == 0xFFFE
        for char in line
    )


def _value(letter: str, name: str, path: str) -> str:
    """Return what a specifier stands for; raises ValueError where there is none of the letter."""
    whole = name.rpartition(".")[0]
    prefix, is_instance, instance = whole.partition("@")
    if letter in _CONSTANT:
        return _CONSTANT[letter]
    if is_instance and not instance and letter in _OF_INSTANCE:
        return f"%{letter}"
    of_name = {
        "n": name, "N": whole, "p": prefix, "i": instance, "j": prefix.rpartition("-")[2],
        "c": f"/{name}", "d": f"/run/credentials/{name}", "y": path, "Y": path.rpartition("/")[0],
    }  # fmt: skip
    if letter in of_name:
        return of_name[letter]
    if letter in "PIJ":
        return _unescaped(of_name[letter.lower()])
    if letter == "f":
        return "/" + _unescaped(instance or prefix).strip("/")
    return _of_host(letter)


def _unescaped(name: str) -> str:
    """Reverse systemd-escape(1); raise ValueError for an invalid escape."""
    plain = name.replace("-", "/").encode()
    if plain.count(b"\\") != len(_ESCAPED.findall(plain)):
        raise ValueError(name)
    return _ESCAPED.sub(lambda found: bytes.fromhex(found[1].decode()), plain).decode()


def _of_host(letter: str) -> str:
    """Return what a specifier of the host stands for; raises ValueError if it is none."""
    host = os.uname()
    plain = {
        "H": host.nodename, "l": host.nodename.partition(".")[0], "v": host.release,
        "a": _ARCHITECTURES.get(host.machine, host.machine),
    }  # fmt: skip
    if letter in plain:
        return plain[letter]
    if letter == "q":
        with suppress(OSError, ValueError):
            return _assigned("/etc/machine-info", "PRETTY_HOSTNAME") or host.nodename
        return host.nodename
    try:
        if letter in _IDS:
            return Path(_IDS[letter]).read_text(encoding="ascii").strip().replace("-", "")
        if letter in _OF_RELEASE:
            return _assigned("/etc/os-release", _OF_RELEASE[letter])
        if letter == "s":
            return getpwuid(0).pw_shell
    except (OSError, KeyError, ValueError):
        return f"%{letter}"
    raise ValueError(letter)


def _assigned(file: str, key: str) -> str:
    lines = Path(file).read_text(encoding="utf-8", errors="replace").split("\n")
    values = (line.partition("=")[2] for line in lines if line.startswith(f"{key}="))
    return " ".join(shlex.split(next(values, "")))
