"""What is unlike its kind: planted objects are found with the field that makes them odd."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from harness import value_host
from harness.house import House, observed, unit

from opdbus.bus.service.insight_rows import outliers as on_bus
from opdbus.cli.show_insight import describe_outlier
from opdbus.errors import InvalidArgs
from opdbus.index.search.hits import SearchRequest
from opdbus.insight import field_reading
from opdbus.insight.clustering import normalize
from opdbus.insight.kind_survey import LEAST, Lonely, Odd, Survey, lonely, outliers
from opdbus.state.object import Identity, ObjectId, StateObject
from opdbus.state.secret_text import REDACTED

NEVER: dict[int, Lonely] = {}


def odd(objects: dict[str, dict[str, Any]]) -> Sequence[Odd]:
    """Give what is odd among units with these fields."""
    survey = Survey()
    for name, properties in objects.items():
        survey.add(ObjectId("systemd", "unit", name), properties)
    return outliers(survey, NEVER)


def alike(count: int = 40, **more: Any) -> dict[str, dict[str, Any]]:
    """Make services that differ in what is their own only."""
    return {
        f"svc{n}.service": {
            "user": "nobody" if n % 2 else "daemon",
            "enabled": True,
            "description": f"number {n}",
            "main_pid": 1000 + n,
            "fragment_path": f"/lib/systemd/system/svc{n}.service",
            "cpus": n,
            **more,
        }
        for n in range(count)
    }


def test_nothing_is_odd_where_all_agree() -> None:
    """Names, descriptions, what moves by itself and values that all differ make nothing odd."""
    assert odd(alike()) == odd(alike(password=REDACTED)) == odd({}) == []
    assert odd(dict(list((alike() | {"x.service": {"user": "root"}}).items())[-LEAST + 1 :])) == []


@pytest.mark.parametrize(
    ("change", "field", "said"),
    [
        ({"user": "root"}, "user", "runs as root, 20 of 39 others run as daemon, 19 nobody"),
        ({"enabled": False}, "enabled", "is not enabled, 39 of 39 others are"),
        ({"enabled": None}, "enabled", "has no enabled, 39 of 39 others have"),
        ({"masked": True}, "masked", "is masked, 39 of 39 others are not"),
        ({"exit_status": 23}, "exit_status", "has exit status 23, 39 of 39 others have none"),
        ({"enabled": "once"}, "enabled", "enabled is once, 39 of 39 others have yes"),
        ({"need_reload": True}, "need_reload", "needs reload, 39 of 39 others do not"),
        (
            {"fragment_path": "/run/x"},
            "fragment_path",
            "fragment path is /run/x, 39 of 39 others have /lib/systemd/system/*.service",
        ),
    ],
)
def test_a_planted_value_is_found(change: dict[str, Any], field: str, said: str) -> None:
    """One object with another value than all others is odd by that field alone, in plain words."""
    objects = alike()
    objects["svc3.service"] |= change
    (found,) = odd(objects)
    assert (found.object_id.name, found.objects) == ("svc3.service", 40)
    assert [quirk.field for quirk in found.quirks] == [field]
    assert describe_outlier(_details(found)) == said


def stand_out(plugin: str, kind: str, objects: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Give what stands out of a kind, and how it is said."""
    survey = Survey()
    for name, properties in objects.items():
        survey.add(ObjectId(plugin, kind, name), properties)
    return {o.object_id.name: describe_outlier(_details(o)) for o in outliers(survey, NEVER)}


@pytest.mark.parametrize("count", [2, 40])
@pytest.mark.parametrize("name", ["toor", "backup-admin", "support"])
def test_a_second_superuser_stands_out(count: int, name: str) -> None:
    """Any account of uid 0 beside root stands out, by any name and of few."""
    accounts = {f"u{n}": {"uid": 1000 + n, "group": f"u{n}"} for n in range(count)}
    accounts["root"] = {"uid": 0, "group": "root"}
    assert stand_out("users", "account", accounts) == {}
    accounts[name] = {"uid": 0, "group": "root"}
    said = stand_out("users", "account", accounts)
    assert list(said) == [name]
    assert said[name].startswith(f"is a superuser, {count} of {count + 1} others are no superuser")


