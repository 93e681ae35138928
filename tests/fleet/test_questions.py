"""Questions over all hosts: what is found, where it is, and how hosts differ."""

from __future__ import annotations

import json
import math
import re
import time
from collections import Counter, defaultdict
from contextlib import suppress
from random import Random
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from harness.fleets import DIMENSION, NUMERICS
from harness.told_hosts import History, ask, package, tell, thing, unit

from opdbus.errors import InvalidArgs, UnknownObject
from opdbus.fleet import postgres
from opdbus.fleet.questions import (
    fleet_changes,
    fleet_conditions,
    fleet_drift,
    fleet_past,
    fleet_search,
    identities,
    one_object,
    past_search,
    peers,
    vector_ranks,
    word_ranks,
)
from opdbus.fleet.questions.fleet_comparison import compare
from opdbus.fleet.questions.fleet_scope import Scope, find_hosts, hosts_changed_since
from opdbus.fleet.questions.plain_values import plain
from opdbus.state.conditions import AllOf, Condition, parse
from opdbus.state.object import Identity, ObjectId, canonical

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from harness.fleets import FleetDatabase


COMMON = [unit("nginx"), unit("cron"), package("openssl", "3.0"), package("bash", "5.2")]


def names(hits: Sequence[fleet_search.Hit]) -> list[str]:
    """Return the names of what was found."""
    return [hit.found.object_id.name for hit in hits]


def test_an_object_is_one_hit_with_the_hosts_that_have_it(database: FleetDatabase) -> None:
    """Say where an object is, with the shorter list, and in which values hosts differ."""
    rows = {f"web{n}": list(COMMON) for n in range(1, 5)}
    rows["web4"] = COMMON[1:3]
    rows["web2"] = [COMMON[0], COMMON[1], package("openssl", "1.1")]
    tell(database, rows, "web")
    answer = ask(database, lambda c: fleet_search.search(c, "openssl"))
    (hit,) = answer.hits
    assert str(hit.found.where) == "on all 4 hosts"
    (field,) = hit.found.differing
    assert field.field == "version"
    assert [(v.value, v.hosts) for v in field.values] == [
        ('"3.0"', ("web1", "web3", "web4")),
        ('"1.1"', ("web2",)),
    ]
    nginx = ask(database, lambda c: fleet_search.search(c, "nginx service"))
    assert str(nginx.hits[0].found.where) == "on 3 of 4 hosts; not on web4"
    here = ask(database, lambda c: fleet_search.search(c, "nginx host:web4"))
    assert here.hits == ()
    assert here.total == 0
    json.dumps(plain(nginx))


def test_a_misspelt_name_is_corrected_and_a_foreign_question_has_no_answer(
    database: FleetDatabase,
) -> None:
    """Find what was meant, and nothing where only a common word fits."""
    tell(database, {"web1": COMMON})
    answer = ask(database, lambda c: fleet_search.search(c, "the ngnix service"))
    assert names(answer.hits)[0] == "nginx.service"
    assert answer.corrected == (word_ranks.Corrected("ngnix", "nginx"),)
    for foreign in ("ground sloth", "which kafka broker is a service of zookeeper", "?"):
        assert ask(database, lambda c, q=foreign: fleet_search.search(c, q)).hits == (), foreign


def test_scope_and_conditions_are_taken_out_of_the_question(database: FleetDatabase) -> None:
    """Ask hosts of a tag or a name only, and refuse those that are not there."""
    tell(database, {"web1": [unit("nginx", "failed")], "web2": [unit("nginx")]}, "web")
    tell(database, {"db1": [unit("nginx", "failed")]}, "db")

    def where(question: str) -> str:
        answer = ask(database, lambda c: fleet_search.search(c, question))
        return str(answer.hits[0].found.where) if answer.hits else ""

    assert where("active_state=failed") == "on 2 of 3 hosts; not on web2"
    assert where("state:failed tag:web") == "on 1 of 2 hosts: web1"
    assert where("nginx host:web* active_state=failed") == "on 1 of 2 hosts: web1"
    assert where("active_state=active tag:db") == ""
    with pytest.raises(InvalidArgs, match="no host of tag:mail; there are the tags db, web"):
        where("nginx tag:mail")
    conditions = parse("colour=red")
    with pytest.raises(InvalidArgs, match="no object of the fleet has a field colour"):
        ask(database, lambda c: fleet_search.search(c, "", where=conditions))


def random_state(chance: Random, depth: int = 0) -> dict[str, Any]:
    """Return fields of which conditions are easily met, with all that JSON allows."""
    keys = ["state", "active_state", "ActiveState", "port", "ports", "on", "a.b", "--", "size"]
    values: list[Any] = ["failed", "Failed", "yes", True, False, 80, "80", "0x50", 1.5, None, ""]
    values += ["two words failed", 'quo"te', "4G", [], ["failed", 80], [[80]], [{"port": 80}]]
    found = {}
    for key in chance.sample(keys, 4):
        nested = depth < 2 and chance.random() < 0.3
        found[key] = random_state(chance, depth + 1) if nested else chance.choice(values)
    return found


CONDITIONS = (
    "state=failed", "active_state=failed", "state!=failed", "port=80", "ports=80", "port>79",
    "state~fail", "on=yes", "on=true", "on=false", "size>=4G", "a.b=failed", "b=failed",
    "ports.port=80", 'state=""', "state=80", "kind=box", "name~1", "source=live:lab",
    "plugin=LAB", "state=failed, port=80", 'state="two words failed"', "state=two", "active=x",
)  # fmt: skip


