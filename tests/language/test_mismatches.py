"""What is no answer: our own units, other kinds, other values, other names."""

from pathlib import Path

import pytest
from harness.house import search_words
from test_matching import run

from opdbus.index.query import question_patterns
from opdbus.index.ranking.scores import Mismatch
from opdbus.index.search import hit_features
from opdbus.index.search.hits import SearchRequest
from opdbus.index.state_store.state_store import StateStore
from opdbus.state.object import Identity, Json, StateObject

OWN = "op-dbus-containers.service"


def _host() -> list[StateObject]:
    def unit(name: str, **fields: Json) -> StateObject:
        return StateObject(Identity("live:systemd", "systemd", "unit", name), fields)

    def other(plugin: str, name: str, **fields: Json) -> StateObject:
        identity = Identity(f"live:{plugin}", plugin, plugin.removesuffix("s"), name)
        return StateObject(identity, fields)

    failed = {"active_state": "failed", "sub_state": "failed"}
    stopped = {"active_state": "inactive", "sub_state": "dead"}
    runs = {"active_state": "active", "sub_state": "running"}
    return [
        unit(OWN, description="containers of podman, docker and incus", **failed),
        unit("apache2.service", description="The Apache HTTP Server", **runs),
        unit("zookeeper.service", description="Apache ZooKeeper server", **runs),
        unit("mariadb.service", description="MariaDB database", aliases=["mysql.service"], **runs),
        unit("nginx.service", description="web server", **failed),
        unit("printer.target", description="Printer Support", active_state="active"),
        unit("bluetooth.target", description="Bluetooth Support", active_state="active"),
        unit("systemd-poweroff.service", description="shuts a server down", **stopped),
        other("packages", "nginx", description="web server", status="installed"),
        other(
            "packages", "kubectl", description="Kubernetes command line client", status="installed"
        ),
        other("packages", "half", description="a tool", status="half-configured"),
        other("packages", "apt", description="commandline package manager", status="installed"),
        other(
            "files",
            "/etc/ucf.conf",
            description="changes of config files someone made",
            modified=False,
        ),
        other("files", "/etc/motd", description="greeting", modified=True),
    ]


def _search(folder: Path, question: str) -> list[str]:
    """Search by words; return the names of the hits."""
    return [hit.object_id.name for hit in search_words(folder, _host(), question)]


@pytest.mark.parametrize(
    ("question", "is_found"),
    [
        ("is docker installed?", False),
        ("docker containers", False),
        ("what runs podman", False),
        ("op-dbus containers", True),
        ("is opdbus containers running", True),
        ("which services failed", True),
    ],
)
def test_our_own_units_answer_for_no_other(
    tmp_path: Path, question: str, *, is_found: bool
) -> None:
    """List a unit of ours only where a question names us, or names nothing but values."""
    assert (OWN in _search(tmp_path, question)) == is_found


@pytest.mark.parametrize(
    ("question", "name", "is_found"),
    [
        ("is the printer out of paper?", "printer.target", False),
        ("does the printer have toner", "printer.target", False),
        ("is a bluetooth headset connected?", "bluetooth.target", False),
        ("has bluetooth failed?", "bluetooth.target", False),
        ("is printer.target active?", "printer.target", True),
        ("is the bluetooth target active?", "bluetooth.target", True),
        ("printer support", "printer.target", True),
    ],
)
def test_a_target_answers_for_no_device(
    tmp_path: Path, question: str, name: str, *, is_found: bool
) -> None:
    """List a target for a question of yes or no only where it is asked for."""
    assert (name in _search(tmp_path, question)) == is_found