@pytest.mark.parametrize(
    ("unit", "user", "is_odd"),
    [
        ("session-3.scope", "bob", True),
        ("user@1003.service", "bob", True),
        ("session-c1.scope", "root", True),
        ("", "bob", True),
        ("", "root", False),
        ("gitea.service", "git", False),
        ("docker-0af3.scope", "root", False),
        ("ssh.socket", "root", False),
    ],
)
def test_a_port_that_no_service_opened_stands_out(unit: str, user: str, *, is_odd: bool) -> None:
    """A port stands out that a person's process opened, not one of a service or of the kernel."""
    ports = {f"tcp 0.0.0.0:{n}": {"unit": f"a{n}.service", "user": "root"} for n in range(3)}
    ports["tcp 0.0.0.0:4444"] = {"unit": unit, "user": user}
    said = stand_out("net", "listener", ports)
    assert list(said) == ["tcp 0.0.0.0:4444"] * is_odd
    assert all(f"was opened by a person, {user}, 3 of 3" in text for text in said.values())
    # where no port has a unit, the kernel does not say which
    unknown = {name: {"user": "www-data"} for name in ports}
    assert stand_out("net", "listener", unknown) == {}
    # root's own may be the kernel's: they are no sign that units are known
    unknown["tcp 0.0.0.0:0"] = {"user": "root"}
    assert stand_out("net", "listener", unknown) == {}


@pytest.mark.parametrize(
    ("account", "is_odd"),
    [
        ({"uid": 110, "system": True}, False),
        ({"uid": 110}, False),
        ({"uid": 61184, "system": True}, False),
        ({"uid": 1001, "system": False}, True),
    ],
)
def test_an_account_of_the_system_is_no_person(
    live: Callable[..., Any], account: dict[str, Any], *, is_odd: bool
) -> None:
    """A port without a unit of a system account, by its number or its mark, is no person's."""

    async def work(made: House) -> None:
        units: list[dict[str, Any]] = [{"unit": f"a{n}.service", "user": "root"} for n in range(3)]
        ports = [*units, {"user": "postgres"}]
        of_ports = [
            StateObject(Identity("publish:test", "net", "listener", f"tcp 0.0.0.0:{n}"), port)
            for n, port in enumerate(ports)
        ]
        identity = Identity("publish:test", "users", "account", "postgres")
        await made.publish(*of_ports, StateObject(identity, account))
        wanted = {"plugin": "net"}
        (survey,) = await field_reading.surveys(made.memory, wanted, _at_once)
        assert bool(survey.faults()) is is_odd

    live(work, engine=False)


async def _at_once(work: Callable[[], None]) -> None:
    work()


def test_names_and_long_values_are_json_as_well() -> None:
    """A name is put for itself in texts only, and long values end early: each is valid JSON."""
    objects = {
        f'a"{n}@{1000 + n}.service': {"uid": n, "path": f'/x/a"{n}@{1000 + n}', "l": ["y" * 300]}
        for n in range(1000, 1040)
    }
    changed = {"path": f'/y/a"1003@2003/{"x" * 300}', "l": ["z" * 300, "z"], "uid": 2003}
    objects['a"1003@2003.service'] |= changed
    (found,) = odd(objects)
    values = {quirk.field: json.loads(quirk.value) for quirk in found.quirks}
    assert values["path"].startswith('/y/a"1003@2003/xxx')
    assert values["l"].startswith("zzz")
    assert {q.field: json.loads(q.usual[0][0])[:4] for q in found.quirks} == {
        "path": "/x/*",
        "l": "yyyy",
    }
    assert describe_outlier(_details(found)).startswith("l is zzz")