def test_conditions_mean_what_they_mean_on_one_host(database: FleetDatabase) -> None:
    """Return exactly the states that meet conditions, as a comparison with all of them shows."""
    chance = Random(7)  # noqa: S311 -- the same states each time
    states = {f"box{n}": random_state(chance) for n in range(300)}
    rows = [thing("box", name, fields) for name, fields in states.items()]
    rows += [thing("box", "told", None, declared={"state": "failed", "port": 80})]
    rows += [thing("box", "both", {"state": "x"}, declared={"state": "failed"})]
    tell(database, {"web1": rows})
    states |= {"told": {"state": "failed", "port": 80}, "both": {"state": "x"}}
    for text in CONDITIONS:
        wanted = parse(text)
        found = ask(database, lambda c, wanted=wanted: fleet_conditions.find_contents(c, wanted))
        source = {"told": "file"}
        right = {
            name
            for name, fields in states.items()
            if AllOf(wanted).hold(
                Identity(source.get(name, "live:lab"), "lab", "box", name), fields
            )
        }
        assert {each.identity.name for each in found} == right, text
        answer = ask(
            database, lambda c, wanted=wanted: fleet_search.search(c, "", where=wanted, limit=500)
        ) if text != "active=x" else None  # fmt: skip
        assert answer is None or (set(names(answer.hits)) == right and answer.total == len(right))


def test_no_filter_makes_an_answer_by_vectors_shorter(database: FleetDatabase) -> None:
    """Return the nearest texts of those that a filter leaves, as many as there are."""
    random = np.random.default_rng(5)
    rows = [thing("box", f"b{n}", {"group": n % 50, "n": n}) for n in range(1200)]
    hosts = {f"h{n}": rows[n * 100 : n * 100 + 100] for n in range(12)}
    tell(database, hosts)
    texts = dict(database.fetch("SELECT text, digest FROM opdbus.text"))
    vectors = {text: random.normal(size=DIMENSION) for text in texts}
    asked = random.normal(size=DIMENSION)

    async def publish(connection: Any) -> vector_ranks.Numerics:
        number = await connection.fetchval(
            "SELECT opdbus.add_numerics($1, 'medium', $2)", NUMERICS, DIMENSION
        )
        await connection.executemany(
            "INSERT INTO opdbus.vector VALUES ($1, $2, $3::text::public.halfvec)",
            [(number, texts[text], str(vector.tolist())) for text, vector in vectors.items()],
        )
        return vector_ranks.Numerics(number, NUMERICS, "medium", DIMENSION)

    numerics = ask(database, publish)
    every = set(texts)
    one_host = {f"box b{n}" for n in range(100)}
    eleven = {f"box b{n}" for n in range(1100)}
    few = {f"box b{n}" for n in range(0, 1200, 50)}
    ids = dict(database.fetch("SELECT name, host FROM opdbus.host"))
    filters = [
        (fleet_conditions.TextFilter([texts[t] for t in sorted(one_host)]), one_host),
        (fleet_conditions.TextFilter([texts[t] for t in sorted(few)]), few),
        (fleet_conditions.TextFilter(hosts=[ids[f"h{n}"] for n in range(11)]), eleven),
        # the index finds all others first
        (fleet_conditions.TextFilter(hosts=[ids["h11"]]), every - eleven),
    ]

    def cosine(text: str) -> float:
        vector = vectors[text]
        return float(vector @ asked / np.linalg.norm(vector) / np.linalg.norm(asked))

    for only, left in filters:
        found = ask(
            database,
            lambda c, only=only: vector_ranks.rank_by_vector(c, numerics, asked.tolist(), only),
        )
        digests = {texts[text]: text for text in texts}
        got = [digests[each.digest] for each in found]
        assert len(got) == len(set(got)) == min(len(left), vector_ranks.POOL)
        assert set(got) <= left
        if only.texts is not None:
            best = sorted(left, key=cosine, reverse=True)[: len(got)]
            assert [cosine(text) for text in got] == pytest.approx(
                [cosine(text) for text in best], abs=0.002
            )

    async def embed(_words: str, _: Sequence[vector_ranks.Numerics]) -> Mapping[str, list[float]]:
        return {NUMERICS: vectors["box b77"].tolist()}

    answer = ask(database, lambda c: fleet_search.search(c, "zyzzyva group=27", embed=embed))
    assert answer.compared == ("medium",)
    assert {hit.found.object_id.name for hit in answer.hits} <= {
        f"b{n}" for n in range(27, 1200, 50)
    }


def test_a_wanted_level_is_not_used_before_it_serves(database: FleetDatabase) -> None:
    """Compare vectors of the level that serves, until all texts have those of the wanted one."""
    tell(database, {"web1": COMMON})

    async def in_use(connection: Any) -> list[str]:
        return [each.level for each in await vector_ranks.numerics_in_use(connection)]

    async def begin(connection: Any) -> None:
        text = await connection.fetchval("SELECT digest FROM opdbus.text LIMIT 1")
        for level in ("small", "large"):
            number = await connection.fetchval(
                "SELECT opdbus.add_numerics($1, $1, $2)", level, DIMENSION
            )
            await connection.execute(
                "INSERT INTO opdbus.vector VALUES ($1, $2, $3::text::public.halfvec)",
                *(number, text, str([1.0] * DIMENSION)),
            )

    ask(database, begin)
    set_level = (
        "UPDATE opdbus.fleet SET {} = (SELECT numerics FROM opdbus.numerics WHERE level = '{}')"
    )
    database.fetch(set_level.format("wanted", "large"))
    assert ask(database, in_use) == ["small", "large"]  # none serves yet
    database.fetch(set_level.format("serving", "small"))
    assert ask(database, in_use) == ["small"]
    database.fetch(set_level.format("serving", "large"))
    assert ask(database, in_use) == ["small", "large"]


