"""Object paths: reversible, valid for every name, one path per thing."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opdbus.bus import paths
from opdbus.errors import UnknownObject

# what a state file or a publisher can name a thing
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
_ELEMENT = re.compile(r"[A-Za-z0-9_]+")


@given(names)
def test_escape_is_reversible(name: str) -> None:
    """Give back the name that was escaped, with only what D-Bus allows in between."""
    element = paths.escape(name)
    assert _ELEMENT.fullmatch(element)
    assert paths.unescape(element) == name


@given(st.text("_0123456789abcdefABCDEFxyz", min_size=1, max_size=12))
def test_no_two_elements_mean_one_name(element: str) -> None:
    """Refuse every element that escape would not have made."""
    try:
        name = paths.unescape(element)
    except ValueError:
        return
    assert paths.escape(name) == element


@given(names, names, names)
def test_parse_gives_what_of_took(plugin: str, kind: str, name: str) -> None:
    """Give back plugin, kind and name from their path."""
    assert paths.parse(paths.of(plugin, kind, name)) == (plugin, kind, name)


@pytest.mark.parametrize(
    ("name", "element"),
    [
        ("sshd.service", "sshd_2eservice"),
        ("3proxy", "_33proxy"),
        ("a_b", "a_5fb"),
        ("", "_"),
        ("é", "_c3_a9"),
    ],
)
def test_escape_is_systemds(name: str, element: str) -> None:
    """Escape as sd_bus_path_encode(3) does."""
    assert paths.escape(name) == element


@pytest.mark.parametrize(
    "path",
    ["/", "/org/opdbus/state", "/org/opdbus/state/a/b", "/org/opdbus/state/a/b/c/d"]
    + [f"/org/opdbus/state/a/b/{end}" for end in ("", "_zz", "_4", "_41", "3x", "_ff", "__")],
)
def test_parse_refuses_what_is_no_objects_path(path: str) -> None:
    """Say UnknownObject for a path that is no PLUGIN/KIND/NAME, or spells one otherwise."""
    with pytest.raises(UnknownObject, match="is not the path of a state object"):
        paths.parse(path)
