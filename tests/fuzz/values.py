"""Strategies for values of every D-Bus type, plain ones and those that break programs."""

from collections.abc import Callable
from functools import cache
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from fuzz.drawn import choice
from fuzz.marshal import FIXED, Variant, split

LIMITS = {"y": (0, 255), "n": (-(1 << 15), (1 << 15) - 1), "q": (0, 65535)}
LIMITS |= {"i": (-(1 << 31), (1 << 31) - 1), "u": (0, (1 << 32) - 1)}
LIMITS |= {"x": (-(1 << 63), (1 << 63) - 1), "t": (0, (1 << 64) - 1), "h": (0, 20)}
BASIC = "ybnqiuxtdsogh"
_WORDS = "mail disk network unit eth0 sshd.service password=x\\ true null %s {} ' \" ../etc".split()

# No NUL and no half of a pair: the bus ends the connection of whoever sends these.
characters = st.characters(codec="utf-8", exclude_characters="\0")
words = st.lists(st.sampled_from(_WORDS), min_size=1, max_size=4).map(" ".join)
odd = st.sampled_from(
    [
        "",
        " ",
        "\n",
        "\x7f",
        "\u202e",
        "\ufeff",
        "\ufffe",
        "\U0010ffff",
        "e\u0301" * 40,
        "\U0001f600",
    ]
)
long = st.builds(
    lambda text, size: text * (size // len(text)),
    st.sampled_from(["a", "mail ", "\u00e9", "\U0001f600", "(", "[1]", "\\", '"']),
    st.sampled_from([1000, 20_000, 70_000, 262_145, 1_048_577]),
)
texts = choice(words, words, words, st.text(characters, max_size=30), odd)
any_texts = st.integers(0, 60).flatmap(lambda n: texts if n else long)
elements = st.one_of(
    st.sampled_from(["org", "opdbus", "state", "job", "unit", "systemd", "_", "__", "_2e", "_ff"]),
    st.text("abzAZ09_", min_size=1, max_size=12),
)
object_paths = st.lists(elements, max_size=6).map(lambda parts: "/" + "/".join(parts))


@cache
def value(signature: str) -> SearchStrategy[Any]:
    """Give the strategy for one complete type."""
    if signature in _SIMPLE:
        return _SIMPLE[signature]
    if signature == "v":
        return variants()
    if signature == "ay":
        return st.binary(max_size=64)
    if signature.startswith("a{"):
        key, item = split(signature[2:-1])
        return st.dictionaries(value(key), value(item), max_size=3)
    if signature.startswith("a"):
        return st.lists(value(signature[1:]), max_size=3)
    return st.tuples(*map(value, split(signature[1:-1])))


def values(signature: str) -> SearchStrategy[tuple[Any, ...]]:
    """Give the strategy for a whole body."""
    return st.tuples(*map(value, split(signature)))


def variants() -> SearchStrategy[Variant]:
    """Give the strategy for variants: mostly simple, some deep."""
    kinds = st.one_of(st.sampled_from(BASIC), signatures)
    plain = kinds.flatmap(lambda kind: value(kind).map(lambda v: Variant(kind, v)))
    return st.integers(0, 9).flatmap(lambda n: plain if n else deep)


def _nested(made: Callable[[Variant], Variant], depth: int, inner: Variant) -> Variant:
    for _ in range(depth):
        inner = made(inner)
    return inner


_SIMPLE: dict[str, SearchStrategy[Any]] = {
    **{
        kind: st.one_of(st.integers(*LIMITS[kind]), st.sampled_from(LIMITS[kind]))
        for kind in FIXED
        if kind in LIMITS
    },
    "b": st.integers(0, 1),
    "d": st.one_of(
        st.floats(),
        st.sampled_from([float("nan"), float("inf"), -float("inf"), -0.0, 5e-324, 1e308]),
    ),
    "s": any_texts,
    "o": object_paths,
    "g": st.deferred(lambda: signatures),
}
signatures = st.recursive(
    st.sampled_from([*BASIC, "v"]),
    lambda inner: st.one_of(
        inner.map("a{}".format),
        st.tuples(st.sampled_from("ybnqiuxtdsog"), inner).map(lambda p: f"a{{{p[0]}{p[1]}}}"),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"({''.join(parts)})"),
    ),
    max_leaves=4,
)
# The deepest that D-Bus allows is 64 in all, 32 of arrays and 32 of structs.
deep = st.builds(
    _nested,
    st.sampled_from(
        [
            lambda inner: Variant("v", inner),
            lambda inner: Variant("av", [inner]),
            lambda inner: Variant("a{sv}", {"k": inner}),
            lambda inner: Variant("(v)", (inner,)),
        ]
    ),
    st.integers(1, 20),
    st.just(Variant("s", "x")),
)