def test_what_several_have_alike_is_not_odd() -> None:
    """A tenth of a kind is a part of it; what is odd in its own way is odd, the worst first."""
    objects = alike()
    for n in range(4):
        objects[f"svc{n}.service"] |= {"user": "root"}
    assert odd(objects) == []
    objects = alike()
    objects["svc5.service"] |= {"masked": True}
    objects["svc6.service"] |= {"enabled": False, "type": "notify"}
    assert [found.object_id.name for found in odd(objects)] == ["svc6.service", "svc5.service"]


def test_what_says_the_same_is_told_once() -> None:
    """Fields that say the same of the same objects are one reason, others are several."""
    objects = alike(state="active", sub="running")
    objects["svc3.service"] |= {"state": "failed", "sub": "failed", "failed": True, "type": "x"}
    (found,) = odd(objects)
    assert [quirk.field for quirk in found.quirks] == ["type", "failed"]


def test_a_text_like_no_other_is_told_with_the_nearest() -> None:
    """The fields that are worst are told, how many more there are, and how far the text is."""
    fields = [(f"f{n}", f'"{n}"', 1, [('"no"', 30), ("", 9)]) for n in range(4)]
    far = {"distance": 0.6, "usual_distance": 0.3, "nearest": "/org/opdbus/state/t/t/b"}
    said = describe_outlier({"objects": 40, "fields": fields, **far})
    assert said == (
        'f0 is 0, 30 of 39 others have "no", 9 none; f1 is 1, 30 of 39 others have "no", 9 none; f2'
        ' is 2, 30 of 39 others have "no", 9 none; its text is 0.60 from the nearest, b, where'
        " two are usually 0.30 apart; and 1 more field"
    )


def _details(found: Odd) -> dict[str, Any]:
    """Give what the bus gives of an outlier."""
    fields = [(q.field, q.value, q.having, q.usual) for q in found.quirks]
    return {"objects": found.objects, "fields": fields}


def test_a_text_like_no_other_is_found() -> None:
    """A vector is lonely that is further from its nearest than two others are from each other."""
    random = np.random.default_rng(3)
    near = random.normal(size=16) + random.normal(scale=0.2, size=(1500, 16))
    vectors = normalize(near.astype(np.float32))
    assert lonely(1500, lambda rows: vectors[rows]) == {}
    vectors[700] = -vectors[700]
    assert set(lonely(1500, lambda rows: vectors[rows])) == {700}
    assert lonely(1, lambda rows: vectors[rows]) == {}
    # of a large kind few are looked at: another one like it is found nevertheless
    vectors[9] = vectors[700]
    assert lonely(1500, lambda rows: vectors[rows]) == {}


def test_outliers_of_a_memory(live: Callable[..., Any]) -> None:
    """What is observed counts before what is declared; filters choose what is shown."""

    async def work(made: House) -> None:
        properties = {"user": "nobody", "enabled": True}
        names = [f"mail {n}" for n in range(12)]
        await made.publish(*(observed(name, "mail", **properties) for name in names))
        await made.publish(observed("mail 3", "mail", user="root", enabled=True))
        # declared as the others are, and so not odd by what is declared
        declared = {"mail 3": {"user": "nobody"}, "mail 4": {"user": "x", "ensure": "present"}}
        await made.declare(*(unit(name, "post", **fields) for name, fields in declared.items()))
        await made.vectorized()

        async def ask(**options: Any) -> list[str]:
            return [path for path, *_ in await on_bus(made.insight, made.memory, 9, options)]

        (found,) = await made.insight.outliers(SearchRequest(9))
        assert found.object_id.name == "mail 3"
        (quirk,) = found.quirks
        assert (json.loads(quirk.value), quirk.having) == ("root", 1)
        assert quirk.usual == (('"nobody"', 11),)
        assert len(await ask()) == len(await ask(kind="unit", where="user=root")) == 1
        assert await ask(where="user=nobody") == await ask(offset=1) == []
        for wrong in ({"plugin": "nowhere"}, {"mode": "hybrid"}, {"where": "x"}):
            with pytest.raises(InvalidArgs):
                await ask(**wrong)
        await made.publish(observed("mail 3", "mail", **properties))
        assert await ask() == []

    live(work)


