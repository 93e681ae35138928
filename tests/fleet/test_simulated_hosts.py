"""Simulated hosts share most of their objects, and differ as real hosts do."""

import json
import sys
from collections import Counter

from conftest import ROOT

sys.path.append(str(ROOT / ".ci"))
import simulated_hosts


def test_hosts_share_what_they_should() -> None:
    """Make the same hosts each time: most objects shared, some of each host's own, few drifted."""
    shared = simulated_hosts.shared_objects(400)
    hosts = [[t.body() for t in simulated_hosts.host_objects(shared, n)] for n in range(20)]
    assert hosts[3] == [t.body() for t in simulated_hosts.host_objects(shared, 3)]
    for bodies in hosts:
        names = {(b["plugin"], b["kind"], b["name"]) for b in map(json.loads, bodies)}
        assert len(names) == len(bodies)
    held = Counter(body for bodies in hosts for body in bodies)
    usual = sum(count for count in held.values() if count > 10)
    assert 0.8 < usual / sum(held.values()) < 0.86
    exported = simulated_hosts.read_exported(hosts[0])
    assert [each.body() for each in exported] == hosts[0]
    assert [each._replace(state="").body() for each in exported] == hosts[0]