def test_two_hosts_are_compared_without_their_identities(database: FleetDatabase) -> None:
    """Tell what one host has and where others differ, not that addresses and ids differ."""
    first = [
        *COMMON,
        thing("address", "10.0.0.1/24", {"interface": "lan0", "address": "10.0.0.1"}),
        thing("interface", "lan0", {"mac": "02:00:00:00:00:01", "mtu": 1500}),
        thing("file", "/etc/hosts", {"line": "10.0.0.1 web1"}),
        unit("only"),
    ]
    second = [
        unit("nginx", "failed"),
        *COMMON[1:3],
        package("bash", "5.1"),
        thing("address", "10.0.0.2/24", {"interface": "lan1", "address": "10.0.0.2"}),
        thing("interface", "lan0", {"mac": "02:00:00:00:00:02", "mtu": 9000}),
        thing("file", "/etc/hosts", {"line": "10.0.0.2 web2"}),
    ]
    tell(database, {"web1": first, "web2": second, "web3": COMMON})
    answer = ask(database, lambda c: compare(c, "web1", "web2"))
    assert (answer.equal, answer.identities) == (2, 1)
    found = {
        (each.object_id.name, each.where): [tuple(field) for field in each.fields]
        for group in answer.kinds
        for each in group.differences
    }
    assert found == {
        ("nginx.service", "both"): [("active_state", '"active"', '"failed"')],
        ("bash", "both"): [("version", '"5.2"', '"5.1"')],
        ("only.service", "first"): [],
        ("lan0", "both"): [("mtu", "1500", "9000")],
        ("10.0.0.1/24", "both"): [("interface", '"lan0"', '"lan1"')],
    }
    # what other hosts have, too, tells most
    assert answer.kinds[0].differences[0].object_id.name == "nginx.service"
    units = ask(database, lambda c: compare(c, "web1", "web2", ["unit"]))
    assert [group.kind for group in units.kinds] == ["unit"]
    with pytest.raises(InvalidArgs, match="one host"):
        ask(database, lambda c: compare(c, "web1", "WEB1"))


def test_the_odd_host_is_found_with_what_makes_it_odd(database: FleetDatabase) -> None:
    """Rank first the host that has otherwise, lacks or alone has what its peers agree on."""
    rows = {
        f"web{n}": [*COMMON, unit("fail2ban"), thing("address", f"10.0.0.{n}", {"up": True})]
        for n in range(20)
    }
    rows["web7"] = [
        *COMMON[:2], package("openssl", "0.9"), COMMON[3], package("netcat", "1"),
        thing("address", "10.0.0.77", {"up": True}),
    ]  # fmt: skip
    tell(database, rows, "web")
    tell(database, {"db1": [unit("postgres")], "db2": [unit("postgres")]}, "db")
    answer = ask(database, lambda c: peers.find_odd(c, Scope(tags=("web",))))
    (odd,) = answer.odd
    assert (odd.name, odd.stands_out, answer.usual) == ("web7", True, 0)
    told = {(each.object_id.name, each.what, each.having, each.agreeing) for each in odd.oddities}
    assert told == {
        ("openssl", "other", 1, 19),
        ("fail2ban.service", "missing", 1, 19),
        ("netcat", "extra", 1, 19),
    }
    (openssl,) = (each for each in odd.oddities if each.what == "other")
    assert [value.value for value in openssl.fields[0].values] == ['"3.0"', '"0.9"']
    lacking = ask(database, lambda c: peers.find_missing(c, Scope(tags=("web",)), "web7"))
    assert [each.object_id.name for each in lacking.missing] == ["fail2ban.service"]
    other = ask(database, lambda c: peers.find_missing(c, Scope(tags=("web",)), "db1"))
    assert "nginx.service" in [each.object_id.name for each in other.missing]
    with pytest.raises(InvalidArgs, match=r"at least 3.*`op-dbus fleet compare db1 db2`"):
        ask(database, lambda c: peers.find_odd(c, Scope(tags=("db",))))