PLANTED = {
    "users/account/toor": {"uid": 0, "gid": 0, "shell": "/bin/bash", "home": "/root"},
    "users/account/metrics": {"uid": 990, "system": True, "administrator": True},
    "net/listener/tcp 0.0.0.0:4444": {"unit": "session-7.scope", "user": "bob", "port": 4444},
    "files/file//etc/cron.d/everyone": {"mode": "0666", "description": "configuration"},
    "files/file//etc/profile.d/helper": {"mode": "4755", "description": "configuration"},
}
# What is so in the data of the host: one service loops, one ran out of time, one package is on hold
# and one is half configured.
AS_IT_IS = {
    "systemd/unit/influxdb.service",
    "systemd/unit/restic-backup.service",
    "packages/package/linux-image-6.1.0-35-amd64",
    "packages/package/php8.2-fpm",
}


@pytest.mark.parametrize("is_planted", [True, False])
def test_only_what_stands_out_of_a_host_is_odd(
    live: Callable[..., Any], *, is_planted: bool
) -> None:
    """Of 400 ordinary objects, list those that somebody made dangerous first, and few others."""

    async def work(made: House) -> None:
        await made.publish(*value_host.objects())
        for name, fields in PLANTED.items() if is_planted else ():
            await made.publish(StateObject(Identity("live:test", *name.split("/", 2)), fields))
        found = ["/".join(odd.object_id) for odd in await made.insight.outliers(SearchRequest(99))]
        count = len(PLANTED) * is_planted
        assert set(found[:count]) == (set(PLANTED) if is_planted else set())
        assert set(found[count:]) == AS_IT_IS

    live(work, settings={"vector_level": "none"}, engine=False)


@pytest.mark.parametrize(
    ("name", "fields", "is_odd"),
    [
        ("packages/package/p1", {"section": "oddities"}, False),
        ("packages/package/p1", {"status": "half-installed"}, True),
        ("users/group/p1", {"members": ["x"]}, False),
        ("systemd/unit/p1.service", {"package": "p1", "slice": "own.slice"}, False),
        ("systemd/unit/p1.service", {"package": "p1", "masked": True}, True),
        ("systemd/unit/p1.service", {"slice": "own.slice"}, True),
        ("systemd/unit/p1.slice", {"slice": "own.slice"}, False),
        ("files/file//etc/p1", {"package": "p1", "mode": "0440"}, False),
        ("files/file//etc/p1", {"mode": "0440"}, True),
        ("files/file//etc/p1", {"package": "p1", "missing": True}, True),
    ],
)
def test_what_the_distribution_brings_is_odd_by_its_state_alone(
    name: str, fields: dict[str, Any], *, is_odd: bool
) -> None:
    """No unusual field of an object of a package, or of the system, is news, but how it is now."""
    plugin, kind, last = name.split("/", 2)
    usual = {key: "usual" for key in fields if key != "package"}
    objects = {f"{last[:-1]}{n}": usual for n in range(40)}
    said = stand_out(plugin, kind, {**objects, last: {**usual, **fields}})
    assert list(said) == [last] * is_odd


def test_without_a_model_fields_alone_count(live: Callable[..., Any]) -> None:
    """Find what is odd by its fields at level none, too."""

    async def work(made: House) -> None:
        names = [f"mail {n}" for n in range(12)]
        await made.publish(*(observed(name, "mail", enabled=name != "mail 5") for name in names))
        assert [odd.object_id.name for odd in await made.insight.outliers(SearchRequest(9))] == [
            "mail 5"
        ]

    live(work, settings={"vector_level": "none"}, engine=False)
