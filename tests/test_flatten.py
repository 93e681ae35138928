"""One rule turns any plugin into objects, and loses nothing on the way."""

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opdbus.state.drift import leaves
from opdbus.state.flatten import NAMING_KEYS, SETTINGS, Reader, _unique, flatten, singular
from opdbus.state.object import FILE, MAX_NAME, Identity


def flat(plugins: dict[str, Any]) -> dict[tuple[str, str, str], Any]:
    """Flatten to {(plugin, kind, name): properties}, where no two have one name."""
    found = list(flatten(plugins))
    assert len({identity for identity, _ in found}) == len(found)
    return {tuple(identity[1:]): properties for identity, properties in found}


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
    """Name an element by the first of name, id, unit, path, address."""
    properties = {key: f"by-{key}" for key in reversed(NAMING_KEYS[chosen:])}
    [(identity, _)] = flatten({"p": {"things": [properties]}})
    assert identity == Identity(FILE, "p", "thing", f"by-{NAMING_KEYS[chosen]}")


def test_odd_names_fall_back() -> None:
    """Take numbers as names, but no booleans, empty strings or nested values."""
    elements = [
        {"id": 7},
        {"id": 0},
        {"id": True, "unit": "u"},
        {"name": "", "path": "/p"},
        {"name": []},
    ]
    names = [identity.name for identity, _ in flatten({"p": {"things": elements}})]
    assert names == ["7", "0", "u", "/p", "4"]


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
    assert [o.name for o in objects] == ["a", "a#2", "a#2#2", "a#3", "a#4"]
    assert identities == {o.identity for o in objects}


class Looked(set[Identity]):
    """A set that counts how often it is asked."""

    asked = 0

    def __contains__(self, identity: object) -> bool:
        """Count, and answer."""
        self.asked += 1
        return super().__contains__(identity)


def test_many_things_of_one_name_take_no_longer_each() -> None:
    """Find the ordinal of the last of many things of one name as fast as that of the second."""
    identity, taken, ordinals = Identity(FILE, "p", "thing", "a"), Looked(), dict[Identity, int]()
    for _ in range(1000):
        taken.add(_unique(identity, taken, ordinals))
    assert {i.name for i in taken} == {"a"} | {f"a#{n}" for n in range(2, 1001)}
    assert taken.asked < 2 * 1000


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
    assert one._seen != other._seen


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
        for _, value_or_list in leaves(value)
        for leaf in (value_or_list if isinstance(value_or_list, list) else [value_or_list])
        if leaf != {}
    )


@settings(max_examples=150, deadline=None)
@given(PLUGINS)
def test_no_leaf_is_lost(plugins: dict[str, Any]) -> None:
    """Keep every scalar of every plugin in some object, exactly once."""
    kept = sum((scalars(properties) for _, properties in flatten(plugins)), Counter())
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
