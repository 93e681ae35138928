"""Renderings of objects: the text that is embedded, and terms for lexical search.

The contents of the text were chosen by measurement on the check set of state.example.json.
"""

import re
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from opdbus.language.synonyms import gloss
from opdbus.state.fields import dotted_values, split
from opdbus.state.object import PUBLISHED, SETTINGS, Json, StateObject, digest, is_hash_name
from opdbus.state.publish import DESCRIBED_BY, MAX_DESCRIBED_BY
from opdbus.state.secret_text import REDACTED

# Part of every vector's key: raising it computes all vectors again. A text that changes has another
# key anyway.
VERSION: Final = 3
# Version of stored renderings: raise it when `render` or `vocabulary` return something else for the
# same objects. All objects are then rendered again.
WORDS: Final = 5

MAX_PAIRS: Final = 3
MAX_SETTINGS: Final = 8
MAX_VALUE: Final = 48
MAX_LINE: Final = 240
MAX_LIST: Final = 4
# Longer names are not cached.
_MAX_KEPT: Final = 100

# `publish.DESCRIBED_BY` as a key.
_DESCRIBED_BY_KEY: Final = "describedby"
# Keys with a description in words; the first of them is part of the line.
DESCRIBING: Final = (
    "description summary comment purpose title label role gecos fullname realname".split()
)
# Keys with descriptions from the host's documentation.
DOCUMENTS: Final = (("manual",), ("packagesummary",))
_SAYING: Final = frozenset((*DESCRIBING, *(key for keys in DOCUMENTS for key in keys)))
# Keys most characteristic of an object without a description, best first.
TELLING: Final = {
    key: rank
    for rank, key in enumerate(
        "type app class role image driver fstype mode action command exec execstart schedule"
        " oncalendar calendar on source target mountpoint where what url host service unit user"
        " groups members remote remotehost listenstream listens watches protocol address port"
        " ports dport interface gateway destination path home model vendor product provider".split()
    )
}
# Those of them whose values are kinds, which the glossary may explain.
SORTS: Final = frozenset("type app class role image driver fstype mode action service".split())
PORTS: Final = frozenset({"port", "ports", "dport"})
# Keys of memberships, which no description has.
_BELONGING: Final = frozenset(("groups",))
# Keys of an object's place, whose purpose is also the object's.
_ON: Final = frozenset(("interface",))
# Keys whose values describe other objects: `gitlab` in a home page's address is no GitLab here.
_OF_OTHERS: Final = frozenset(("homepage",))
# Words in keys of volatile values, which do not characterize an object.
VOLATILE: Final = frozenset(
    "pid mainpid ppid inode timestamp uptime bytes packets counter counters usage current usec"
    " nsec monotonic nrestarts invocation handshake serial uuid guid mac machine checksum sha256"
    " hash fingerprint generation epoch age since last written".split()
)
# Nouns for the types of systemd units.
UNIT_NOUNS: Final = {
    **{name: name for name in "service target mount automount swap slice scope".split()},
    "socket": "listening socket", "timer": "timer, schedule",
    "path": "watched path",
}  # fmt: skip

# Nouns for kinds, whether observed or declared.
NOUNS: Final = {
    ("net", "interface"): "network interface",
    ("net", "address"): "network address",
    ("net", "route"): "network route",
    ("net", "listener"): "listening port",
    ("login1", "session"): "login session",
    ("login1", "user"): "logged in user",
    ("login1", "seat"): "seat, screen and keyboard",
    ("login1", "inhibitor"): "inhibitor, delays shutdown or sleep",
    ("packages", "package"): "software package",
    ("users", "account"): "user account",
    ("users", "group"): "user group",
    ("mounts", "mount"): "mounted file system",
    ("files", "file"): "configuration file",
    ("system", "fact"): "system",
    ("machined", "machine"): "container or virtual machine",
    ("cron", "job"): "cron job",
    ("devices", "pci"): "PCI device",
    ("devices", "usb"): "USB device",
    ("devices", "block"): "block device",
    ("kernel", "module"): "kernel module",
    ("kernel", "parameter"): "kernel boot parameter",
    ("kernel", "sysctl"): "kernel setting, sysctl",
}


class _Name(NamedTuple):
    """A dotted name in words, its last key in words, and that key as one word: `fullname`."""

    words: str
    last: str
    key: str


# The name, its last key as one word, and the value.
_Pair: TypeAlias = tuple[_Name, str, str]

_CONTROL = re.compile(r"[\x00-\x1f\x7f\u2028\u2029]+")
_UNIT = re.compile(rf"(.+)\.({'|'.join(UNIT_NOUNS)})")


class Rendering(NamedTuple):
    """`text` is embedded and searched, and its first line shown; `words` is only searched."""

    text: str
    words: str


def render(item: StateObject) -> Rendering:
    """Render an object; equal objects have equal renderings.

    The glossary describes only objects without a description. It is searched for all, since people
    rarely ask in the words of a description.
    """
    pairs = [_pair(name, value) for name, value in dotted_values(item.properties)]
    chosen = _chosen(item)
    described = _description(pairs if chosen is None else chosen)
    telling = _telling(item, pairs, chosen)
    meanings = _meanings(item, telling, pairs)
    # a question for the purpose of a service rarely means its account or group
    known = [] if item.plugin == "users" else meanings
    what = described or next(filter(None, known), "")
    line = f"{head(item)}: {what}" if what else head(item)
    is_shown = chosen is not None or not described
    if shown := [(key, value) for key, value in telling if is_shown or key in _BELONGING]:
        line += "; " + ", ".join(f"{key} {value}" for key, value in shown)
    other = [meaning for meaning in known[:1] if meaning and meaning not in line]
    return Rendering(
        "\n".join([_clean(line)[:MAX_LINE], *other]), _searched_words(item, pairs, meanings)
    )


