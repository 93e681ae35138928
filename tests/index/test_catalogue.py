"""Entries that come many at a time are taken as if they came one by one."""

import random
import sys
import threading
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from opdbus.index.catalogue.catalogue import Catalogue
from opdbus.index.catalogue.short_names import find, find_in
from opdbus.index.database.quota import Usage
from opdbus.index.database.store import Entry
from opdbus.language.vocabulary import TRAIT_BYTES
from opdbus.state.object import FILE, Identity, digest, matches

SOURCES = (FILE, "publish:one", "publish:two", "live:three")


def _entry(number: int, identity: Identity, chance: random.Random) -> Entry:
    return Entry(
        number,
        identity,
        owner=chance.randrange(3),
        fingerprint=chance.randbytes(16).hex(),
        # some begin just so, and are others
        text_digest=bytes(8) + bytes([chance.randrange(3)] * 8)
        if chance.random() < 0.1
        else digest(str(chance.randrange(60)).encode()),
        updated_at=chance.randrange(1000),
        transient=chance.random() < 0.1,
        size=chance.randrange(1000),
        traits=chance.randbytes(TRAIT_BYTES),
    )


def _state(catalogue: Catalogue, layer: Any) -> Sequence[Any]:
    texts, object_ids = catalogue.texts, catalogue.object_ids({})
    return [
        {entry.id: entry for entry in catalogue},
        {object_id: catalogue.entries(object_id) for object_id in object_ids},
        +catalogue.sources,
        catalogue.kinds,
        {entry.id: entry for entry in map(catalogue.view.at, catalogue.shared().places)},
        [len(catalogue), len(texts), layer.filled, {*texts.unused()}],
        catalogue.view.count_objects(catalogue.view.of_source_kinds(lambda _: True)),
        {*texts.missing_texts(layer, 1000)},
        [catalogue.get(entry.identity) == entry for entry in catalogue],
        catalogue.existing(entry.identity for entry in catalogue)
        == {entry.identity: entry for entry in catalogue},
        catalogue.existing([Identity("live:none", *object_id) for object_id in object_ids]),
    ]


