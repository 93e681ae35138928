"""One rule turns any plugin into objects, and loses nothing on the way."""

import json
import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opdbus.state.fields import dotted_values
from opdbus.state.flatten import NAMING_KEYS, Reader, flatten, singular
from opdbus.state.object import MAX_NAME, SETTINGS


def flat(plugins: dict[str, Any]) -> dict[tuple[str, str, str], Any]:
    """Flatten to {(plugin, kind, name): properties}, where no two have one name."""
    found = list(flatten(plugins))
    assert len({raw[:3] for raw in found}) == len(found)
    return {(plugin, kind, name or ""): properties for plugin, kind, name, properties in found}


def test_list_of_dicts_gives_an_object_each() -> None:
    """Make one object of each element of a list of dicts, its kind the key's singular."""
    links = [{"name": "eth0", "type": "ethernet"}, {"name": "br0"}]
    assert flat({"net": {"interfaces": links}}) == {
        ("net", "interface", "eth0"): links[0],
        ("net", "interface", "br0"): links[1],
    }


def test_dict_of_dicts_gives_an_object_each() -> None:
    """Make one object of each key of a dict of dicts."""
    assert flat({"systemd": {"units": {"a.service": {"x": 1}, "b.timer": {}}}}) == {
        ("systemd", "unit", "a.service"): {"x": 1},
        ("systemd", "unit", "b.timer"): {},
    }


def test_rest_is_settings() -> None:
    """Gather all else in one object of kind settings; what is empty says nothing."""
    rest = {
        "version": 2,
        "on": False,
        "none": None,
        "servers": ["a", "b"],
        "mixed": {"a": {}, "b": 1},
    }
    plugin = rest | {"items": [{"id": "x"}], "empty": [], "void": {}, "odd": [{"a": 1}, 2]}
    assert flat({"dns": plugin, "nothing": {}}) == {
        ("dns", "item", "x"): {"id": "x"},
        ("dns", SETTINGS, "dns"): rest | {"odd": [{"a": 1}, 2]},
    }


@pytest.mark.parametrize("chosen", range(len(NAMING_KEYS)))
def test_element_is_named_by_the_first_naming_key(chosen: int) -> None:
    """Name an element by the first naming key that it has."""
    properties = {key: f"by-{key}" for key in reversed(NAMING_KEYS[chosen:])}
    [raw] = flatten({"p": {"things": [properties]}})
    assert raw == ("p", "thing", f"by-{NAMING_KEYS[chosen]}", properties)


def test_odd_names_fall_back() -> None:
    """Take numbers as names, but no booleans, empty strings or nested values."""
    elements = [
        {"id": 7},
        {"id": 0},
        {"id": True, "unit": "u"},
        {"name": "", "path": "/p"},
        {"name": [], "url": "https://h/"},
    ]
    names = [name for _, _, name, _ in flatten({"p": {"things": elements}})]
    assert names == ["7", "0", "u", "/p", "https://h/"]


def named(elements: list[Any], reader: Reader | None = None) -> dict[str, Any]:
    """Give the properties of the elements of a list by the names that they get."""
    _, objects = (reader or Reader()).read({"p": {"things": elements}})
    return {o.name: o.properties for o in objects}


def test_nameless_elements_are_named_by_their_content() -> None:
    """Give a nameless element a name that its place and its neighbours do not change."""
    rules = [{"port": 80, "action": "accept"}, {"port": 22}, {}]
    before = named(rules)
    assert all(re.fullmatch("~[0-9a-f]{12}", name) for name in before)
    after = named([{"port": 443}, *reversed(rules), {"action": "drop"}])
    assert before.items() <= after.items()
    assert named([{"action": "accept", "port": 80}]).keys() < before.keys()


def test_equal_nameless_elements_are_counted() -> None:
    """Tell equal nameless elements apart by an ordinal."""
    (one,) = named([{"port": 80}])
    assert named([{"port": 80}] * 3).keys() == {one, f"{one}#2", f"{one}#3"}


def test_a_name_made_of_content_tells_no_secret() -> None:
    """Make the names of elements that differ only in a secret of what is left of them."""
    (one,) = named([{"port": 80, "password": "hunter2"}])
    assert named([{"port": 80, "password": "hunter3"}]).keys() == {one}
    assert len(named([{"port": 80, "password": p} for p in ("hunter2", "hunter3")])) == 2


def test_an_unchanged_nameless_element_is_not_given_again() -> None:
    """Give nothing again that only moved to another place of its list."""
    rules = [{"port": n % 7, "on": True} for n in range(30)] + [{"name": "a", "n": 1}]
    reader = Reader()
    named(rules, reader)
    assert named(rules[::-1], reader) == {}


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_permuting_a_list_changes_no_names(data: st.DataObject) -> None:
    """Name each element of a list alike, wherever it stands."""
    keys = st.sampled_from(["name", "id", "url", "port", "password"])
    values = st.sampled_from([1, "1", "a", "a#2", "hunter2", "", None, [1], {"b": 2}])
    elements = data.draw(st.lists(st.dictionaries(keys, values), max_size=8))
    assert named(data.draw(st.permutations(elements))) == named(elements)