def first_line(text: str) -> str:
    """Return the first line of a text; a line that was cut ends with a whole word and `...`."""
    line = text.partition("\n")[0]
    return line if len(line) < MAX_LINE else f"{line.rpartition(' ')[0] or line}..."


def meanings(item: StateObject) -> list[str]:
    """Return the distinct glosses of an object's name and values."""
    pairs = [_pair(name, value) for name, value in dotted_values(item.properties)]
    telling = _telling(item, pairs, _chosen(item))
    return list(filter(None, dict.fromkeys(_meanings(item, telling, pairs))))


def digest_of(text: str) -> bytes:
    """Return the digest of a text, the key of its vector."""
    return digest(f"{VERSION}\n{text}".encode())


def _meanings(item: StateObject, telling: list[tuple[str, str]], pairs: list[_Pair]) -> list[str]:
    of_values = [_meaning(key, value) for key, value in telling]
    of_places = [gloss(value) for _, key, value in pairs if key in _ON]
    return [gloss(item.name), *of_values, *of_places]


@lru_cache(maxsize=4096)
def _meaning(key: str, value: str) -> str:
    """Return the gloss of a value whose key names a kind or a port, otherwise ""."""
    if key in PORTS:
        return gloss(f"port:{value}")
    return gloss(value) if key in SORTS else ""


def head(item: StateObject) -> str:
    """Return the kind and name of an object: `network interface wg0`, `systemd service sshd`."""
    unit = _UNIT.fullmatch(item.name) if item.kind == "unit" else None
    if unit:
        return f"{item.plugin} {UNIT_NOUNS[unit[2]]} {unit[1]}"
    name = [] if is_hash_name(item.name) else [item.name]
    noun = NOUNS.get((item.plugin, item.kind))
    words = [noun] if noun else dict.fromkeys([*split(item.plugin), *split(item.kind)])
    return " ".join([*words, *name])


def _shortened(value: Json) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return ""
    if isinstance(value, list):
        return ", ".join(_shortened(item) for item in value[:MAX_LIST])
    return str(value)


def _pair(name: str, value: Json) -> _Pair:
    """Return a pair with the same key for `full_name`, `fullName` and `fullname`."""
    found = _split_name(name) if len(name) <= _MAX_KEPT else _split_name.__wrapped__(name)
    return found, found.key, value if type(value) is str else _shortened(value)


@lru_cache(maxsize=4096)
def _split_name(name: str) -> _Name:
    """Split a name into words; cached, since objects of a kind share their names."""
    last = split(name.rpartition(".")[2])
    return _Name(" ".join(split(name)), " ".join(last), "".join(last))


def _description(pairs: list[_Pair]) -> str:
    """Return the description of an object, and those of documentation that add to it."""
    # the first value of each key counts
    found = {key: value for _, key, value in reversed(pairs) if key in _SAYING}
    said: list[str] = []
    before = ""
    for keys in (DESCRIBING, *DOCUMENTS) if found else ():
        one = next(filter(None, map(found.get, keys)), "")
        if one and one.lower() not in before:
            said.append(one)
            before += one.lower()
    return ", ".join(said)


def _chosen(item: StateObject) -> list[_Pair] | None:
    """Return the pairs by which its publisher describes an object; None if it names none."""
    keys = item.properties.get(DESCRIBED_BY)
    if not isinstance(keys, list) or not item.identity.source.startswith(PUBLISHED):
        return None
    values = dotted_values({**item.properties, DESCRIBED_BY: None})
    return [
        _pair(name, value)
        for key in dict.fromkeys(map(str, keys[:MAX_DESCRIBED_BY]))
        for name, value in values
        if f"{name}.".startswith(f"{key}.")
    ]


def _telling(
    item: StateObject, pairs: list[_Pair], chosen: list[_Pair] | None
) -> list[tuple[str, str]]:
    """Return the most characteristic (key, value) pairs of an object, best first.

    Settings have a name without meaning but telling keys, so more pairs are chosen.
    """
    if chosen is not None:
        told = [(name.words, value[:MAX_LINE]) for name, key, value in chosen if key not in _SAYING]
        return [(words, value) for words, value in told if value and REDACTED not in value]
    settings = item.kind == SETTINGS
    ranked = []
    for name, key, value in pairs:
        rank = TELLING.get(key, len(TELLING) if settings else None)
        if rank is None or not value or REDACTED in value:
            continue
        words = name.words if settings else name.last
        if VOLATILE.isdisjoint(words.split()):
            ranked.append((rank, words, value[:MAX_VALUE]))
    ranked.sort()
    return [(key, value) for _, key, value in ranked[: MAX_SETTINGS if settings else MAX_PAIRS]]


def _searched_words(item: StateObject, pairs: list[_Pair], meanings: list[str]) -> str:
    """Return the whole object as text for lexical search, with identifiers also split into words.

    The gloss of its name is there twice, so that it counts as much as the words of the text. Fields
    are sorted, since a publisher may send them in any order.
    """
    parts = [f"{item.plugin} {item.kind} {' '.join(split(item.name))}"]
    parts += sorted(
        f"{name.words} {value}"
        for name, key, value in pairs
        if value != REDACTED and key not in _OF_OTHERS and key != _DESCRIBED_BY_KEY
    )
    return _clean(" ".join([*parts, *meanings[:1], *meanings]))


def _clean(text: str) -> str:
    if not text.isprintable():
        text = _CONTROL.sub(" ", text)
    elif "  " not in text and text.strip() == text:
        # no white space other than a space is printable
        return text
    return " ".join(text.split())
