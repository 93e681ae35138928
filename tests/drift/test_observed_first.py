"""What is observed counts before what is declared, in every answer, and both are one object."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.commands import run
from harness.running import STATE, STATE_PATH, Caller, Running, ask, replace

from opdbus.bus.service.call_options import MAX_LIMIT
from opdbus.bus.transport.connection import RemoteError

PLUGINS = {
    "users": {
        "users": [{"name": "alice", "shell": "/bin/zsh", "description": "keeps the archive"}],
        "groups": [{"name": "sudo", "members": ["alice"]}],
    },
    "systemd": {
        "units": [
            {"name": "memcached", "state": "running", "enabled": True},
            {"name": "varnish.service", "active_state": "active", "purpose": "cache of the shop"},
        ]
    },
    "apt": {"packages": [{"name": "nginx", "version": "9.9", "ensure": "installed"}]},
    "packagekit": {"packages": [{"name": "telnetd", "status": "installed"}]},
    "network": {"interfaces": [{"name": "eth0", "address": ["192.0.2.99/24"]}]},
    "mounts": {
        "mounts": [
            {"name": "/srv", "used_percent": 99, "fstype": "xfs"},
            {"name": "/wish", "used_percent": 97},
        ]
    },
    "sysctl": {"vm.swappiness": 10, "settings": [{"name": "kernel.panic", "value": 30}]},
    "tls": {"certificates": [{"name": "shop.example", "issuer": "Harbour CA"}]},
}
OBSERVED = [
    (
        *("users", "account", "alice"),
        {"shell": "/bin/bash", "uid": 1000, "group": "alice", "groups": ["sudo"]},
    ),
    ("users", "group", "sudo", {"gid": 27, "members": ["alice", "bob"]}),
    (
        *("systemd", "unit", "memcached.service"),
        {"active_state": "failed", "unit_file_state": "disabled", "enabled": False},
    ),
    (
        *("systemd", "unit", "varnish.service"),
        {"active_state": "failed", "unit_file_state": "enabled", "enabled": True},
    ),
    ("packages", "package", "nginx", {"version": "1.22", "status": "installed"}),
    (
        *("net", "interface", "eth0"),
        {"addresses": ["192.0.2.10/24"], "state": "up", "type": "ethernet"},
    ),
    ("mounts", "mount", "/srv", {"used_percent": 41, "fstype": "ext4", "source": "/dev/sdb1"}),
    ("mounts", "mount", "/", {"used_percent": 71, "fstype": "ext4", "source": "/dev/sda1"}),
    ("kernel", "sysctl", "vm.swappiness", {"value": "60"}),
    ("kernel", "sysctl", "kernel.panic", {"value": "0"}),
]
ABSENT: dict[str, Any] = {
    "apt": {"packages": [{"name": "telnetd", "ensure": "absent"}, {"name": "vim"}]},
    "packages": {"packages": [{"name": "rsh", "installed": False}]},
    "users": {"accounts": [{"name": "toor", "state": "absent"}]},
    "tls": {"certificates": [{"name": "old.example", "presence": "absent"}]},
}
# Names of what is declared otherwise than it is observed.
RENAMED = (
    *("users/user/alice", "systemd/unit/memcached", "apt/package/nginx"),
    *("network/interface/eth0", "sysctl/setting/kernel.panic"),
)


@pytest.fixture(scope="module")
def host(shared_daemons: Callable[..., Running], tmp_path_factory: Any) -> Running:
    """Run a daemon of objects that are declared and published otherwise."""
    folder: Path = tmp_path_factory.mktemp("declared")
    return _filled(shared_daemons(STATE_FILE=_file(folder), VECTOR_LEVEL="none"))


def _file(folder: Path) -> Path:
    return replace(folder / "state.json", json.dumps({"version": 1, "plugins": PLUGINS}))


def _filled(daemon: Running, declared: int = 4) -> Running:
    daemon.start()

    async def fill(caller: Caller) -> None:
        await caller.ready()
        await caller.call(STATE_PATH, f"{STATE}.Publish", "sa(sssa{sv})a{sv}", "t", OBSERVED, {})

        async def listed() -> int:
            total, _ = await caller.call(STATE_PATH, f"{STATE}.List", "a{sv}uu", {}, 0, 0)
            return int(total)

        await caller.until(listed, len(OBSERVED) + declared)

    ask(daemon, fill)
    return daemon


def _answers(host: Running, question: str, *more: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run(host, "search", question, "--json", *more).stdout)
    return found


def _names(rows: list[dict[str, Any]]) -> list[str]:
    return ["/".join((row["plugin"], row["kind"], row["name"])) for row in rows]


@pytest.mark.parametrize(
    ("question", "name", "observed", "declared"),
    [
        ("which shell does alice have?", "users/account/alice", "/bin/bash", "/bin/zsh"),
        ("members of the group sudo", "users/group/sudo", "bob", '"alice"]'),
        ("address of eth0", "net/interface/eth0", "192.0.2.10/24", "192.0.2.99/24"),
        ("is memcached enabled?", "systemd/unit/memcached.service", "enabled: no", "enabled: yes"),
        ("which version of nginx?", "packages/package/nginx", "1.22", "9.9"),
        ("value of vm.swappiness", "kernel/sysctl/vm.swappiness", "60", "10"),
        ("kernel.panic value", "kernel/sysctl/kernel.panic", "0", "30"),
        ("fstype of /srv", "mounts/mount//srv", "ext4", "xfs"),
    ],
)
def test_a_question_is_answered_by_what_is_observed(
    host: Running, question: str, name: str, observed: str, declared: str
) -> None:
    """The best answer has the observed value; a declared one stands behind the word `declared`."""
    best = _answers(host, question)[0]
    assert (_names([best]), best["source"]) == ([name], "publish:t")
    # the last lines: a yes-or-no question has its verdict before them
    shown = run(host, "search", question, "-n", "1").stdout
    said = shown.rpartition(name)[2].splitlines()[0]
    plain = re.sub(r"declared [^;]*(;|$)", "", said)
    assert observed in plain
    assert declared.strip('"]') not in plain.replace(observed, "") or declared == '"alice"]'
    assert "declared" not in best["snippet"]


def test_wrong_pages_of_drifts_are_refused(host: Running) -> None:
    """Refuse, by its name, an option that is out of bounds, of another type, or unknown."""
    wrong: dict[str, tuple[Any, ...]] = {
        "limit": (0, -1, MAX_LIMIT + 1, "5", True), "offset": (-1, 1.5), "ofset": (1,),
        "source": ("file",), "kind": (7,), "severity": ("worst",), "class": ("healed",),
    }  # fmt: skip

    async def work(caller: Caller) -> None:
        report = STATE_PATH, f"{STATE}.DriftReport", "a{sv}"
        for key, value in ((key, value) for key, values in wrong.items() for value in values):
            with pytest.raises(RemoteError, match=key):
                await caller.call(*report, {key: value})
        for last in ({"limit": 1}, {"limit": MAX_LIMIT, "offset": 0}, {"offset": 1 << 31}):
            await caller.call(*report, last)

    ask(host, work)


def test_json_has_both_sides(host: Running) -> None:
    """Programs get what is declared otherwise beside what is observed, each under its key."""
    best = _answers(host, "which shell does alice have?")[0]
    assert best["declared"] == {"shell": "/bin/zsh", "description": "keeps the archive"}
    assert best["observed"] == {"shell": "/bin/bash"}
    wish = _answers(host, "certificate of the shop")[0]
    assert (wish["source"], wish["observed"]) == ("file", {})
    assert wish["declared"] == {"issuer": "Harbour CA", "name": "shop.example"}


def test_an_object_of_two_names_is_one(host: Running) -> None:
    """What is declared under another name is one hit, and one row of a list, with the observed."""
    for question in "alice memcached nginx eth0 vm.swappiness kernel.panic /srv".split():
        names = _names(_answers(host, question, "--all", "-n", "30"))
        assert not {*RENAMED, "sysctl/settings/sysctl"}.intersection(names), question
        assert len(names) == len(set(names))
    listed = run(host, "list", "-q").stdout.splitlines()
    assert not set(RENAMED).intersection(listed)
    assert len(listed) == len(set(listed)) == len(OBSERVED) + 4
    # who asks for a plugin by its name gets it
    assert run(host, "list", "-q", "--plugin", "apt").stdout == "apt/package/nginx\n"
    assert "apt/package/nginx\n" in run(host, "list", "-q", "--source", "file").stdout


@pytest.mark.parametrize("question", ["zsh", "9.9", "192.0.2.99", "xfs", "192.0.2.99/24"])
def test_what_is_only_declared_of_an_observed_object_answers_nothing(
    host: Running, question: str
) -> None:
    """A declared value that is observed otherwise finds nothing."""
    assert not {"file", "publish:t"} & {hit["source"] for hit in _answers(host, question, "--all")}


def test_what_nobody_observes_is_found_and_marked(host: Running) -> None:
    """A declared field that nobody observes finds its object, with the word `declared`."""
    archive, cache = (
        "declared description: keeps the archive",
        "declared purpose: cache of the shop",
    )
    for question, name, said in (
        ("who keeps the archive?", "users/account/alice", archive),
        ("cache of the shop", "systemd/unit/varnish.service", cache),
    ):
        assert _names(_answers(host, question))[0] == name
        assert said in run(host, "search", question, "-n", "1").stdout
    line = run(host, "search", "Harbour CA", "-n", "1").stdout.splitlines()[1]
    assert "declared tls certificate shop.example" in line
    assert "declared issuer: Harbour CA" in line


def test_an_absent_package_is_not_told_as_installed(host: Running) -> None:
    """A declared package that nothing observes says `declared`, in a search, a list and a row."""
    said = run(host, "search", "is telnetd installed?", "-n", "1").stdout.splitlines()[1]
    assert re.search(r"telnetd +declared packagekit package telnetd", said)
    listed = run(host, "list", "--where", "status=installed").stdout.splitlines()
    rows = {re.split(r" {2,}", line)[2]: re.split(r" {2,}", line)[-1] for line in listed[1:]}
    assert rows == {"nginx": "installed", "telnetd": "declared installed"}
    listed = run(host, "list", "--kind", "package").stdout.splitlines()
    assert {line.split()[2] for line in listed if line.split()[-1] == "only"} == {"telnetd"}
    asked = ("list", "--where", "name=telnetd", "--columns", "name,status", "--json")
    row = json.loads(run(host, *asked).stdout)["objects"][0]
    assert row == {"name": "telnetd", "status": {"declared": "installed"}}


def test_the_fullest_is_what_is_observed(host: Running) -> None:
    """A superlative compares observed values, and declared ones only where nothing is observed."""
    best = _answers(host, "which filesystem is fullest?")[0]
    assert best["name"] == "/"
    assert run(host, "list", "--where", "used_percent>98").stdout == ""
    names = run(host, "list", "-q", "--where", "used_percent>70").stdout.splitlines()
    assert names == ["mounts/mount//", "mounts/mount//wish"]


def test_conditions_are_met_by_what_is_observed(host: Running) -> None:
    """A condition is checked on observed values, and on declared ones where there are none."""
    for where, names in (
        ("shell=/bin/zsh", []),
        ("shell=/bin/bash", ["users/account/alice"]),
        ("state=running", []),
        ("active_state=active", []),
        ("version=9.9", []),
        ("members=bob", ["users/group/sudo"]),
        ("issuer~harbour", ["tls/certificate/shop.example"]),
    ):
        assert run(host, "list", "-q", "--where", where).stdout.splitlines() == names, where
    found = run(host, "list", "--where", "issuer~harbour").stdout
    assert "declared Harbour CA" in found


def test_show_has_the_observed_text(host: Running) -> None:
    """The text of an object is that of what is observed, by either name; a wish says so."""
    for name in ("users/account/alice", "users/user/alice"):
        shown = json.loads(run(host, "show", name, "--json").stdout)
        assert shown["Text"].startswith("user account alice")
        assert not re.search("zsh|archive|declared", shown["Text"])
        assert (shown["Declared"]["shell"], shown["Observed"]["shell"]) == ("/bin/zsh", "/bin/bash")
    assert "bob" in json.loads(run(host, "show", "group/sudo", "--json").stdout)["Text"]
    wish = json.loads(run(host, "show", "packagekit/package/telnetd", "--json").stdout)
    assert wish["Text"].startswith("declared packagekit package telnetd")


def test_the_map_has_the_observed_words(daemons: Callable[..., Running], tmp_path: Path) -> None:
    """The map draws each object once, by what is observed, and says `declared` of a wish."""
    daemon = _filled(daemons(STATE_FILE=_file(tmp_path))).vectorized()
    # differences count once they have lasted
    ask(daemon, lambda caller: caller.until(lambda: caller.read("Drifted"), 9))
    page = tmp_path / "map.html"
    drifts = json.loads(run(daemon, "drift", "--json").stdout)["drifts"]
    told = json.loads(run(daemon, "map", "-o", str(page), "--json").stdout)
    counts = {json.loads(run(daemon, "status", "--json").stdout)["Drifted"], told["drifted"]}
    assert counts == {len(drifts)}
    data = re.search(
        r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.DOTALL
    )
    assert data
    scene = json.loads(data[1])
    assert len(scene["name"]) == len(OBSERVED) + 4
    rows = dict(
        zip(
            scene["name"],
            zip(scene["text"], (scene["states"][n] for n in scene["state"]), strict=True),
            strict=True,
        )
    )
    # also what is declared under another name is marked
    marked = {
        scene["name"][int(row)] for row, mark in scene["marks"].items() if mark[0] == "drifted"
    }
    assert {"nginx", "alice", "memcached.service"} <= marked
    assert rows["nginx"][1] == "installed"
    assert rows["memcached.service"][1] == "failed"
    assert rows["telnetd"][1] == "declared installed"
    for name in ("telnetd", "/wish", "shop.example"):
        assert rows[name][0].startswith("declared")
    assert not [name for name in ("nginx", "/", "alice") if "declared" in rows[name][0]]


def test_real_accounts_are_told_as_they_are(
    daemons: Callable[..., Running], tmp_path: Path
) -> None:
    """The shell of an account of this machine is that of its file, whatever is declared."""
    lines = Path("/etc/passwd").read_text().splitlines()
    (fields,) = (line.split(":") for line in lines if line.startswith("root:"))
    accounts = [{"name": "root", "shell": "/opt/wish/fish"}, {"name": "no-such-wish"}]
    plugins = {"users": {"accounts": accounts}}
    file = replace(tmp_path / "state.json", json.dumps({"version": 1, "plugins": plugins}))
    daemon = daemons(STATE_FILE=file, OBSERVE="users", VECTOR_LEVEL="none")
    daemon.start()

    async def wait(caller: Caller) -> None:
        await caller.ready()

        async def observed() -> int:
            where = {"where": "uid=0, name=root"}
            total, _ = await caller.call(STATE_PATH, f"{STATE}.List", "a{sv}uu", where, 0, 0)
            return int(total)

        await caller.until(observed, 1)
        await caller.until(lambda: caller.get(STATE_PATH, STATE, "Drifted"), len(accounts))

    ask(daemon, wait)
    line = run(daemon, "search", "which shell does root have?", "-n", "1").stdout.splitlines()[1]
    assert f"shell {fields[6]}" in line.replace("shell: ", "shell ")
    assert "declared shell: /opt/wish/fish" in line
    assert run(daemon, "search", "fish", "--all", "-q").stdout == ""
    assert "/opt/wish" not in run(daemon, "list", "--columns", "name,shell").stdout
    # it was looked for, and is not there: marked wherever it is listed
    for asked in (("list",), ("list", "--columns", "name,uid"), ("search", "kind:account")):
        rows = json.loads(run(daemon, *asked, "--where", "name~no-such", "--json").stdout)
        row = (rows["objects"] if asked[0] == "list" else rows)[0]
        said = row["declared"] if asked[0] == "list" else row["snippet"]
        assert "missing" in said, asked
        assert run(daemon, *asked[:1], *asked[1:2], "-q", "--where", "name~no-such").stdout == ""
    hits = json.loads(run(daemon, "search", "kind:account", "-n", "1000", "--json").stdout)
    assert [hit["source"] for hit in hits].index("file") == len(hits) - 1
    line = run(daemon, "search", "no-such-wish", "-n", "1").stdout.splitlines()[1]
    assert "declared, missing: user account no-such-wish" in line


@pytest.fixture(scope="module")
def absent(shared_daemons: Callable[..., Running], tmp_path_factory: Any) -> Running:
    """Run a daemon of which some objects are only declared, and that as absent."""
    file = tmp_path_factory.mktemp("absent") / "state.json"
    replace(file, json.dumps({"version": 1, "plugins": ABSENT}))
    return _filled(shared_daemons("absent", STATE_FILE=file, VECTOR_LEVEL="none"), 5)


@pytest.mark.parametrize(
    ("question", "name"),
    [
        ("is telnetd installed", "apt/package/telnetd"),
        ("is rsh installed?", "packages/package/rsh"),
        ("is there an account toor", "users/account/toor"),
        ("is there a certificate old.example", "tls/certificate/old.example"),
    ],
)
def test_what_is_declared_absent_is_no_object_of_the_host(
    absent: Running, question: str, name: str
) -> None:
    """What is only declared absent says so, below all observed that answers, and no surer."""
    hits = _answers(absent, question, "--all", "-n", "30")
    at = _names(hits).index(name)
    assert hits[at]["snippet"].startswith("declared absent: ")
    answers = [hit for hit in hits if not hit["weak"]]
    below = answers[answers.index(hits[at]) + 1 :] if hits[at] in answers else []
    assert not [hit for hit in below if hit["source"] != "file"]
    scores = [hit["score"] for hit in hits]
    assert scores == sorted(scores, reverse=True)


def test_a_list_marks_what_is_declared_absent(absent: Running) -> None:
    """A list of objects has a column that says which are declared absent, and JSON has a key."""
    lines = run(absent, "list").stdout.splitlines()
    marked = {line.split()[2] for line in lines[1:] if line.split()[-1] == "absent"}
    assert marked == {"telnetd", "rsh", "toor", "old.example"}
    rows = json.loads(run(absent, "list", "--json").stdout)["objects"]
    assert {row["name"] for row in rows if row.get("declared") == "absent"} == marked


def test_names_alone_are_of_what_is_there(absent: Running) -> None:
    """`-q` leaves out what is declared absent, and conditions alone put it behind the others."""
    names = run(absent, "list", "-q").stdout.splitlines()
    listed = run(absent, "list").stdout.splitlines()[1:]
    assert len(names) == len([line for line in listed if line.split()[-1] != "absent"]) > 5
    assert "apt/package/telnetd" not in names
    asked = ("search", "telnetd", "--all", "-n", "100")
    assert "apt/package/telnetd" not in run(absent, *asked, "-q").stdout.splitlines()
    columns = run(absent, *asked, "--columns", "name,kind").stdout.splitlines()
    assert [line.split() for line in columns if "telnetd" in line] == [
        ["telnetd", "package", "absent"]
    ]
    sources = [hit["source"] for hit in _answers(absent, "name~a kind:package name:n")]
    assert sources == sorted(sources, key="file".__eq__)
    sources = [hit["source"] for hit in _answers(absent, "kind:package", "-n", "100")]
    assert sources == ["publish:t", *["file"] * 3]


def test_source_is_who_tells_of_an_object(host: Running) -> None:
    """A column or condition of an identity's word is that alone; a field so called has a dot."""
    rows = json.loads(
        run(host, "list", "--kind", "mount", "--columns", "name,source,.source", "--json").stdout
    )["objects"]
    assert {row["name"]: (row["source"], row[".source"]) for row in rows} == {
        "/": ("publish:t", "/dev/sda1"),
        "/srv": ("publish:t", "/dev/sdb1"),
        "/wish": ({"declared": "file"}, None),
    }
    for where, names in (
        ("source=/dev/sda1", []),
        (".source=/dev/sda1", ["mounts/mount//"]),
        ("source=publish:t, kind=mount", ["mounts/mount//", "mounts/mount//srv"]),
    ):
        assert run(host, "list", "-q", "--where", where).stdout.splitlines() == names, where
    assert ".source" in run(host, "fields", "--kind", "mount").stdout


def test_a_list_is_a_list_in_json(host: Running) -> None:
    """A column has one type: of a list with one member as of one with several, or with none."""
    rows = json.loads(
        run(
            host, "list", "--where", "plugin=users", "--columns", "name,groups,members", "--json"
        ).stdout
    )["objects"]
    assert [row["groups"] for row in rows if row["name"] == "alice"] == [["sudo"]]
    assert [row["members"] for row in rows if row["name"] == "sudo"] == [["alice", "bob"]]
