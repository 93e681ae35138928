"""Words that name a kind of objects."""

import numpy as np
import pytest

from opdbus.index.query.query_terms import STOP_WORDS
from opdbus.index.ranking.scores import KIND_BOOST, Boosts, Similarity, kind_boosts, rank
from opdbus.language import kinds
from opdbus.language.kinds import RequestedKinds
from opdbus.state.object import ObjectId


@pytest.mark.parametrize(
    ("question", "object_id", "is_named"),
    [
        ("open ports", ("net", "listener", "tcp 0.0.0.0:22"), True),
        ("which file systems are full?", ("mounts", "mount", "/srv"), True),
        ("which file systems are full?", ("files", "file", "/etc/fstab"), False),
        ("configuration files", ("files", "file", "/etc/fstab"), True),
        ("unit files", ("files", "file", "/etc/systemd/system/a.service.d/b.conf"), True),
        ("unit files", ("files", "file", "/etc/fstab"), False),
        ("unit files", ("systemd", "unit", "a.service"), False),
        ("edited files", ("files", "file", "/etc/systemd/system/a.service"), True),
        ("services that failed", ("systemd", "unit", "a.service"), True),
        ("services that failed", ("systemd", "unit", "a.timer"), False),
        ("services that failed", ("systemd", "unit", "acme"), True),
        ("services that failed", ("systemd", "unit", "dev-sda1.device"), False),
        ("units that failed", ("systemd", "unit", "a.timer"), True),
        ("which version of it", ("packages", "package", "libc6:amd64"), True),
        ("how much memory", ("system", "fact", "hardware"), True),
        ("how much memory", ("system", "fact", "time"), False),
        ("did it run out of memory", ("system", "fact", "hardware"), False),
        ("who may manage the printers", ("users", "group", "lpadmin"), True),
        ("keeps the clock right", ("printers", "printer", "office"), False),
        ("which containers stopped", ("podman", "container", "shop"), True),
        ("a drive that ails", ("storage", "disk", "bay-1"), True),
        ("which jobs are overdue", ("backup", "nightly_job", "photos"), True),
        ("a drive that ails", ("vpn", "peer", "galway"), False),
        ("certificates that expired", ("tls", "certificate", "shop.example"), True),
    ],
)
def test_words_name_sorts_of_things(
    question: str, object_id: tuple[str, str, str], *, is_named: bool
) -> None:
    """A question names objects by words of their kind, the longest phrase counts."""
    of_object, _ = kinds.of_object(ObjectId(*object_id))
    assert bool(of_object & kinds.requested(question, STOP_WORDS).named) == is_named


@pytest.mark.parametrize(
    ("question", "object_id", "is_asked"),
    [
        ("which interfaces are there?", ("net", "interface", "eth0"), True),
        ("who is alice", ("users", "account", "alice"), True),
        ("show me the timers of backups", ("systemd", "unit", "a.timer"), True),
        ("what configures the interfaces?", ("net", "interface", "eth0"), False),
        ("creates accounts that packages need", ("users", "account", "alice"), False),
        ("which daemon sets the time zone", ("systemd", "unit", "a.service"), True),
        ("which daemon sets the time zone", ("system", "fact", "time"), False),
        ("can the wiki be reached", ("net", "listener", "tcp 0.0.0.0:80"), True),
        ("is there a way to see the timers", ("systemd", "unit", "a.timer"), False),
        ("when does it run", ("systemd", "unit", "a.timer"), True),
        ("which old backup timers are left", ("systemd", "unit", "a.timer"), True),
        ("which program has the port open", ("net", "listener", "tcp 0.0.0.0:80"), False),
        ("ssh port of this machine", ("net", "listener", "tcp 0.0.0.0:22"), True),
        ("second network card is dead", ("net", "interface", "eth1"), True),
        ("IPv6 address, the public one", ("net", "address", "2001:db8::1/64 on eth0"), True),
        ("voice chat of the children, which port?", ("net", "listener", "udp 0.0.0.0:64738"), True),
        ("who takes mail from others, and on which port", ("net", "listener", "tcp [::]:25"), True),
        ("files of this host which packages brought", ("packages", "package", "nginx"), False),
        ("port forwarding of the router", ("net", "listener", "tcp 0.0.0.0:22"), True),
        ("a library for port knocking", ("net", "listener", "tcp 0.0.0.0:22"), False),
        ("stork.service and its nest", ("systemd", "unit", "stork.service"), False),
        ("what configures interfaces", ("net", "interface", "eth0"), False),
    ],
)
def test_a_question_asks_for_some_of_the_sorts_that_it_names(
    question: str, object_id: tuple[str, str, str], *, is_asked: bool
) -> None:
    """A question asks for the kind that it begins with, or for one that `on which` asks for.

    That is the last noun of its first ones, unless it begins with a verb or `when`.
    """
    of_object, _ = kinds.of_object(ObjectId(*object_id))
    assert bool(of_object & kinds.requested(question, STOP_WORDS).subject) == is_asked


def test_a_sort_that_is_only_mentioned_is_not_raised() -> None:
    """What a question mentions loses nothing, and comes after what it asks for."""
    known, less = np.array([1, 2, 4]), np.full(3, 0.1, np.float32)
    more = kind_boosts(RequestedKinds(named=3, subject=1), known, less, None)
    assert more.tolist() == pytest.approx([KIND_BOOST, 0, -0.1])


def test_what_others_have_comes_after_them() -> None:
    """A group or a file loses a little where nobody asks for it, and only there."""
    service = kinds.of_object(ObjectId("systemd", "unit", "web.service"))
    group = kinds.of_object(ObjectId("users", "group", "web"))
    known, less = np.array([service[0], group[0]]), np.array([service[1], group[1]], np.float32)
    nobody = kind_boosts(kinds.requested("the web", STOP_WORDS), known, less, None)
    assert nobody[0] == 0 > nobody[1]
    assert kind_boosts(kinds.requested("group of the web", STOP_WORDS), known, less, None)[1] > 0


def test_the_rare_value_of_the_sort_comes_first() -> None:
    """What is of the kind and has the value that a question names comes before both others."""
    known, less = np.array([1, 1, 0]), np.zeros(3, np.float32)
    values = np.array([0.9, 0, 0.9], np.float32)
    boost = Boosts(values, kind_boosts(RequestedKinds(1, 1), known, less, values))
    similarity = Similarity(np.array([0.3, 0.3, 0.5], np.float32))
    assert next(rank(similarity, np.zeros(3, np.float32), boost))[0] == 0
    assert kind_boosts(RequestedKinds(1, 1), known, less, None).tolist() == pytest.approx(
        [KIND_BOOST] * 2 + [0]
    )


def test_the_table_fits() -> None:
    """Keep one bit for each row, in a signed number of 64."""
    assert len(kinds.rows()) <= 63
