"""Lists that are declared: compared whole, but for what the documentation lists."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from harness.account_files import GROUP, PASSWD, Files
from harness.drifting import checking
from harness.observing import history, observed

from opdbus.drift import network_values, rule_table, word_values
from opdbus.drift.field_comparison import compare
from opdbus.drift.rule_table import AT_LEAST, IN_ORDER, ROWS, WHOLE, Row, Rule
from opdbus.drift.tracker import Tracker
from opdbus.drift.transition_filter import DriftState, DriftTransition
from opdbus.index.state_store.state_file_loader import StateFileLoader
from opdbus.platform.tasks import cancel, start
from opdbus.wording import change_words
from opdbus.wording.drift_words import describe_row

# What one word says of an object, such as whether it runs: no lists.
ONE_WORD = {
    *(
        word_values.state,
        word_values.enabled,
        word_values.masked,
        word_values.program,
        word_values.installed,
        word_values.version,
    ),
    *(
        word_values.source,
        word_values.filesystem,
        word_values.schedule,
        word_values.spelled,
        network_values.kind,
    ),
    network_values.controller,
}
LISTS = [
    (row, rule)
    for row in ROWS
    for rule in dict.fromkeys(row.rules.values())
    if rule.observed and rule.means not in ONE_WORD
]
GENERIC = Rule("things", "things", word_values.equal)


def _named(case: tuple[Row, Rule]) -> str:
    row, rule = case
    return f"{'/'.join(row.observed)} {rule.keys.split()[0]}"


def _differs(row: Row, rule: Rule, declared: list[Any], seen: list[Any]) -> bool:
    keys = rule.keys.split()[0].split(".")
    wanted: Any = declared
    for key in reversed(keys):
        wanted = {key: wanted}
    return bool(compare(row, wanted, {rule.observed.split()[0]: seen, "group": "x"}))


@pytest.mark.parametrize(
    "case", [*LISTS, (rule_table.of_declared(("a", "b")), GENERIC)], ids=_named
)
def test_one_element_more_or_less_is_drift(case: tuple[Row, Rule]) -> None:
    """A list differs by an element more and by one less, unless its row says `at least these`."""
    row, rule = case
    # words that mean something where options are compared
    one, other = ("ro", "noexec") if rule.lists == AT_LEAST else ("a", "b")
    assert not _differs(row, rule, [one, other], [one, other])
    assert _differs(row, rule, [other, one], [one, other]) is (rule.lists == IN_ORDER)
    assert _differs(row, rule, [one, other], [one])
    assert _differs(row, rule, [one], [one, other]) is (rule.lists != AT_LEAST)


def test_lists_of_an_interface_are_whole() -> None:
    """Addresses, routers and ports of an interface differ by one more as by one less."""
    row = rule_table.of_declared(("net", "interface"))
    route = {"family": "ipv4", "gateway": "192.0.2.1"}
    more = {"family": "ipv4", "gateway": "192.0.2.2"}
    cases: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
        ({"addresses": ["192.0.2.9/24"]}, {"addresses": ["192.0.2.9/24", "192.0.2.8/24"]}),
        ({"addresses": ["192.0.2.9/24", "192.0.2.8/24"]}, {"addresses": ["192.0.2.9/24"]}),
        ({"gateway": "192.0.2.1"}, {"default_routes": [route, more]}),
        ({"gateway": ["192.0.2.1", "192.0.2.2"]}, {"default_routes": [route]}),
        ({"ports": ["e0"]}, {"members": ["e0", "e1"]}),
        ({"ports": ["e0", "e1"]}, {"members": ["e0"]}),
    )
    for declared, seen in cases:
        assert compare(row, declared, {"addresses": [], **seen}), declared
    assert not compare(row, {"gateway": "192.0.2.1"}, {"addresses": [], "default_routes": [route]})


def _documented() -> Iterator[tuple[str, ...]]:
    text = (ROOT / "docs" / "drift.md").read_text()
    part = text.partition("| list of |")[2].partition("\n\n")[0]
    for line in part.splitlines()[2:]:
        yield tuple(cell.strip() for cell in line.strip("|").split("|"))


def test_the_documentation_lists_what_is_not_compared_whole() -> None:
    """The documentation and the command have the same exceptions as the table."""
    others = {
        (row.observed, name, rule.lists)
        for row in ROWS
        for name, rule in row.rules.items()
        if rule.lists != WHOLE
    }
    said = {(f"`{name}` of `{'/'.join(kind_id)}`", how) for kind_id, name, how in others}
    assert set(_documented()) == said
    least = {(*kind_id, name) for kind_id, name, how in others if how == AT_LEAST}
    assert least == change_words.AT_LEAST


def test_an_account_may_declare_its_first_group() -> None:
    """An account is as declared with its first group among the others and without it."""
    row = rule_table.of_declared(("users", "account"))
    seen = {"group": "mira", "groups": ["adm", "sudo"]}
    assert not compare(row, {"groups": ["sudo", "adm"]}, seen)
    assert not compare(row, {"groups": "mira,sudo,adm"}, seen)
    for declared in (["sudo"], ["adm", "sudo", "lp"], ["mira"], []):
        assert [one.name for one in compare(row, {"groups": declared}, seen)] == ["groups"]


@pytest.mark.parametrize("name", ["options", "properties.options"])
def test_drift_says_where_more_is_allowed(name: str) -> None:
    """The messages of drift and history about a list that is compared in part say so."""
    fields = [(name, '["ro"]', '"rw"', "warning")]
    row = ("/org/opdbus/state/mounts/mount/_2fsrv", "drift", "warning", 0, 0.0, fields)
    assert list(describe_row(("mounts", "mount", "/srv"), row)) == [
        ("warning", f"mount /srv: {name} declared at least ro, observed rw")
    ]
    change = {"plugin": "mounts", "kind": "mount", "name": "/srv", "what": "drift", "cause": ""}
    path = name.split(".")
    sides = [_wire(path, [], ["rw"]), _wire(["declared", *path], [], [["ro"]])]
    text = str(change_words.describe_change({**change, "source": "file", "fields": sides}))
    assert text == f"mount /srv is other than declared: {name} is rw, declared at least ro"


SUDO = {"users": {"groups": [{"name": "sudo", "members": ["mira"]}]}}


def _by_name(drifted: DriftState | None) -> dict[str, Any]:
    return {one.name: one.observed for one in drifted.fields} if drifted else {}


def _told(folder: Path, kind: str, name: str) -> list[str]:
    """Say what history has of the drift of an object."""
    found = [r for r in history(folder) if (r["kind"], r["name"]) == (kind, name)]
    rows = [row for row in found if row["what"] in {"drift", "healed", "undeclared"}]
    return [
        str(change_words.describe_change({**row, "fields": [_wire(*one) for one in row["fields"]]}))
        for row in rows
    ]


def _wire(path: list[str], before: list[Any], after: list[Any]) -> tuple[str, str, str]:
    return (".".join(path), *(json.dumps(side[0]) if side else "" for side in (before, after)))


async def test_an_additional_administrator_is_drift(tmp_path: Path) -> None:
    """A member more than is declared drifts, and history has what was observed, and no more."""
    files, path = Files(tmp_path / "etc"), tmp_path / "state.json"
    account = {"accounts": [{"name": "theo", "groups": ["video"]}]}
    plugins = {"users": {**SUDO["users"], **account}}
    path.write_text(json.dumps({"version": 1, "plugins": plugins}))
    files.write(files.users.group, GROUP.replace("sudo:x:27:mira", "sudo:x:27:theo,mira"))
    async with observed(tmp_path, files.observer) as host:
        shown: dict[str, dict[str, Any]] = {}

        def take(transition: DriftTransition) -> None:
            shown["/".join(transition.object_id)] = _by_name(transition.after)

        async def until_drifted(**expected: dict[str, Any]) -> None:
            wanted = {f"users/{name.replace('_', '/')}": one for name, one in expected.items()}
            await host.until(lambda: shown == wanted)

        # long after the boot
        tracker = Tracker(host.memory, take, lambda: 1e6 + asyncio.get_running_loop().time())
        hear = host.memory.notify
        host.memory.notify = lambda event: (hear(event), tracker.on_event(event))[0]
        tasks: set[Any] = set()
        start(tracker.run(), tasks)
        await StateFileLoader(path, host.memory).load()
        theo = {"groups": ["sudo", "video"]}
        await until_drifted(group_sudo={"members": ["mira", "theo"]}, account_theo=theo)
        # another one leaves, and the declared member stays: nobody comes
        files.write(files.users.group, GROUP)
        await until_drifted(group_sudo={}, account_theo={})
        # whose first group it is belongs to it as well
        files.write(files.users.passwd, f"{PASSWD}eve:x:1009:27::/home/eve:/bin/bash\n")
        await until_drifted(group_sudo={"members": ["eve", "mira"]}, account_theo={})
        await cancel(tasks)
    first, healed, again = _told(tmp_path, "group", "sudo")
    assert first == "group sudo is other than declared: members +theo"
    assert healed == "group sudo is as declared again: members -theo"
    assert again == "group sudo is other than declared: members +eve"
    # what is declared is no value before
    fields = [row["fields"] for row in history(tmp_path) if row["what"] == "drift"][-1]
    assert fields == [
        [["members"], [["mira"]], [["eve", "mira"]]],
        [["declared", "members"], [], [["mira"]]],
    ]


async def test_what_a_program_publishes_is_compared_whole(tmp_path: Path) -> None:
    """Lists of kinds that no row knows differ by an element more, in objects and in lists."""
    async with checking(tmp_path) as checked:
        pool = {"name": "main", "hosts": ["a"], "acl": {"users": ["x"]}}
        await checked.declare({"proxy": {"pools": [pool]}}, tmp_path)
        seen = {"hosts": ["b", "a"], "acl": {"users": ["x", "root"]}}
        await checked.observe({"proxy/pool/main": seen}, ["proxy/pool"])
        await checked.until(1010.0)
        assert {name for name, *_ in checked.fields["proxy/pool/main"]} == {"hosts", "acl.users"}