def test_pages_are_full_without_our_own_units(tmp_path: Path) -> None:
    """Fill each page with other objects, however many of our units are like a question."""
    own = [
        StateObject(
            Identity("live:systemd", "systemd", "unit", f"op-dbus-{number}.service"),
            {"description": "podman containers"},
        )
        for number in range(40)
    ]
    others = [
        StateObject(
            Identity("live:systemd", "systemd", "unit", f"app{number}.service"),
            {"description": f"one of the many podman containers of customer {number}"},
        )
        for number in range(60)
    ]

    pages = [SearchRequest(10, offset) for offset in range(0, 60, 10)]
    found = search_words(tmp_path, own + others, "podman containers", *pages)
    assert len(found) == 60
    assert {hit.object_id.name for hit in found} == {one.identity.name for one in others}


@pytest.mark.parametrize(
    ("question", "first"),
    [
        ("which config files did someone change", "/etc/motd"),
        ("which files were modified by somebody", "/etc/motd"),
        ("which packages are not fully installed", "half"),
        ("is apache running?", "apache2.service"),
        ("is mysql running?", "mariadb.service"),
        ("our web server is broken", "nginx.service"),
    ],
)
def test_what_has_the_value_or_the_name_comes_first(
    tmp_path: Path, question: str, first: str
) -> None:
    """Begin with what is as asked, not with what speaks of it."""
    assert _search(tmp_path, question)[0] == first


@pytest.mark.parametrize(
    ("question", "name", "wanted"),
    [
        ("is apache running?", "apache2.service", Mismatch()),
        ("is apache running?", "zookeeper.service", Mismatch(name=1.0)),
        ("is mysql running?", "mariadb.service", Mismatch()),
        ("which version of docker is installed", "apt", Mismatch(name=1.0)),
        ("is the web server running?", "nginx.service", Mismatch(name=0.5)),
        ("kubernetes pods", "kubectl", Mismatch(kind=1.0, name=1.0)),
        ("which packages are not fully installed", "apt", Mismatch(value=1.0)),
        ("which packages are not fully installed", "half", Mismatch()),
        ("command line package manager", "apt", Mismatch()),
        ("which config files did someone change", "apt", Mismatch(kind=0.5, value=1.0)),
        ("is nginx running", "/etc/motd", Mismatch(kind=0.5, name=1.0)),
        ("which port does redis listen on", "half", Mismatch(kind=0.5, value=1.0, name=1.0)),
        ("which version of nginx do we have", "nginx.service", Mismatch(kind=0.5)),
        ("which package is nginx", "apt", Mismatch(name=1.0)),
        ("which package is the zookeeper server", "apt", Mismatch()),
    ],
)
def test_a_hit_is_compared_with_what_is_asked(
    tmp_path: Path, question: str, name: str, wanted: Mismatch
) -> None:
    """Say of another kind, value or name that it is not what a question asks for."""

    async def work(memory: StateStore) -> Mismatch:
        entries = [entry for entry in memory.catalogue.view.entries if entry]
        entry = next(each for each in entries if each.identity.object_id.name == name)
        contents = await memory.content([entry])
        view = memory.catalogue.view
        has_kind = hit_features.has_asked_kind(question, view.kind_masks[: view.end])
        return hit_features.find_mismatches(
            question, entry, contents[entry.id], has_kind=has_kind, has_number=True
        )

    assert run(tmp_path, _host(), work) == wanted


@pytest.mark.parametrize(
    ("question", "is_pure"),
    [
        ("which services failed", True),
        ("which config files did someone change?", True),
        ("what is not running right now", True),
        ("which database failed", False),
        ("web server", False),
        ("services", False),
    ],
)
def test_a_question_of_values_names_nothing_else(question: str, *, is_pure: bool) -> None:
    """Tell questions for all that has a value from those for one thing."""
    assert question_patterns.of(question).is_pure == is_pure


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ("is docker installed?", ["docker"]),
        ("is the web server down", ["web", "server"]),
        ("has redis failed?", ["redis"]),
        ("are all services running", []),
    ],
)
def test_the_subject_of_a_state_is_what_is_left(question: str, words: list[str]) -> None:
    """Name what a question asks the state of, without the state and the kind."""
    assert question_patterns.subject(question) == words


