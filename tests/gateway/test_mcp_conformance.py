"""Conformance tests of MCP against the fixture server on our route, guard and subscriptions."""

import pytest
from harness import conformance

pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(bool(conformance.why_missing()), reason=conformance.why_missing() or "-"),
]
# Scenarios that have to run at least, of each revision.
LEAST = {"2026-07-28": 20, "2025-11-25": 22}


@pytest.mark.parametrize("revision", conformance.REVISIONS)
def test_revision_is_met(revision: str) -> None:
    """Pass every check of what op-dbus offers, in both eras."""
    scenarios = {
        name: checks
        for name, checks in conformance.run(revision).items()
        if not conformance.reason_of(name)
    }
    failed = {
        name: wrong
        for name, checks in scenarios.items()
        if (wrong := set(checks.get("failure", ())) - conformance.CHECKS_NOT_OFFERED)
    }
    assert failed == {}
    assert sum("success" in checks for checks in scenarios.values()) >= LEAST[revision]
