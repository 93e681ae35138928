"""Simulated hosts share most of their objects, and differ as real hosts do."""

import json
from collections import Counter

from opdbus.bench import simulated_hosts


def test_hosts_share_what_they_should() -> None:
    """Make the same hosts each time: most objects shared, some of each host's own, few drifted."""
    shared = simulated_hosts.shared_things(400)
    hosts = [[t.body() for t in simulated_hosts.host_things(shared, n)] for n in range(20)]
    assert hosts[3] == [t.body() for t in simulated_hosts.host_things(shared, 3)]
    for bodies in hosts:
        names = {(b["plugin"], b["kind"], b["name"]) for b in map(json.loads, bodies)}
        assert len(names) == len(bodies)
    held = Counter(body for bodies in hosts for body in bodies)
    usual = sum(count for count in held.values() if count > 10)
    assert 0.8 < usual / sum(held.values()) < 0.86
    lines = [f"[1]\t{body}\n" for body in hosts[0]]
    assert [thing.body() for thing in simulated_hosts.exported_things(lines)] == hosts[0]
