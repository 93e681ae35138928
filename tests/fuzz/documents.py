"""Strategies for state files: sound ones in the shapes of the field, spoilt ones, and noise."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from fuzz.drawn import choice
from fuzz.values import odd, texts, words


class Document(NamedTuple):
    """The bytes of a state file, and whether they must be taken, if that is known."""

    data: bytes
    is_sound: bool | None


_SECRETS = st.sampled_from(
    ["hunter2", "https://u:p@h/", "--password=x", "Bearer abcdefghijklmnop", "-----BEGIN KEY-----"]
)
_NUMBERS = st.one_of(
    st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.just(10**300), st.just(-0.0)
)
_SCALARS = st.one_of(st.none(), st.booleans(), _NUMBERS, texts, _SECRETS)
_KEYS = st.one_of(
    st.sampled_from(
        "name id unit path address password api_key items units interfaces properties".split()
    ),
    texts,
)
_PROPERTIES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_KEYS, inner, max_size=4),
    max_leaves=12,
)


def _described(**known: SearchStrategy[Any]) -> SearchStrategy[dict[str, Any]]:
    more = st.dictionaries(_KEYS, _PROPERTIES, max_size=3)
    return st.builds(lambda a, b: a | b, st.fixed_dictionaries({}, optional=known), more)


_ADDRESS = st.fixed_dictionaries({"ip": texts, "prefix": _NUMBERS})
_INTERFACE = _described(
    name=texts,
    type=words,
    ports=st.lists(texts, max_size=3),
    ipv4=_described(enabled=st.booleans(), address=st.lists(_ADDRESS, max_size=2)),
    properties=_PROPERTIES,
)
_UNIT = _described(active_state=words, enabled=st.booleans(), description=texts)
_ITEM = _described(id=texts, mode=words, servers=st.lists(texts, max_size=3), desired=_PROPERTIES)
_SHAPES: dict[str, SearchStrategy[Any]] = {
    "net": _described(interfaces=st.lists(_INTERFACE, max_size=3)),
    "systemd": _described(units=st.dictionaries(texts, _UNIT, max_size=3)),
    "login1": _described(sessions=st.lists(_ITEM, max_size=3)),
    "lxc": _described(containers=st.lists(_ITEM, max_size=3)),
    "dnsresolver": _described(version=_NUMBERS, items=st.lists(_ITEM, max_size=3)),
    "packagekit": _described(packages=st.dictionaries(texts, _ITEM, max_size=3)),
    "openflow": _described(bridges=st.lists(_described(name=texts), max_size=2)),
}
_UNKNOWN = st.dictionaries(texts.filter(bool), _described(object_ids=st.lists(_ITEM)), max_size=1)
_PLUGINS = st.builds(lambda a, b: b | a, st.fixed_dictionaries({}, optional=_SHAPES), _UNKNOWN)


def _written(plugins: Any, indent: int | None, *, ascii_only: bool) -> str:
    whole = {"version": 1, "plugins": plugins}
    return json.dumps(whole, indent=indent, ensure_ascii=ascii_only)


sound = st.builds(
    lambda plugins, indent, ascii_only, mark: Document(
        (mark + _written(plugins, indent, ascii_only=ascii_only)).encode(), is_sound=True
    ),
    _PLUGINS,
    st.sampled_from([None, 1, 4]),
    st.booleans(),
    st.sampled_from(["", "", "", "\ufeff"]),
)

_JUNK = st.sampled_from(
    [
        *("NaN", "-Infinity", "1e999", "9" * 5000, "0x1", "01", "'a'", "//", "tru", ",", ":", "}"),
        *("[", "\\", '"', '"\\ud800"', '"\\u0000"', "\0", "\x1b", "[" * 70, '{"a":' * 70),
        *("[" * 100_000, '"a": 1, "a": 2,', '"version": 1,', "\u2028", "\u00e9", " " * 10_000),
    ]
)
_BYTES = st.sampled_from([b"\xff", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\x00"])
# Each takes a file, a place in it, and what to put there.
_WAYS: list[Callable[[bytes, int, bytes], bytes]] = [
    lambda data, at, _: data[:at],
    lambda data, at, _: data[:at] + data[at + 1 :],
    lambda data, at, junk: data[:at] + junk + data[at:],
    lambda data, at, junk: data[:at] + junk + data[at + 1 :],
    lambda data, at, _: data + data[at:],
    lambda data, at, _: data[at:] + data[:at],
]
spoilt = st.builds(
    lambda document, way, at, junk: Document(
        way(document.data, at % len(document.data), junk), is_sound=None
    ),
    sound,
    st.sampled_from(_WAYS),
    st.integers(0, 1 << 16),
    st.one_of(_JUNK.map(str.encode), _BYTES),
)


def _topped(version: Any, plugins: Any, more: dict[str, Any]) -> Document:
    return Document(json.dumps({"version": version, "plugins": plugins} | more).encode(), None)


strange = st.one_of(
    _PROPERTIES.map(lambda value: Document(json.dumps(value).encode(), None)),
    st.builds(_topped, _SCALARS, _PROPERTIES, st.dictionaries(_KEYS, _PROPERTIES, max_size=2)),
    sound.map(lambda document: Document(document.data.decode().encode("utf-16"), is_sound=False)),
    st.binary(max_size=200).map(lambda data: Document(data, None)),
    st.one_of(odd, _JUNK).map(lambda text: Document(text.encode(), None)),
)
documents = choice(sound, sound, spoilt, spoilt, strange)
