"""Questions of state over all hosts: answered by values, with the hosts that say yes and no."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from harness.told_hosts import ask, tell, thing, unit

from opdbus.fleet.questions import fleet_search

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from harness.fleets import FleetDatabase

    from opdbus.fleet.uplink import StateRow


def account(name: str, **fields: Any) -> StateRow:
    """Return an account's row."""
    return thing("account", name, fields, plugin="users", text=f"user account {name}")


STATES = {
    "nas": [
        unit("cron", masked=True, unit_file_state="masked", load_state="masked"),
        unit("nginx", "failed"),
        account("root", administrator=True),
        account("bob", administrator=True),
    ],
    "pub1": [
        unit("cron", unit_file_state="enabled", masked=False),
        unit("nginx", sub_state="running"),
        account("root", administrator=True),
        account("bob", administrator=False),
        thing("group", "sudo", {"members": ["bob", "eve"]}, plugin="users"),
    ],
    "pub2": [
        unit("cron", unit_file_state="enabled", masked=False),
        unit("mail", "failed"),
        account("root", administrator=True),
    ],
}


@pytest.fixture(scope="module")
def told(database_server: FleetDatabase) -> Iterator[FleetDatabase]:
    """Give a database with the hosts of STATES, which tests only ask."""
    from harness.fleets import another_database

    with another_database(database_server, 900) as found:
        tell(found, {"nas": STATES["nas"]}, "nas")
        tell(found, {name: STATES[name] for name in ("pub1", "pub2")}, "pub")
        yield found


@pytest.mark.parametrize(
    ("question", "verdict", "found"),
    [
        ("is cron masked?", "yes on nas; no on pub1, pub2", {"cron.service": 3}),
        ("isn't cron masked", "yes on nas; no on pub1, pub2", {"cron.service": 3}),
        ("is cron not masked", "yes on pub1, pub2; no on nas", {"cron.service": 3}),
        ("on which hosts is cron masked?", "yes on nas; no on pub1, pub2", {"cron.service": 1}),
        (
            "which hosts run nginx",
            "yes on pub1; no on nas; not there on pub2",
            {"nginx.service": 1},
        ),
        ("is mail enabled", "", None),
        ("is bob in the group sudo", "yes on pub1; not there on nas, pub2", {"sudo": 1}),
        ("does bob exist", "yes on nas, pub1; not there on pub2", {"bob": 2}),
        ("does root exist", "yes on all 3 hosts", {"root": 3}),
        ("who may become root?", "", {"root": 3, "bob": 1, "sudo": 1}),
        ("failed units", "", {"nginx.service": 1, "mail.service": 1}),
        ("which hosts have failed units", "", {"nginx.service": 1, "mail.service": 1}),
        ("failed units tag:pub", "", {"mail.service": 1}),
        ("which services are masked", "", {"cron.service": 1}),
        # no host has such a service, and all have the field
        ("which services are deactivating", "", {}),
    ],
)
def test_questions_of_state_are_answered_by_their_values(
    told: FleetDatabase, question: str, verdict: str, found: Mapping[str, int] | None
) -> None:
    """Answer with every object that is so, and say which hosts say yes and which say no."""
    answer = ask(told, lambda c: fleet_search.search(c, question))
    assert answer.verdict == verdict
    if found is None:  # words decide
        return
    assert {hit.found.object_id.name: len(hit.found.where.on) for hit in answer.hits} == found
    assert answer.total == len(found)