@pytest.mark.parametrize(
    ("many", "one"),
    [
        ("interfaces", "interface"),
        ("units", "unit"),
        ("sessions", "session"),
        ("containers", "container"),
        ("items", "item"),
        ("packages", "package"),
        ("bridges", "bridge"),
        ("services", "service"),
        ("addresses", "address"),
        ("boxes", "box"),
        ("switches", "switch"),
        ("policies", "policy"),
        ("proxies", "proxy"),
        ("ties", "tie"),
        ("buses", "bus"),
        ("aliases", "alias"),
        ("processes", "process"),
        ("databases", "database"),
        ("caches", "cache"),
        ("leases", "lease"),
        ("causes", "cause"),
        ("sizes", "size"),
        ("routes", "route"),
        ("status", "status"),
        ("access", "access"),
        ("analysis", "analysis"),
        ("dns", "dns"),
        ("firewall", "firewall"),
        ("s", "s"),
        ("", ""),
        ("Interfaces", "Interface"),
    ],
)
def test_kind_is_the_singular(many: str, one: str) -> None:
    """Say the kind as a person would say it of one thing."""
    assert singular(many) == one


def test_things_of_one_name_stay_apart() -> None:
    """Tell things of one name apart by their ordinal, whatever the others are called."""
    plugins = {
        "p": {
            "things": [{"name": "a"}, {"name": "a"}, {"name": "a#2"}, {"name": "a"}],
            "thing": {"a": {"x": 1}},
        }
    }
    identities, objects = Reader().read(plugins)
    assert sorted(o.name for o in objects) == ["a", "a#2", "a#3", "a#4", "a#5"]
    assert identities == {o.identity for o in objects}


def test_things_of_one_redacted_name_stay_apart() -> None:
    """Keep two things whose names differ only in what is redacted, and see neither as changed."""
    mounts = [{"path": "ftp://u:one@h/", "x": 1}, {"path": "ftp://u:two@h/", "x": 2}]
    reader = Reader()
    _, objects = reader.read({"p": {"mounts": mounts}})
    assert len({o.identity for o in objects}) == 2
    assert "one" not in repr(objects)
    assert reader.read({"p": {"mounts": mounts}})[1] == []


def test_unchanged_objects_are_not_given_again() -> None:
    """Give an object again only if its own content changed, not if another one came to be."""
    first = (
        '{"p": {"things": [{"name": "first", "some key": "v", "other key": {"deep key": [1]}}]}}'
    )
    second = first.replace("]}}]", ']}}, {"name": "b", "some key": "v", "deep key": 1}]')
    reader = Reader()
    assert [o.name for o in reader.read(json.loads(first))[1]] == ["first"]
    assert [o.name for o in reader.read(json.loads(second))[1]] == ["b"]
    assert reader.read(json.loads(second.replace('"v"', '"w"', 1)))[1][0].name == "first"


@pytest.mark.parametrize(("before", "after"), [(1, True), (0, False), (1, 1.0), ("1", 1), ([], {})])
def test_change_of_type_is_a_change(before: Any, after: Any) -> None:
    """See a value of another JSON type as changed, though Python may call it equal."""
    reader = Reader()
    reader.read({"p": {"things": [{"name": "a", "v": before}]}})
    _, objects = reader.read({"p": {"things": [{"name": "a", "v": after}]}})
    assert [repr(o.properties["v"]) for o in objects] == [repr(after)]


def test_reader_remembers_no_secret() -> None:
    """Remember what was read as hashes that nobody can look up."""
    plugins = {"p": {"things": [{"name": "a", "password": "hunter2"}]}}
    one, other = Reader(), Reader()
    _, objects = one.read(plugins)
    other.read(plugins)
    assert "hunter2" not in repr((vars(one), objects))
    assert vars(one) != vars(other)


KEYS = st.text(max_size=5) | st.sampled_from([*NAMING_KEYS, "things", "units", "version"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12,
)
PLUGINS = st.dictionaries(
    st.text(min_size=1, max_size=4), st.dictionaries(KEYS, VALUES, max_size=4), max_size=3
)


def scalars(value: Any) -> Counter[str]:
    """Count everything that a JSON value says in the end."""
    return Counter(
        repr(leaf)
        for _, value_or_list in dotted_values(value)
        for leaf in (value_or_list if isinstance(value_or_list, list) else [value_or_list])
        if leaf != {}
    )


@settings(max_examples=150, deadline=None)
@given(PLUGINS)
def test_no_leaf_is_lost(plugins: dict[str, Any]) -> None:
    """Keep every scalar of every plugin in some object, exactly once."""
    kept = sum((scalars(properties) for *_, properties in flatten(plugins)), Counter())
    assert kept == scalars(plugins)


@settings(max_examples=150, deadline=None)
@given(PLUGINS)
def test_any_plugin_gives_objects(plugins: dict[str, Any]) -> None:
    """Make distinct objects of arbitrary JSON, and the same ones again the next time."""
    reader = Reader()
    identities, objects = reader.read(plugins)
    assert len(identities) == len(objects) == len({o.identity for o in objects})
    assert all(json.loads(o.json()) == o.properties for o in objects)
    assert reader.read(plugins) == (identities, [])


def test_long_names_are_cut_and_stay_apart() -> None:
    """Cut names past what a path may hold, alike at every read, and never into one."""
    units = {"é" * 1000 + str(n): {"a": n} for n in range(5)} | {"é" * 512: {"a": 9}}
    plugins = {"p" * 300: {"k" * 300: units}}
    identities, given_ = Reader().read(plugins)
    assert len(identities) == len(units) == len(given_)
    assert (identities, len(given_)) == (Reader().read(plugins)[0], 6)
    for identity in identities:
        sizes = [len(part.encode()) for part in identity[1:]]
        assert all(size <= most for size, most in zip(sizes, MAX_NAME.values(), strict=True))
    assert "é" * 512 in {identity.name for identity in identities}
