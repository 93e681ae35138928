"""Parser of unit files: lines, sections, specifiers (systemd.syntax(7), systemd.unit(5))."""

import os
import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from pwd import getpwuid
from typing import Final, NamedTuple

# Each of NUL, LF and CR ends a line, and so does a row of different ones; NUL is the last of a row.
_LINE_END: Final = re.compile("\0|\n\r?\0?|\r\n?\0?")
# LONG_LINE_MAX of systemd, in bytes: it stops reading a file at a longer line.
MAX_LINE: Final = 1 << 20
_BLANKS: Final = " \t\n\r"
_BYTE_ORDER_MARK: Final = "\ufeff"
_UNSAFE: Final = re.compile(r"[\x00-\x1f\x7f\"'\\]")
_SPECIFIER: Final = re.compile("%([%A-Za-z0-9])")
# `documentation_url_is_valid` of systemd: one of these prefixes, and ASCII after it.
_REFERENCE: Final = re.compile(r"(?:https?://|file:/|info:|man:)[\x00-\x7f]+")
_ESCAPED: Final = re.compile(rb"\\x([0-9a-fA-F]{2})")
# Specifiers with one value in the system's manager, which runs as root.
_CONSTANT: Final = {
    "%": "%", "C": "/var/cache", "E": "/etc", "L": "/var/log", "S": "/var/lib", "t": "/run",
    "D": "/usr/share", "T": "/tmp", "V": "/var/tmp",  # noqa: S108 -- systemd's values
    "u": "root", "U": "0", "g": "root", "G": "0", "h": "/root",
    # the root of its control groups, which units have before they are loaded
    "r": "", "R": "",
}  # fmt: skip
# Specifiers for values in /etc/os-release.
_OF_RELEASE: Final = {
    "A": "IMAGE_VERSION", "B": "BUILD_ID", "M": "IMAGE_ID", "o": "ID", "w": "VERSION_ID",
    "W": "VARIANT_ID",
}  # fmt: skip
# Specifiers for the content of files.
_IDS: Final = {"b": "/proc/sys/kernel/random/boot_id", "m": "/etc/machine-id"}
_ARCHITECTURES: Final = {
    "x86_64": "x86-64", "i686": "x86", "aarch64": "arm64", "ppc64le": "ppc64-le", "armv7l": "arm",
}  # fmt: skip
# Specifiers for the instance, which a template does not have.
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

    In a template, specifiers of the instance are kept. None for a text that systemd ignores: with
    an unknown specifier, or one for an unescaped name that is not escaped correctly.
    """
    try:
        return _SPECIFIER.sub(lambda found: _expand_specifier(found[1], name, path), text)
    except ValueError:
        return None


def references(text: str) -> list[str]:
    """Return the documents in a value of Documentation=, without unknown kinds of references.

    As in systemd, a quotation mark that is never closed ends the list.
    """
    words = shlex.shlex(text, posix=True)
    words.whitespace_split, words.commenters, words.escape = True, "", ""
    found: list[str] = []
    with suppress(ValueError):
        for word in words:
            found.append(word)  # noqa: PERF402 -- those before an error count
    return list(filter(_REFERENCE.fullmatch, found))


def _logical_lines(content: bytes) -> Iterator[str]:
    """Yield lines with their continuations joined, without comments and surrounding blanks."""
    parts: list[str] = []
    size = 0
    has_mark = False
    # invalid UTF-8 becomes surrogates
    for read in _LINE_END.split(content.decode(errors="surrogateescape")):
        if len(read) + size > MAX_LINE:
            return
        # also in the middle of a continued line
        if read.lstrip(_BLANKS).startswith(("#", ";")):
            continue
        line = read if has_mark else read.removeprefix(_BYTE_ORDER_MARK)
        has_mark = has_mark or line != read
        if (len(line) - len(line.rstrip("\\"))) % 2:
            parts.append(f"{line[:-1]} ")
            size += len(line)
            continue
        yield "".join([*parts, line]).strip(_BLANKS)
        parts, size = [], 0
    yield "".join(parts).strip(_BLANKS)


def _is_text(line: str) -> bool:
    """Return whether systemd takes a line as UTF-8."""
    return line.isascii() or not any(
        "\ud800" <= char <= "\udfff" or "\ufdd0" <= char <= "\ufdef" or ord(char) & 0xFFFE == 0xFFFE
        for char in line
    )


def _expand_specifier(letter: str, name: str, path: str) -> str:
    """Return the value of a specifier; raises ValueError for an unknown letter."""
    whole = name.rpartition(".")[0]
    prefix, is_instance, instance = whole.partition("@")
    if letter in _CONSTANT:
        return _CONSTANT[letter]
    if is_instance and not instance and letter in _OF_INSTANCE:
        return f"%{letter}"
    host = os.uname()
    values = {
        "n": name, "N": whole, "p": prefix, "i": instance, "j": prefix.rpartition("-")[2],
        "c": f"/{name}", "d": f"/run/credentials/{name}", "y": path, "Y": path.rpartition("/")[0],
        "H": host.nodename, "l": host.nodename.partition(".")[0], "v": host.release,
        "a": _ARCHITECTURES.get(host.machine, host.machine),
    }  # fmt: skip
    if letter in values:
        return values[letter]
    if letter in "PIJ":
        return _unescape(values[letter.lower()])
    if letter == "f":
        return "/" + _unescape(instance or prefix).strip("/")
    return _read_specifier(letter, host.nodename)


def _read_specifier(letter: str, host_name: str) -> str:
    """Return the value of a specifier that the host's files have; raise ValueError for others."""
    try:
        if letter == "q":
            return _read_assignment("/etc/machine-info", "PRETTY_HOSTNAME") or host_name
        if letter in _IDS:
            return Path(_IDS[letter]).read_text(encoding="ascii").strip().replace("-", "")
        if letter in _OF_RELEASE:
            return _read_assignment("/etc/os-release", _OF_RELEASE[letter])
        if letter == "s":
            return getpwuid(0).pw_shell
    except (OSError, KeyError, ValueError):
        return host_name if letter == "q" else f"%{letter}"
    raise ValueError(letter)


def _unescape(name: str) -> str:
    """Reverse systemd-escape(1); raise ValueError for an invalid escape."""
    plain = name.replace("-", "/").encode()
    if plain.count(b"\\") != len(_ESCAPED.findall(plain)):
        raise ValueError(name)
    return _ESCAPED.sub(lambda found: bytes.fromhex(found[1].decode()), plain).decode()


def _read_assignment(file: str, key: str) -> str:
    lines = Path(file).read_text(encoding="utf-8", errors="replace").split("\n")
    values = (line.partition("=")[2] for line in lines if line.startswith(f"{key}="))
    return " ".join(shlex.split(next(values, "")))