SLIDES: dict[str, dict[str, Json]] = {
    "blue": {"open": False, "reason": "inspection"},
    "red": {"open": True, "lit": "on"},
    "green": {"open": True, "lit": "off"},
}


@pytest.mark.parametrize(
    ("question", "first"),
    [
        ("which slide is open?", {"red", "green"}),
        ("which slide is not open?", {"blue"}),
        ("which slides aren't lit", {"green"}),
        ("a slide without light, not lit", {"green"}),
        ("which slide is lit?", {"red"}),
        # either is an answer
        ("is the blue slide open?", {"blue"}),
    ],
)
def test_what_says_the_reverse_of_a_question_comes_later(
    tmp_path: Path, question: str, first: set[str]
) -> None:
    """Rank by what fields that a question names say yes or no to, whoever publishes them."""
    objects = [
        StateObject(Identity("publish:pool", "pool", "slide", name), fields)
        for name, fields in SLIDES.items()
    ]
    hits = search_words(tmp_path, objects, question)
    assert {hit.object_id.name for hit in hits[: len(first)]} == first


MEMBERS: dict[tuple[str, str], dict[str, Json]] = {
    ("group", "scanners"): {"gid": 1005, "members": ["bob", "petra"]},
    ("group", "scanner"): {"gid": 113},
    ("group", "petra"): {"gid": 1004},
    ("group", "plugdev"): {"gid": 46, "members": ["bob"]},
    ("account", "petra"): {"uid": 1004, "groups": ["petra", "scanners", "video"]},
    ("account", "bob"): {"uid": 1003, "groups": ["bob", "scanners", "plugdev"]},
}


@pytest.mark.parametrize(
    ("question", "named"),
    [
        ("is petra in the group scanners?", {"group/scanners", "account/petra"}),
        ("may Petra use scanners", {"group/scanners", "account/petra"}),
        ("which groups is petra in?", {"account/petra"}),
        ("members of scanners", {"group/scanners"}),
        ("who is petra", set()),
        ("the group plugdev", set()),
    ],
)
def test_a_membership_is_answered_by_what_lists_it(
    tmp_path: Path, question: str, named: set[str]
) -> None:
    """Rank a named object whose list has another name, or is asked for, before one without."""
    objects = [
        StateObject(Identity("live:users", "users", *object_id), fields)
        for object_id, fields in MEMBERS.items()
    ]

    async def work(memory: StateStore) -> set[str]:
        entries = [entry for entry in memory.catalogue.view.entries if entry]
        contents = await memory.content(entries)
        return {
            "/".join(entry.identity.object_id[1:])
            for entry in entries
            if hit_features.membership(question, entry, contents[entry.id])
        }

    assert run(tmp_path, objects, work) == named
    hits = ["/".join(hit.object_id[1:]) for hit in search_words(tmp_path, objects, question)]
    if "group/petra" in hits and len(named) > 1:
        assert max(map(hits.index, named)) < hits.index("group/petra")


@pytest.mark.parametrize(
    ("question", "is_answered"),
    [
        ("what listens on port 8080", True),
        ("what listens on port 5432", False),
        ("is anything listening on 3306?", False),
        ("who has uid 1004", True),
        ("who has uid 1005", False),
    ],
)
def test_a_number_that_nothing_has_is_not_answered_by_another(
    tmp_path: Path, question: str, *, is_answered: bool
) -> None:
    """Refuse a question about a port or another number that no hit has."""
    port = Identity("live:net", "net", "listener", "tcp 0.0.0.0:8080")
    user = Identity("live:users", "users", "account", "petra")
    host = [*_host(), StateObject(port, {"port": 8080}), StateObject(user, {"uid": 1004})]
    hits = search_words(tmp_path, host, question)
    assert any(not hit.rating.is_weak for hit in hits) == is_answered