def score_hosts(
    objects: Mapping[str, Mapping[ObjectId, str]],
) -> dict[str, Any]:
    """Return each host's score and oddities, by the definition: object for object, in memory.

    `objects` has of each host the objects with their states, without identities.
    """
    total = len(objects)
    few, agree = max(1, total // 10), math.ceil(0.75 * total)
    states: dict[ObjectId, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    patterns: dict[ObjectId, set[str]] = defaultdict(set)
    for host, own in objects.items():
        for one, state in own.items():
            states[one][state].add(host)
    masked = {one: one._replace(name=identities.mask_name(one.name)) for one in states}
    holders = {one: set().union(*groups.values()) for one, groups in states.items()}
    for one, having in holders.items():
        if len(having) < agree:
            patterns[masked[one]] |= having
    usual = {pattern for pattern, having in patterns.items() if len(having) >= agree}
    found: dict[str, list[tuple[ObjectId, str, int, int]]] = {host: [] for host in objects}
    for one, groups in states.items():
        agreeing, having = max(map(len, groups.values())), holders[one]
        for hosts in groups.values():
            if agreeing >= agree and len(hosts) <= few and len(hosts) < agreeing:
                _add(found, hosts, (one, "other", len(hosts), agreeing))
        if 0 < total - len(having) <= few and len(having) >= agree:
            lacking = objects.keys() - having
            _add(found, lacking, (one, "missing", len(lacking), len(having)))
        elif len(having) <= few and masked[one] not in usual:
            _add(found, having, (one, "extra", len(having), total - len(having)))
    return {host: (_sum_bits(rows, total), set(rows)) for host, rows in found.items()}


def _add(found: dict[str, list[Any]], hosts: Iterable[str], row: Any) -> None:
    for host in hosts:
        found[host].append(row)


def _sum_bits(rows: Sequence[tuple[ObjectId, str, int, int]], total: int) -> float:
    score, extra = 0.0, Counter[tuple[str, str]]()
    for one, what, having, _ in sorted(rows, key=lambda row: row[2]):
        bits = math.log2(total / having)
        if what == "extra":
            extra[one[:2]] += 1
            bits /= 2 * extra[one[:2]]
        score += bits
    return score


def test_the_database_scores_hosts_as_the_definition_says(database: FleetDatabase) -> None:
    """Find each host's oddities and bits, and nothing else, in hosts of many differences."""
    chance = Random(5)  # noqa: S311 -- the same hosts each time
    rows: dict[str, list[Any]] = {}
    objects: dict[str, dict[ObjectId, str]] = {}
    for number in range(24):
        name = f"web{number}"
        units = [f"common{n}" for n in range(8) if chance.random() > 0.06]
        units += [f"rare{n}" for n in range(12) if chance.random() < 0.06]
        own = [unit(each, "failed" if chance.random() < 0.06 else "active") for each in units]
        own += [
            package(f"lib{chance.randrange(1000)}-{n}", "1") for n in range(chance.randrange(3))
        ]
        own += [thing("address", f"10.0.0.{number}", {"up": True})]
        own += [thing("interface", "lan0", {"mac": f"02:00:00:00:00:{number:02x}", "mtu": 1500})]
        rows[name] = own
        objects[name] = {}
        for row in own:
            state = json.loads(row.body)["observed"]
            values = list(identities.telling_values(state))
            objects[name][ObjectId(row.plugin, row.kind, row.name)] = canonical(values)
    tell(database, rows, "web")
    right = score_hosts(objects)
    answer = ask(database, lambda c: peers.find_odd(c, most=100))
    assert {each.name for each in answer.odd} == {name for name in right if right[name][0]}
    assert len(answer.odd) > 10
    for each in answer.odd:
        score, told = right[each.name]
        assert each.score == pytest.approx(score, abs=1e-9)
        assert {(o.object_id, o.what, o.having, o.agreeing) for o in each.oddities} == told
        assert len(each.oddities) == len(told)
    assert sorted(answer.odd, key=lambda each: -each.score) == list(answer.odd)
    assert answer.usual == pytest.approx(median(score for score, _ in right.values()))
    shown = ask(database, lambda c: peers.find_odd(c, most=2))
    assert shown.odd == answer.odd[:2]
    # missing objects, by the same states
    lacking = ask(database, peers.find_missing)
    every = frozenset(objects)
    least = math.ceil(0.75 * (len(every) - 1))
    having = Counter(one for own in objects.values() for one in own)
    assert {each.object_id: each.where.not_on for each in lacking.missing} == {
        one: tuple(sorted(name for name in every if one not in objects[name]))
        for one, count in having.items()
        if least <= count < len(every)
    }


IDENTITIES = (
    "10.1.2.3", "10.1.2.3/24", "127.0.0.1", "0.0.0.0/0", "1.2.3.4.5", "1.2.3", "256.1.1.12/8",
    "02:00:00:aa:bb:cc", "02:00:00:aa:bb", "0123abcd-0000-1111-2222-0123456789ab", "fe80::1/64",
    "fd00:1:2::3", "2001:db8::1", "3001:db8::1", "2026-01-02T03:04:05Z", "2026-01-02 03:04",
    "2026-01-02", "2026-01-02T03:04:05.123+01:00", "deadbeefdead", "DEADBEEFDEAD", "session", "7",
    "42", "x1", "a", "eth0", "0x1f", "v",
)  # fmt: skip


def test_names_and_texts_are_masked_alike_in_the_database(database: FleetDatabase) -> None:
    """Mask generated texts and names in the database as the program does."""
    chance = Random(11)  # noqa: S311 -- the same texts each time
    texts = [
        "".join(
            chance.choice(IDENTITIES) + chance.choice(("", " ", "-", ".", ":", "/", "_", ",", "="))
            for _ in range(chance.randrange(1, 5))
        )
        for _ in range(5000)
    ]
    rows = database.fetch(
        "SELECT text, opdbus.masked(text), opdbus.name_pattern(text)"
        " FROM unnest($1::text[]) AS text",
        texts,
    )
    assert {text: (masked, pattern) for text, masked, pattern in rows} == {
        text: (identities.mask(text), identities.mask_name(text)) for text in texts
    }


def test_the_database_and_the_program_leave_out_the_same_identities(
    database: FleetDatabase,
) -> None:
    """Give two states one shape if they differ in identities only, by either rule."""
    base = {"version": "1.2.3.4", "note": "from 10.1.2.3/24 at 2026-01-02T03:04:05Z", "n": 1}
    others: list[tuple[dict[str, Any], bool]] = [
        ({**base, "note": "from 10.9.9.9/24 at 2027-01-02T03:04:05Z"}, True),
        ({**base, "version": "1.2.3.5"}, False),
        ({**base, "n": 2}, False),
        ({**base, "note": "from 127.0.0.1/24 at 2026-01-02T03:04:05Z"}, False),
    ]
    own = [
        {**base, "mac": "02:00:00:00:00:0a", "machine_id": "1" * 32, "peer": {"uuid": "x"}},
        {**base, "mac": "02:00:00:00:00:0b", "machine_id": "2" * 32, "peer": {"uuid": "y"}},
    ]
    states = [base, *(state for state, _ in others), *own]
    tell(database, {"web1": [thing("box", f"b{n}", state) for n, state in enumerate(states)]})
    shapes = dict(database.fetch("SELECT name, shape FROM opdbus.content"))

    def told(state: Mapping[str, Any]) -> dict[str, str]:
        return {
            path: canonical(value) if path == "version" else identities.mask(canonical(value))
            for path, value in identities.telling_values(state)
        }

    for number, (state, is_same) in enumerate(others, 1):
        assert (shapes["b0"] == shapes[f"b{number}"]) == is_same, state
        assert (told(base) == told(state)) == is_same, state
    assert shapes["b5"] == shapes["b6"]
    assert told(own[0]) == told(own[1])


def test_one_change_on_many_hosts_is_one_line(database: FleetDatabase) -> None:
    """Group changes by their sentences, with hosts and times; find them by their words."""
    rows = {f"web{n}": list(COMMON) for n in range(3)}
    histories = {}
    for number, name in enumerate(rows):
        history = histories[name] = History([])
        history.add(1_000_000, ("lab", "box", "x"), "appeared", cause="first")
        history.add(
            2_000_000 + number,
            ("packages", "package", "openssl"),
            "changed",
            ({"version": "1"}, {"version": "2"}),
            sentence="openssl was upgraded from 1 to 2",
            cause="apt: upgrade",
            known={"by": "anna"},
        )
    histories["web1"].add(
        3_000_000, ("systemd", "unit", "nginx.service"), "changed", sentence="nginx failed"
    )
    tell(database, rows, histories=histories)
    answer = ask(database, fleet_changes.find_changes)
    upgraded, failed = answer.changes
    assert (str(upgraded.where), upgraded.count, upgraded.by) == ("on all 3 hosts", 3, ("anna",))
    assert (upgraded.first, upgraded.last) == (2_000_000, 2_000_002)
    assert str(failed.where) == "on 1 of 3 hosts: web1"
    assert (answer.listed, answer.listed_on) == (3, ("web0", "web1", "web2"))
    for about, sentence in (("which upgrades", upgraded), ("did nginx fail", failed)):
        found = ask(database, lambda c, about=about: fleet_changes.find_changes(c, about=about))
        assert found.changes[0].sentence == sentence.sentence, about
    none = ask(database, lambda c: fleet_changes.find_changes(c, about="kafka rebalanced"))
    assert none.changes == ()
    span = fleet_changes.Between(2_500_000, 0)
    late = ask(database, lambda c: fleet_changes.find_changes(c, between=span))
    assert [each.sentence for each in late.changes] == ["nginx failed"]


def test_changes_are_told_in_the_words_of_one_host(database: FleetDatabase) -> None:
    """Tell the newest row of a group as `op-dbus changes` does, and as stored without values."""
    histories = {"web0": History([]), "web1": History([])}
    group = ("users", "group", "wheel")
    sides = ({"members": ["anna"], "count": 1}, {"members": ["anna", "bob"], "count": 2})
    for number, history in enumerate(histories.values()):
        history.add(2_000_000 + number, group, "changed", sides, sentence="member count changed")
    more = histories["web1"]
    cause = "bus::1.7 uid 0"
    more.add(3_000_000, ("packages", "package", "a"), "gone", sentence="a is gone", cause=cause)
    more.add(4_000_000, ("packages", "package", "b"), "changed", sentence="b changed somehow")
    more.rows[-1].details["fields"] = None
    more.add(5_000_000, ("packages", "package", "c"), "changed", sentence="c changed somehow")
    more.rows[-1].details["fields"] = [["x", "no JSON", "{"]]
    tell(database, dict.fromkeys(histories, COMMON), histories=histories)
    answer = ask(database, fleet_changes.find_changes)
    joined, called, erased, broken = answer.changes
    assert joined.count == 2
    assert joined.sentence == "member count changed"
    assert "count 1 -> 2" in joined.words
    assert "members +bob" in joined.words
    assert "by uid 0 (:1.7)" in called.words
    assert [erased.words, broken.words] == ["b changed somehow", "c changed somehow"]
    assert plain(answer)["changes"][0]["words"] == joined.words


def test_a_change_of_the_future_hides_no_others(database: FleetDatabase) -> None:
    """Leave out what a wrong clock dated later than tomorrow, unless one asks for such a time."""
    history, soon = History([]), time.time_ns() // 1000 + 3_600_000_000
    history.add(2_000_000, ("lab", "box", "x"), "event", sentence="x failed")
    history.add(soon, ("lab", "box", "y"), "event", sentence="y failed")
    far = soon + 10**15
    history.add(far, ("lab", "box", "z"), "event", sentence="z failed")
    tell(database, {"web0": COMMON}, histories={"web0": history})

    def found(*span: int) -> list[str]:
        between = fleet_changes.Between(*span)
        answer = ask(database, lambda c: fleet_changes.find_changes(c, between=between))
        return [each.object_id.name for each in answer.changes]

    assert found() == found(1_000_000) == ["x", "y"]
    assert found(0, far + 1) == ["x", "y", "z"]


def test_drift_is_grouped_by_object_and_fields(database: FleetDatabase) -> None:
    """Put hosts that drifted in the same fields into one line, the worst first."""
    fields = [["mtu", "1500", "9000", "warning"]]
    row = ["net", "interface", "lan0", "drift", "warning", 10, fields]
    other = [*row[:5], 20, [["mtu", "1500", "9216", "warning"]]]
    mild = ["files", "file", "/a", "drift", "info", 5, [["mode", '"0600"', '"0644"', "info"]]]
    drift = {"web1": [row, mild], "web2": [other], "web3": []}
    tell(database, dict.fromkeys(drift, COMMON), drift=drift)
    answer = ask(database, fleet_drift.find_drift)
    first, second = answer.drift
    assert (first.severity, str(first.where)) == ("warning", "on 2 of 3 hosts; not on web3")
    assert [(v.value, v.hosts) for v in first.fields[0].observed] == [
        ("9000", ("web1",)),
        ("9216", ("web2",)),
    ]
    assert second.object_id.name == "/a"
    assert answer.drifted == ("web1", "web2")
    bad = ask(database, lambda c: fleet_drift.find_drift(c, severity="error"))
    assert bad.drift == ()


def test_the_past_is_what_was_there(database: FleetDatabase) -> None:
    """Return each state as it was at each time, also of objects that left or came."""
    chance = Random(3)  # noqa: S311 -- the same history each time
    current: dict[str, dict[str, Any]] = {}
    history, past = History([]), list[tuple[int, dict[str, dict[str, Any]]]]()
    for step in range(120):
        at = 1_000_000 * (step + 1)
        name = f"box{chance.randrange(6)}"
        one = ("lab", "box", name)
        before = current.get(name)
        if before is None:
            current[name] = random_state(chance)
            history.add(at, one, "appeared", ({}, current[name]))
        elif chance.random() < 0.2:
            del current[name]
            history.add(at, one, "gone", (before, {}))
        else:
            current[name] = {**before, **random_state(chance)}
            current[name].pop(chance.choice(sorted(current[name])))
            history.add(at, one, "changed", (before, current[name]))
        past.append((at, dict(current)))
    rows = [thing("box", name, fields) for name, fields in current.items()]
    tell(database, {"web1": rows, "new": rows}, histories={"web1": history})

    async def read(connection: Any) -> None:
        hosts = await find_hosts(connection, Scope())
        (web1,) = (part.host for part in hosts.parts if part.name == "web1")
        for at, right in past:
            then = await fleet_past.rewind(connection, hosts, at)
            assert then.not_reaching == ("new",)
            assert not then.unknown
            found = dict(current)
            for key, state in then.states.items():
                assert key.host == web1
                found.pop(key.object_id.name, None)
                if state:
                    found[key.object_id.name] = dict(state.fields)
            assert canonical(found) == canonical(right), at
            answer = await past_search.search_past(connection, "kind=box", at, limit=20)
            assert {hit.object_id.name for hit in answer.hits} == set(right)

    ask(database, read)
    at, right = past[60]
    name = min(right)
    shown = ask(database, lambda c: one_object.show(c, name, at=at))
    assert [dict(state.state) for state in shown.states] == [right[name]]
    assert shown.not_reaching == ("new",)


def test_a_host_with_a_backlog_does_not_reach_the_past(database: FleetDatabase) -> None:
    """Say of no time what a host was like whose newer rows are still to come."""
    history = History([])
    history.add(1_000_000, ("lab", "box", "b"), "appeared", ({}, {"n": 1}))
    history.add(2_000_000, ("lab", "box", "c"), "appeared", ({}, {"n": 1}))
    rows = [thing("box", "b", {"n": 2}), thing("box", "c", {"n": 1})]
    tell(database, {"web1": rows, "web2": rows}, histories={"web1": history, "web2": history})
    database.fetch("UPDATE opdbus.host SET backlog = 1 WHERE name = 'web1'")
    answer = ask(database, lambda c: past_search.search_past(c, "n=2", 1_500_000))
    assert answer.not_reaching == ("web1",)
    assert [str(hit.where) for hit in answer.hits] == ["on web2"]


def test_a_past_answer_names_hosts_that_changed_and_that_did_not(database: FleetDatabase) -> None:
    """Count for an object the hosts that have it unchanged, and those that had it so then."""
    histories = {name: History([]) for name in ("web1", "web2", "web3")}
    for name, history in histories.items():
        history.add(1_000_000, ("lab", "box", "b"), "appeared", ({}, {"n": 2 - (name == "web1")}))
    histories["web1"].add(2_000_000, ("lab", "box", "b"), "changed", ({"n": 1}, {"n": 2}))
    histories["web3"].add(2_000_000, ("lab", "box", "b"), "gone", ({"n": 2}, {}))
    rows = {name: [thing("box", "b", {"n": 2})] for name in histories}
    tell(database, rows | {"web3": []}, histories=histories)

    def where(question: str, at: int) -> list[tuple[str, str]]:
        answer = ask(database, lambda c: past_search.search_past(c, question, at))
        assert answer.total == len(answer.hits)
        return [(hit.object_id.name, str(hit.where)) for hit in answer.hits]

    assert where("n=2", 1_500_000) == [("b", "on 2 of 3 hosts; not on web1")]
    assert where("n=1", 1_500_000) == [("b", "on 1 of 3 hosts: web1")]
    assert where("box b", 1_500_000) == [("b", "on all 3 hosts")]
    assert where("n=2", 2_500_000) == [("b", "on 2 of 3 hosts; not on web3")]
    assert where("n=1", 2_500_000) == []


def test_hosts_are_chosen_by_several_objects(database: FleetDatabase) -> None:
    """Name the hosts that meet all conditions, each by an object of theirs."""
    tell(
        database,
        {
            "web1": [*COMMON, unit("fail2ban")],
            "web2": [unit("nginx", "failed"), COMMON[2]],
            "web3": [COMMON[0]],
        },
    )

    def which(*tests: str) -> tuple[str, ...]:
        return ask(database, lambda c: one_object.which_hosts(c, tests)).met.on

    assert which("package openssl", "unit nginx where active_state=active") == ("web1",)
    assert which("unit nginx.service") == ("web1", "web2", "web3")
    assert which("not package openssl") == ("web3",)
    assert which("package open*", "no unit fail2ban") == ("web2",)
    assert which("systemd/unit/nginx.service active_state=failed") == ("web2",)
    assert which("active_state=failed", "package bash") == ()
    with pytest.raises(InvalidArgs, match="names no kind"):
        which(" where ")


def test_a_mistyped_kind_or_name_is_refused(database: FleetDatabase) -> None:
    """Name close kinds for one that no host has, and never count it as absent everywhere."""
    history = History([])
    history.add(2_000_000, ("users", "account", "bob"), "gone", sentence="bob is gone")
    tell(database, {"web1": COMMON, "web2": COMMON[:3]}, histories={"web1": history})

    def changes(**asked: str) -> Any:
        return lambda c: fleet_changes.find_changes(c, **asked)

    def which(*tests: str) -> Any:
        return lambda c: one_object.which_hosts(c, tests)

    for question, said in (
        (changes(kind="pakage"), "no host has a kind pakage: did you mean package"),
        (changes(plugin="sysemd"), "no host has a plugin sysemd: did you mean systemd"),
        (lambda c: fleet_drift.find_drift(c, kind="Unit"), "no host has a kind Unit: did you mean"),
        (lambda c: compare(c, "web1", "web2", ["pakage"]), "kind or plugin pakage: did you mean"),
        (lambda c: fleet_search.search(c, "bash kind=pakage"), "no host has a kind pakage"),
        (lambda c: past_search.search_past(c, "kind=pakage", 1), "no host has a kind pakage"),
        (lambda c: fleet_search.search(c, "", where=parse("plugin=zz")), "there are packages, sys"),
        (
            which("not pakage bash"),
            "no host has an object pakage bash: did you mean package or bas",
        ),
        (which("pakage bash"), "did you mean package"),
        (which("not package bassh"), "no host has an object package bassh: did you mean bash"),
        (which("not package nginx*"), "no host has an object package nginx"),
    ):
        with pytest.raises(InvalidArgs, match=re.escape(said)):
            ask(database, question)
    # also what is in histories only
    assert len(ask(database, changes(kind="account", plugin="users")).changes) == 1
    assert ask(database, which("not package bash")).met.on == ("web2",)
    assert ask(database, which("package bassh")).met.on == ()


def test_an_object_is_shown_on_all_hosts(database: FleetDatabase) -> None:
    """Show the state that most hosts have, and where others differ."""
    tell(database, {"web1": COMMON, "web2": COMMON, "web3": [unit("nginx", "failed")]})
    answer = ask(database, lambda c: one_object.show(c, "nginx"))
    assert answer.object_id == ObjectId("systemd", "unit", "nginx.service")
    assert [state.hosts for state in answer.states] == [("web1", "web2"), ("web3",)]
    assert [each.field for each in answer.differing] == ["active_state"]
    with pytest.raises(UnknownObject, match="no host has an object zyx"):
        ask(database, lambda c: one_object.show(c, "zyx"))


def test_hosts_that_changed_since_a_cursor_are_named(database: FleetDatabase) -> None:
    """Name a host once after each change, also one whose transaction was open at the time."""
    tell(database, {"web1": COMMON, "web2": COMMON})
    every = ask(database, hosts_changed_since)
    assert every.hosts == ("web1", "web2")

    def since(cursor: str) -> tuple[tuple[str, ...], str]:
        return tuple(ask(database, lambda c: hosts_changed_since(c, cursor)))  # type: ignore[return-value]

    hosts, cursor = since(every.cursor)
    assert hosts == ()
    tell(database, {"web1": COMMON})  # the same again is no change
    hosts, cursor = since(cursor)
    assert hosts == ()
    tell(database, {"web2": [unit("nginx", "failed")]})
    hosts, _ = since(cursor)
    assert hosts == ("web2",)

    async def during(connection: Any) -> str:
        async with (
            postgres.connected(database.server.url, database.server.password) as other,
            other.transaction(),
        ):
            await other.execute("DELETE FROM opdbus.object WHERE name = 'bash'")
            return (await hosts_changed_since(connection)).cursor

    assert since(ask(database, during))[0] == ("web1", "web2")
    with pytest.raises(InvalidArgs, match="is no cursor"):
        since("yesterday")


def test_an_answer_says_how_old_each_part_is(database: FleetDatabase) -> None:
    """Tell the newest and the oldest part, hosts that fell silent, and those in conflict."""
    tell(database, {"web1": COMMON, "web2": COMMON, "web3": COMMON})
    database.add("new")
    database.fetch(
        "UPDATE opdbus.host SET current_at = now() - interval '2 days 1 hour',"
        " seen_at = now() - interval '2 days 1 hour', conflict = 'row 5' WHERE name = 'web2'"
    )
    hosts = ask(database, lambda c: find_hosts(c, Scope()))
    assert hosts.headline.startswith("4 hosts; newest ")
    assert hosts.headline.endswith("oldest 2 days (web2)")
    assert hosts.remarks == [
        "silent: new, web2",
        "not sent whole yet: new",
        "history in conflict: web2",
    ]
    # a host that has sent nothing lacks nothing
    answer = ask(database, lambda c: fleet_search.search(c, "nginx"))
    assert str(answer.hits[0].found.where) == "on all 3 hosts"


def test_a_reader_may_ask_everything(database: FleetDatabase) -> None:
    """Answer every question by a role that may only read."""
    tell(database, {f"web{n}": COMMON for n in range(3)})
    role = f"reader_{id(database)}"

    async def everything(connection: Any) -> None:
        await connection.execute(f"CREATE ROLE {role} IN ROLE opdbus_reader")
        await connection.execute(f"SET ROLE {role}")
        await fleet_search.search(connection, "ngnix active_state=active")
        await past_search.search_past(connection, "nginx", 1)
        await compare(connection, "web1", "web2")
        await peers.find_odd(connection)
        await peers.find_missing(connection)
        await fleet_changes.find_changes(connection, about="nginx")
        await fleet_drift.find_drift(connection)
        await one_object.show(connection, "nginx")
        await one_object.which_hosts(connection, ["package bash"])
        await hosts_changed_since(connection)

    ask(database, everything)


def test_edits_count_swapped_letters_once() -> None:
    """Count what one mistypes: a letter more, less, another one, or two swapped."""
    pairs = [("nginx", "nginx"), ("ngnix", "nginx"), ("sshd", "ssh"), ("abc", "cba"), ("", "ab")]
    assert [word_ranks.edits(*pair) for pair in pairs] == [0, 1, 1, 2, 2]


def test_commands_print_what_the_functions_return(
    database: FleetDatabase, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Print every answer for people and as JSON, with the age of each part, and the exit code."""
    from opdbus import cli

    cli.modules()
    from opdbus.cli.root import root

    rows = {f"web{n}": list(COMMON) for n in range(4)}
    rows["web3"] = [unit("nginx", "failed"), *COMMON[1:3]]
    history = History([])
    history.add(10**15, ("lab", "box", "x"), "event", sentence="nginx.service failed")
    drift = {
        "web1": [
            ["net", "interface", "lan0", "drift", "warning", 10, [["mtu", "1", "2", "warning"]]]
        ]
    }
    tell(database, rows, "web", histories={"web3": history}, drift=drift)
    password = tmp_path / "password"
    password.write_text(database.server.password)
    password.chmod(0o600)
    environment = {
        "OP_DBUS_FLEET_DATABASE": database.server.url,
        "OP_DBUS_FLEET_PASSWORD_FILE": str(password),
        "OP_DBUS_BUS": "unix:path=/nonexistent",
    }

    def run(*arguments: str) -> tuple[str, int]:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            code = root(["fleet", *arguments], standalone_mode=False)
        return capsys.readouterr().out, code or 0

    for command, said, code in (
        ("search ngnix", "systemd/unit/nginx.service", 0),
        ("search kafka", "4 hosts; newest", 12),
        ("search nginx --host web3", "1 host; its state is of", 0),
        ("search active_state=failed --at 2030-01-01", "", 2),
        ("show nginx", "active_state: active on web0, web1, web2; failed on web3", 0),
        ("which-hosts unit\x1fnginx", "on all 4 hosts", 0),
        ("compare web1 web3", "active_state: active / failed", 0),
        ("odd --tag web", "no package bash: 3 of 4 have it", 0),
        ("hosts --sort drift -n 1", "level\nweb1", 0),
        ("missing web3", "packages/package/bash on 3 of 4 hosts; not on web3", 0),
        ("changes", "x changed, and is as it was on 1 of 4 hosts: web3", 0),
        ("changes --about kafka", "4 hosts", 12),
        ("drift --severity notice", "mtu: 2, declared 1", 0),
    ):
        arguments = [part.replace("\x1f", " ") for part in command.split()]
        if code == 2:
            with pytest.raises(InvalidArgs, match="yet to come"):
                run(*arguments)
            continue
        text, got = run(*arguments)
        assert said in text, command
        assert got == code, command
        whole = json.loads(run(*arguments, "--json")[0])
        if arguments[0] == "hosts":
            assert len(text.splitlines()) == 2
            assert [host["name"] for host in whole] == ["web1", "web0", "web2", "web3"]
            continue
        assert len(whole["hosts"]["parts"]) in {1, 2, 4}, command


@pytest.mark.parametrize("text", ["\0", "a\0b", "\ud800 nginx", "'", '"', "%", "\\", "x" * 100_000])
def test_no_question_breaks_the_database(database: FleetDatabase, text: str) -> None:
    """Answer, or refuse in a sentence, whatever a text of a caller holds."""
    tell(database, {f"web{n}": COMMON for n in range(3)})

    async def everything(connection: Any) -> None:
        for asked in (text, f"nginx {text}", f"host:{text}", f"tag:{text}", f"active_state={text}"):
            with suppress(InvalidArgs):
                await fleet_search.search(connection, asked)
            await fleet_changes.find_changes(connection, about=asked.replace(":", " "))
            with suppress(InvalidArgs):
                await one_object.which_hosts(connection, [asked])
        for operator in ("=", "~", "!="):
            where = [Condition("active_state", operator, text), Condition("name", operator, text)]
            await fleet_search.search(connection, "", where=where)
        await past_search.search_past(connection, text, 1)
        with suppress(InvalidArgs):
            await compare(connection, "web1", "web2", [text])
        with pytest.raises(UnknownObject):
            await one_object.show(connection, text)

    ask(database, everything)