def _compare_lists(catalogue: Catalogue, there: Collection[Entry], chance: random.Random) -> None:
    """Compare what is listed with what a look at each entry finds."""
    some = chance.sample([*there], len(there) // 2)
    within = catalogue.view.refs_of([entry.id for entry in some])
    for wanted in ({}, {"kind": "a"}, {"source": FILE, "name": "n7"}, {"name": "n8", "kind": "b"}):
        for entries, among in ((there, None), (some, within)):
            met = {entry.identity.object_id for entry in entries if matches(entry.identity, wanted)}
            assert [*catalogue.object_ids(wanted, among)] == sorted(met)
    for part in ("N7", "n", "", "69", "nn"):
        known = {entry.identity.object_id for entry in there}
        held = {object_id for object_id in known if part.lower() in object_id.name}
        assert {*catalogue.names_containing(part)} == held
        for given in (part, f"a/{part}", f"p/b/{part}"):
            assert find_in(catalogue, given)[0] == find([*known], given)[0]


@pytest.mark.parametrize("seed", range(8))
def test_many_entries_are_taken_as_if_they_came_one_by_one(seed: int) -> None:
    """A catalogue holds, counts and tells the same, however the entries came."""
    chance = random.Random(seed)  # noqa: S311 -- no secret
    together, one_by_one = Catalogue(Usage()), Catalogue(Usage())
    layers = together.texts.layer(), one_by_one.texts.layer()
    there: dict[Identity, Entry] = {}
    number = 0
    for _ in range(30):
        batch: list[Entry] = []
        for _ in range(chance.choice((1, 15, 16, 100))):
            kind, name = chance.choice("ab"), f"n{chance.randrange(700)}"
            identity = Identity(chance.choice(SOURCES), "p", kind, name)
            number += 1
            known = there.get(identity)
            there[identity] = _entry(known.id if known else number, identity, chance)
            batch.append(there[identity])
        if chance.random() < 0.5:
            batch = [*{entry.identity: entry for entry in batch}.values()]
        said = [together.put(batch), {}]
        for entry in batch:
            for object_id, change in one_by_one.put([entry]).items():
                said[1].setdefault(object_id, change)
        assert said[0] == said[1]
        assert [*said[0]] == [*said[1]]
        gone = chance.sample([*there.values()], len(there) // 4)
        for entry in gone:
            del there[entry.identity]
        assert together.remove(gone) == one_by_one.remove(gone)
        if chance.random() < 0.2:
            for catalogue in (together, one_by_one):
                count = catalogue.texts.count_unused()
                while some := catalogue.texts.unused(3):
                    assert len(some) == min(3, count)
                    catalogue.texts.forget(some)
                    count = catalogue.texts.count_unused()
                assert not count
        assert _state(together, layers[0]) == _state(one_by_one, layers[1])
        _compare_lists(together, there.values(), chance)
    assert {entry.id for entry in together} == {entry.id for entry in there.values()}


@pytest.mark.parametrize("is_layered", [True, False])
def test_texts_that_change_again_and_again_take_no_more_room(is_layered: bool) -> None:  # noqa: FBT001 -- a parameter
    """The number of a text that no thing has any more is given to another, also among many."""
    catalogue, chance = Catalogue(Usage()), random.Random(1)  # noqa: S311 -- no secret
    layer = catalogue.texts.layer() if is_layered else None
    named = [Identity(FILE, "p", "a", f"n{n}") for n in range(100)]
    for _ in range(20):
        batch = [_entry(n, one, chance) for n, one in enumerate(named, 1)]
        digests = [digest(chance.randbytes(8)) for _ in batch]
        batch = [e._replace(text_digest=d) for e, d in zip(batch, digests, strict=True)]
        catalogue.put(batch)
        assert [catalogue.get(entry.identity) for entry in batch] == batch
        catalogue.texts.forget(catalogue.texts.unused())
        assert len(catalogue.texts) == len(named)
        assert max(catalogue.texts.find_each(digests)) <= 2 * len(named)
        assert layer is None or catalogue.texts.count_missing(layer) == len(named)


@pytest.mark.parametrize(
    ("name", "service"),
    [
        ("apache", "apache2.service"),
        ("tomcat", "tomcat11.service"),
        ("php", "php83.service"),
        ("redis", "redis-server.service"),
        ("cron", "cron.service"),
        ("mail", None),
    ],
)
def test_a_service_is_found_without_its_suffix(name: str, service: str | None) -> None:
    """Find a service by its name without the suffix, the version or the word for a service."""
    catalogue = Catalogue(Usage())
    chance = random.Random(1)  # noqa: S311 -- a test
    for number, own in enumerate(
        "apache2 tomcat11 tomcat12 php83 redis-server cron cron2 mail2go".split(), 1
    ):
        identity = Identity("live:systemd", "systemd", "unit", f"{own}.service")
        catalogue.put([_entry(number, identity, chance)])
    found = [entry for place in catalogue.named(name) if (entry := catalogue.view.at(place))]
    assert [entry.identity.name for entry in found] == ([service] if service else [])


@pytest.fixture
def short_turns() -> Iterator[None]:
    """Have threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("short_turns")
def test_others_read_what_stays_while_one_changes() -> None:
    """List and find what stays, and nothing else in its place, while others come and go."""
    catalogue, chance = Catalogue(Usage()), random.Random(2)  # noqa: S311 -- no secret
    stays = _entry(1, Identity(FILE, "p", "a", "stays"), chance)
    catalogue.put([stays])
    object_id, view = stays.identity.object_id, catalogue.view

    def read() -> None:
        while not ends.is_set():
            assert catalogue.entries(object_id)[0] == catalogue.get(stays.identity) == stays
            for wanted in ({}, {"kind": "a"}, {"source": FILE}, {"name": "stays"}):
                assert object_id in catalogue.object_ids(wanted)
            assert object_id in catalogue.names_containing("STAYS")
            assert object_id in catalogue.object_ids_of(FILE)
            assert (("p", "a") in catalogue.kinds, stays in [*catalogue]) == (True, True)
            assert "p" in catalogue.children(())
            assert "stays" in catalogue.children(("p", "a"))
            assert [view.at(place) for place in catalogue.named("stays")] == [stays]
            refs = catalogue.refs_of(catalogue.all_object_ids())
            assert view.at(int(refs.places[refs.ids == stays.id][0])) == stays

    ends = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read) for _ in range(2)]
        try:
            for step in range(300):
                names = [f"n{chance.randrange(40)}" for _ in range(5)]
                identities = {Identity(chance.choice(SOURCES), f"p{step}", "a", n) for n in names}
                batch = [_entry(10 * step + n, one, chance) for n, one in enumerate(identities, 2)]
                catalogue.put(batch)
                catalogue.remove(batch)
        finally:
            ends.set()
        for reader in readers:
            reader.result()
