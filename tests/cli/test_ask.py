"""`op-dbus ask` and State1.Ask: a question answered by the command that its form asks for."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import EXAMPLE
from harness.commands import as_json, fails, run
from harness.running import Caller, Running, calling

from opdbus.bus.service.faults import describe_drift
from opdbus.bus.transport.connection import Connection
from opdbus.drift.field import Field, Severity
from opdbus.drift.transition_filter import DriftState
from opdbus.language import routes
from opdbus.state.object import ObjectId

# A question for each route, and the command that answers it.
QUESTIONS = {
    "objects": ("who checks passwords", ["search", "who checks passwords"]),
    "changes": ("what changed in the last hour", None),
    "drift": ("is everything as declared?", ["drift", "--about", "is everything as declared?"]),
    "status": ("are you ready", ["status"]),
}


@pytest.fixture(scope="module")
def served(
    shared_daemons: Callable[..., Running], tmp_path_factory: pytest.TempPathFactory
) -> Running:
    """Run a daemon of the example, one of whose units is other than declared."""
    declared = json.loads(EXAMPLE.read_text())
    declared["plugins"] |= {
        "lab": {"gauge": "bar"},
        "system": {"hostname": "web1", "timezone": "UTC", "os": "debian"},
    }
    file = tmp_path_factory.mktemp("ask") / "state.json"
    file.write_text(json.dumps(declared))
    daemon = shared_daemons(STATE_FILE=file).start().vectorized()
    asyncio.run(_publish(daemon, "sshd.service", active_state="failed"))
    asyncio.run(_publish(daemon, "hostname", plugin="system", kind="fact", name="web2"))
    asyncio.run(_publish(daemon, "os", "system", "fact", name="Debian GNU/Linux 12", id="debian"))
    well = {"active_state": "active", "unit_file_state": "enabled", "masked": False}
    asyncio.run(_publish(daemon, "redis-server.service", **well))
    asyncio.run(_publish(daemon, "stranger.service", **well))
    for name, members in (("staff", ["ada", "ben"]), ("wheel", ["ada"])):
        asyncio.run(_publish(daemon, name, "users", "group", members=members))
    for name, is_admin in (("ada", True), ("ben", False), ("cleo", False)):
        fields = {"administrator": is_admin, "can_log_in": True, "shell": "/bin/bash"}
        asyncio.run(_publish(daemon, name, "users", "account", **fields))
    off = {"active_state": "inactive", "sub_state": "dead", "unit_file_state": "disabled"}
    asyncio.run(_publish(daemon, "mailgate.service", **off))
    asyncio.run(_publish(daemon, "burrow.target", active_state="active", sub_state="active"))
    asyncio.run(_publish(daemon, "faxd", "packages", "package", status="config-files"))
    asyncio.run(_publish(daemon, "trim.service", unit_file_state="static", masked=False))
    asyncio.run(_publish(daemon, "trim.timer", unit_file_state="masked", masked=True))
    asyncio.run(_publish(daemon, "backup0-peer", "net", "interface", state="up", mtu=1500))
    asyncio.run(_publish(daemon, "/etc/hosts.none", "files", "file", missing=True))
    asyncio.run(_publish(daemon, "vm.none", "kernel", "sysctl", missing=True, wanted="1"))
    asyncio.run(_publish(daemon, "ghost.service", load_state="not-found", active_state="failed"))
    port = {"port": 8443, "protocol": "tcp", "exposed": "all addresses"}
    asyncio.run(_publish(daemon, "tcp 0.0.0.0:8443", "net", "listener", **port))
    asyncio.run(_until_drifting(daemon, 2))
    return daemon.vectorized()


async def _until_drifting(daemon: Running, count: int) -> None:
    """Wait until so many objects count as drifted, which takes seconds after their change."""
    async with calling(daemon.bus) as caller:
        await caller.until(lambda: caller.read("Drifted"), count)


async def _publish(
    daemon: Running, object_name: str, plugin: str = "systemd", kind: str = "unit", **fields: object
) -> None:
    async with calling(daemon.bus) as caller:
        objects = [(plugin, kind, object_name, fields)]
        await caller.ask("Publish", "t", objects, {})


@pytest.mark.parametrize("route", list(QUESTIONS))
def test_the_first_line_says_which_command_answers(served: Running, route: str) -> None:
    """Print the route and its command, and then what that command prints; at most so many rows."""
    question, command = QUESTIONS[route]
    done = run(served, "ask", *question.split())
    first, _, rest = done.stdout.partition("\n")
    assert first.startswith(f"{route}: op-dbus {routes.COMMANDS[route]}")
    if route in {"objects", "changes"}:
        least = json.loads(run(served, "ask", "-n", "1", "--json", question).stdout)
        assert (len(least["answer"]), "--limit 1" in least["command"]) == (1, True)
    if command and route != "status":
        alone = run(served, *command)
        assert (done.returncode, rest) == (alone.returncode, alone.stdout)
    assert rest


@pytest.mark.parametrize("route", list(QUESTIONS))
def test_json_has_the_route_and_the_rows(served: Running, route: str) -> None:
    """Print one value: the route, its command, and what that command prints as JSON."""
    question, command = QUESTIONS[route]
    found = json.loads(run(served, "ask", "--json", question).stdout)
    assert (found["route"], found.keys()) == (route, {"route", "command", "answer"})
    assert found["answer"]
    if command and route != "status":
        assert found["answer"] == json.loads(run(served, *command, "--json").stdout)


def test_an_exit_code_is_that_of_the_command(served: Running) -> None:
    """End as the command does: 12 where no object answers."""
    done = run(served, "ask", "state:unheard-of kind:unit")
    assert done.returncode == 12
    assert done.stdout.startswith("objects: op-dbus search")
    assert "the question is empty" in fails(served, 2, "ask", " ")


def test_search_hints_at_the_command_that_answers(served: Running) -> None:
    """Say on stderr, in one line, which command a question of another form is for."""
    done = run(served, "search", "is everything as declared?", "--all")
    hint = "that is a question for `op-dbus drift --about 'is everything as declared?'`"
    assert done.stderr.splitlines().count(hint) == 1
    for quiet in (["--json"], ["-q"]):
        assert hint not in run(served, "search", "is everything as declared?", *quiet).stderr
    assert "a question for" not in run(served, "search", "name resolution").stderr
    assert "a question for" not in run(served, "ask", "name resolution").stderr


def test_the_next_page_is_that_of_the_search(served: Running) -> None:
    """Give the command for more hits, which `ask` has no option for."""
    assert " op-dbus search -- unit --offset 10" in run(served, "ask", "unit").stderr.replace(
        "op-dbus search --offset 10 -- unit", "op-dbus search -- unit --offset 10"
    )


def test_drift_begins_with_what_a_question_names(served: Running) -> None:
    """List first what is of the kinds and has the words of a question, and leave out nothing."""
    rows = as_json(served, "drift")["drifts"]
    last = rows[-1]
    about = as_json(served, "drift", "--about", f"{last['kind']} {last['name']}")["drifts"]
    assert about[0] == last
    assert sorted(row["path"] for row in about) == sorted(row["path"] for row in rows)


@pytest.mark.parametrize(
    ("question", "answer", "drifting"),
    [
        ("is redis-server as declared?", "yes: systemd/unit/redis-server.service is as declared",
         0),
        ("does redis-server.service match the state file", "yes: ", 0),
        ("has the service redis-server drifted?", "no: ", 0),
        ("is sshd as declared?", "no: systemd/unit/sshd.service is other than declared", 1),
        ("is the unit sshd.service as it should be", "no: ", 1),
        ("is the hostname as declared?",
         "no: hostname of system/settings/system is other than declared", 1),
        ("is gauge as declared?", "gauge of lab/settings/lab is declared, and nothing observes", 0),
        ("is stranger as declared?", "nothing is declared of stranger: systemd/unit/stranger", 0),
        ("has redis-server drifted?", "no: systemd/unit/redis-server.service is as declared", 0),
        ("is redis-server not as declared?", "no: ", 0),
        ("is redis-server drifting", "no: ", 0),
        ("does redis-server not differ from its declaration", "yes: ", 0),
        ("is sshd other than declared?", "yes: systemd/unit/sshd.service is other than", 1),
        ("isn't sshd as declared?", "no: ", 1),
        ("is sshd different from its declaration?", "yes: ", 1),
        ("does sshd differ from what is declared?", "yes: ", 1),
        ("is the host name other than declared?", "yes: hostname of system/settings/system is", 1),
        ("is the active state of sshd as declared", "no: active_state of systemd/unit/sshd.serv",
         1),
        ("is the unit file state of redis-server as declared", "unit_file_state of systemd/unit/re",
         0),
        ("is the time zone as declared", "timezone of system/settings/system is declared, and not",
         0),
        ("is the os as declared", "yes: os of system/settings/system is as declared", 0),
        ("is the shade of redis-server as declared", "nothing is declared of shade of systemd", 0),
        ("is postgresql@15-main as declared?", "systemd/unit/postgresql@15-main.service is decl",
         0),
    ],
)  # fmt: skip
def test_whether_one_object_is_as_declared(
    served: Running, question: str, answer: str, drifting: int
) -> None:
    """Answer yes or no for the object that a question names, and list no drift of others."""
    rest = run(served, "ask", question).stdout.splitlines()[1:]
    assert rest[0].startswith(answer)
    assert bool(rest[1:]) == bool(drifting)
    assert all("sshd.service" in line or "hostname" in line for line in rest[1:])
    found = as_json(served, "ask", question)["answer"]
    assert found["answers"][0] == rest[0]
    assert len(found["drifts"]) == drifting
    shown = (
        as_json(served, "show", "redis-server")["Drift"],
        as_json(served, "show", "sshd")["Drift"],
    )
    assert shown == ("none", "error")


@pytest.mark.parametrize(
    ("question", "verdict"),
    [
        ("is ben in the group wheel?", "no: users/group/wheel: members ada"),
        ("is ada a member of wheel", "yes: users/group/wheel: members ada"),
        ("isn't cleo in staff?", "no: users/group/staff: members ada, ben"),
        ("is ben not in wheel?", "yes: users/group/wheel: members ada"),
        ("are ada and ben in the group staff?", "yes: users/group/staff: members ada, ben"),
        ("does the group staff have cleo as a member?", "no: users/group/staff: "),
        ("does cleo exist?", "yes: users/account/cleo"),
        ("is there an account called ben?", "yes: users/account/ben"),
        ("does /etc/hosts.none exist?", "no: files/file//etc/hosts.none is not there"),
        ("is vm.none there?", "no: kernel/sysctl/vm.none is not there"),
        ("does faxd exist?", "no: packages/package/faxd: status config-files"),
        ("is ghost.service present?", "no: systemd/unit/ghost.service: load_state not-found"),
        ("is vm.none gone?", "yes: kernel/sysctl/vm.none is not there"),
        ("is cleo missing?", "no: users/account/cleo"),
        ("is ben an administrator?", "no: users/account/ben: administrator no"),
        ("is mailgate running?", "no: systemd/unit/mailgate.service: active_state inactive"),
        ("is the service mailgate still up?", "no: systemd/unit/mailgate.service: "),
        ("is mailgate not running right now?", "yes: systemd/unit/mailgate.service: "),
        ("is mailgate no longer running?", "yes: systemd/unit/mailgate.service: "),
        ("is mailgate not running any more?", "yes: systemd/unit/mailgate.service: "),
        ("is ada no longer an administrator?", "no: users/account/ada: administrator yes"),
        ("does mailgate still run?", "no: systemd/unit/mailgate.service: "),
        ("will redis-server start after a reboot?", "yes: systemd/unit/redis-server.service: "),
        ("does mailgate start at boot?", "no: systemd/unit/mailgate.service: "),
        ("is ada no longer in the group wheel?", "no: users/group/wheel: members ada"),
        ("are ada and cleo not in wheel?", "no: users/group/wheel: members ada"),
        ("has sshd failed?", "yes: systemd/unit/sshd.service: active_state failed"),
        ("are redis-server and stranger enabled?", "yes: systemd/unit/redis-server.service: "),
        ("are sshd and mailgate running?", "no: systemd/unit/sshd.service: "),
        (
            "is trim masked?",
            "no: systemd/unit/trim.service: masked no; but systemd/unit/trim.timer:",
        ),
        ("is trim.timer masked?", "yes: systemd/unit/trim.timer: masked yes"),
        ("is the service trim masked?", "no: systemd/unit/trim.service: masked no"),
        ("is faxd installed?", "no: packages/package/faxd: status config-files"),
        ("is port 8443 in use?", "yes: net/listener/tcp 0.0.0.0:8443: exposed all addresses"),
        ("is port 8443 free?", "no: net/listener/tcp 0.0.0.0:8443: exposed all addresses"),
        ("is tcp port 8443 open?", "yes: net/listener/tcp 0.0.0.0:8443: exposed all addresses"),
    ],
)
def test_a_question_of_yes_or_no(served: Running, question: str, verdict: str) -> None:
    """Answer yes or no in one line, with the observed values that decide it, and in JSON."""
    assert run(served, "ask", question).stdout.splitlines()[1].startswith(verdict)
    first, *others = as_json(served, "search", question)
    assert first["verdict"].startswith(verdict)
    assert not any("verdict" in hit for hit in others)


@pytest.mark.parametrize(
    ("question", "first"),
    [
        ("is mailgate running?", ["systemd/unit/mailgate.service"]),
        ("is ben in the group wheel?", ["users/group/wheel"]),
        ("is port 8443 in use?", ["net/listener/tcp 0.0.0.0:8443"]),
        (
            "are sshd and mailgate running?",
            ["systemd/unit/sshd.service", "systemd/unit/mailgate.s"],
        ),
    ],
)
def test_what_decides_an_answer_comes_first(
    served: Running, question: str, first: list[str]
) -> None:
    """The first hits of a question of yes or no are the objects that decide it."""
    hits = as_json(served, "search", question)
    names = ["/".join((hit["plugin"], hit["kind"], hit["name"])) for hit in hits]
    assert all(name.startswith(one) for name, one in zip(names, first, strict=False))
    assert len(names) == len(set(names))
    assert len(as_json(served, "search", "-n", "1", question)) == 1


def test_all_of_a_host_in_a_bad_state(served: Running) -> None:
    """List the units that are failed and the file systems that are full, and nothing else."""
    for name, used in (("/", 57), ("/srv", 97), ("/var", 85)):
        asyncio.run(_publish(served, name, "mounts", "mount", used_percent=used))
    for question, said, names in (
        ("which services failed?", "2 services are failed: ", {"ghost.service", "sshd.service"}),
        (
            "which disks are full?",
            "1 file system is full (taken as used_percent >= 90): ",
            {"/srv"},
        ),
        (
            "is any disk almost full?",
            "yes: 2 file systems are nearly full (taken as used_percent >= 80): /srv 97%, /var 85%",
            {"/srv", "/var"},
        ),
    ):
        hits = as_json(served, "search", question)
        assert hits[0]["verdict"].startswith(said), question
        assert {hit["name"] for hit in hits} == names
        assert run(served, "ask", question).stdout.splitlines()[1].startswith(said)
    # no observer lists units here: that none is failed is not certain
    assert "no timer is failed" not in run(served, "ask", "is any timer failed?").stdout
    for name, used in (("/srv", 9), ("/var", 8)):
        asyncio.run(_publish(served, name, "mounts", "mount", used_percent=used))
    done = run(served, "ask", "which disks are full?")
    text = "no file system is full (taken as used_percent >= 90): the fullest is / 57%"
    assert (done.returncode, done.stdout.splitlines()[1:]) == (0, [text])
    (hit,) = as_json(served, "search", "which disks are full?")
    assert (hit["name"], hit["weak"]) == ("/", True)


def test_what_is_wrong_is_what_is_failed_full_or_other_than_declared(served: Running) -> None:
    """Say what is wrong with the host in one line, and list only the objects of it."""
    for question, before in (
        ("what is wrong?", ""),
        ("is anything wrong here?", "yes: "),
        ("is everything ok?", "no: "),
    ):
        first, *others = as_json(served, "search", question)
        said = first["verdict"]
        assert said.startswith(f"{before}2 units are failed: ghost.service, sshd.service; ")
        assert "sshd.service" in {hit["name"] for hit in (first, *others)}
        assert "redis-server.service" not in {hit["name"] for hit in others}


def test_what_nothing_observes_is_no_extreme(
    daemons: Callable[..., Running], tmp_path: Path
) -> None:
    """Compare observed values where there are any, and say which declared objects were left out."""
    file = tmp_path / "state.json"
    mounts = {"mount": {"/data": {"used_percent": 99}, "/": {"used_percent": 97}}}
    file.write_text(json.dumps({"version": 1, "plugins": {"mounts": mounts}}))
    daemon = daemons(STATE_FILE=file).start().vectorized()
    # nothing else is known of them
    (hit,) = as_json(daemon, "search", "-n", "1", "fullest file system")
    assert hit["name"] == "/data"
    for name, used in (("/", 35), ("/srv", 60)):
        asyncio.run(_publish(daemon, name, "mounts", "mount", used_percent=used))
    for question in (
        "which file system is the fullest?",
        "file systems with used_percent>50",
    ):
        first, *others = as_json(daemon, "search", question)
        assert first["name"] == "/srv", question
        assert first["verdict"] == "declared and not observed, and so left out: mounts/mount//data"
        assert "/data" not in {hit["name"] for hit in others}


def test_differences_are_counted_by_severity() -> None:
    """Of objects that are other than declared the worst are named first."""
    found = []
    for name, severity in (("a", "NOTICE"), ("b", "ERROR"), ("c", "NOTICE")):
        field = Field(("mode",), 1, 2, Severity[severity])
        found.append((ObjectId("files", "file", name), DriftState("drift", 0.0, [field])))
    said = "3 objects are other than declared (1 error, 2 notice)"
    assert describe_drift(found) == said
    assert describe_drift(found[:1]) == "1 object is other than declared (1 notice)"


def test_nothing_is_wrong_and_no_unit_is_observed(
    daemons: Callable[..., Running], tmp_path: Path
) -> None:
    """Where nothing observes units, none of those declared runs or failed for all that is known."""
    unit = {"active_state": "active", "sub_state": "running"}
    file = tmp_path / "state.json"
    units = {"unit": {"web.service": unit}}
    file.write_text(json.dumps({"version": 1, "plugins": {"systemd": units}}))
    daemon = daemons(STATE_FILE=file).start().vectorized()
    questions = ("which services run?", "which services are running", "what failed?")
    for question in (*questions, "which timers are currently stopped?"):
        done = run(daemon, "ask", question)
        (said,) = done.stdout.splitlines()[1:]
        assert said.startswith("no observer reports the state of units: "), question
    done = run(daemon, "ask", "what is wrong?")
    said = "nothing that op-dbus observes is wrong; not observed: this host"
    assert done.stdout.splitlines()[1:] == [said]
    asyncio.run(_publish(daemon, "web.service", **unit))
    hits = as_json(daemon, "search", "which services run?")
    assert [hit["name"] for hit in hits] == ["web.service"]


def test_which_services_run_restricts_to_those_that_do(served: Running) -> None:
    """List only active services where a question asks which run as root."""
    for name, state in (("warden", "running"), ("sweeper", "dead")):
        active = "active" if state == "running" else "inactive"
        fields = {"active_state": active, "sub_state": state, "user": "root"}
        asyncio.run(_publish(served, f"{name}.service", **fields))
    fields = {"active_state": "inactive", "sub_state": "dead", "user": "mail"}
    asyncio.run(_publish(served, "letterbox.service", **fields))
    fields = {"active_state": "active", "sub_state": "running", "user": "mail"}
    asyncio.run(_publish(served, "postman.service", **fields))
    for question in ("which services run as root?", "what services are running as root"):
        hits = as_json(served, "search", question)
        assert [hit["name"] for hit in hits] == ["warden.service"]
    hits = as_json(served, "search", "which services don't run as root?")
    assert [hit["name"] for hit in hits] == ["postman.service"]


def test_only_what_has_the_value_that_is_asked_for(served: Running) -> None:
    """Leave out what has another value, and find nothing where nothing has the value."""
    question = "which configuration file was changed?"
    for name, is_modified in (("/etc/own.conf", True), ("/etc/ucf.conf", False)):
        description = "configuration of ucf: keeps changed configuration files"
        fields = {"modified": is_modified, "description": description}
        asyncio.run(_publish(served, name, "files", "file", **fields))
    assert [hit["name"] for hit in as_json(served, "search", question)] == ["/etc/own.conf"]
    asyncio.run(_publish(served, "/etc/own.conf", "files", "file", modified=False))
    done = run(served, "ask", question)
    assert (done.returncode, len(done.stdout.splitlines())) == (12, 1)


def test_what_only_has_to_do_with_a_question_is_no_answer(served: Running) -> None:
    """Refuse the tool of what the host lacks, and a setting of what may be on or off."""
    description = "Kubernetes Command Line Tool, for pods"
    asyncio.run(_publish(served, "kubectl", "packages", "package", description=description))
    description = "how eagerly memory is moved to swap"
    asyncio.run(_publish(served, "vm.swappiness", "kernel", "sysctl", description=description))
    asyncio.run(_publish(served, "libselinux1", "packages", "package", description="SELinux"))
    for question in ("kubernetes pods", "which pods run", "is swap on?", "is SELinux off?"):
        assert run(served, "ask", question).returncode == 12, question
    assert run(served, "ask", "kubernetes command line tool").returncode == 0


def test_a_value_of_earlier_is_that_of_history(served: Running) -> None:
    """Answer from history what a value was, and otherwise say that it has no earlier one."""
    fields = {"administrator": True, "can_log_in": True, "shell": "/bin/zsh"}
    asyncio.run(_publish(served, "ada", "users", "account", **fields))
    for question in ("what was ada's shell before?", "which shell did ada have?"):
        lines = run(served, "ask", question).stdout.splitlines()[1:]
        assert len(lines) == 1
        assert "account ada changed: shell /bin/bash -> /bin/zsh" in lines[0]
    for question in ("what was ben's shell before?", "which shell did ben use to have?"):
        done = run(served, "ask", question)
        assert (done.returncode, len(done.stdout.splitlines())) == (12, 1)
        assert done.stderr.startswith("history has no earlier value of")


def test_what_nobody_did_has_no_answer(served: Running) -> None:
    """End with 12 where nobody did what a question asks for, or it never happened to an object."""
    for question in (
        "who was locked out?",
        "who logged in?",
        # one that nothing ever was named
        "did zuleika restart?",
        "was zuleika installed?",
        "who restarted zuleika?",
    ):
        done = run(served, "ask", question)
        assert (done.returncode, done.stderr) == (12, "no change answers this\n"), question
    for question in ("how often was sshd restarted?", "how many times did sshd restart"):
        done = run(served, "ask", question)
        assert (done.returncode, done.stdout.splitlines()[1:]) == (12, [])
        assert done.stderr.startswith("sshd has not")


@pytest.mark.parametrize(
    "question",
    [
        # one that only publishers tell of may exist elsewhere
        "is port 7777 open?",
        # neither a name of one object, nor words of a state
        "is the web server running?",
        "is the burrow on?",
        "is sshd nice?",
        "are all services running?",
        "can anyone log in?",
        "are redis-servers on?",
        # the group is that of the file alone, and the conditions are of the question
        "who is in the group staff?",
        "is mailgate running? kind:unit",
    ],
)
def test_what_is_not_certain_has_no_verdict(served: Running, question: str) -> None:
    """Give neither yes nor no where stored values of the host do not decide it."""
    hits = as_json(served, "search", question, "--all")
    assert hits
    assert not any("verdict" in hit for hit in hits)


def test_a_name_that_nothing_has(served: Running) -> None:
    """Find nothing where a question is about a name that is nowhere, and say so."""
    for question in (
        "does zuleika exist?",
        "is zuleika running?",
        "is zuleika in the group staff?",
    ):
        done = run(served, "ask", question)
        assert (done.returncode, len(done.stdout.splitlines())) == (12, 1)
        assert done.stderr.startswith("nothing here is named zuleika")
        assert as_json(served, "search", question, "--all")[0]["verdict"]
    # one that only has a longer name has not this one
    assert "nothing here is named backup0" in run(served, "ask", "is backup0 up?").stderr
    assert "nothing here is named /srv/none" in run(served, "ask", "is /srv/none mounted?").stderr


def test_a_number_is_that_of_its_field(served: Running) -> None:
    """Answer with no object whose named field has another number than the question."""
    for name, uid in (("dora", 1002), ("emil", 1003)):
        asyncio.run(_publish(served, name, "users", "account", uid=uid, description="user 1004"))
    for question, found in (
        ("is uid 1002 taken?", ["yes: users/account/dora: uid 1002"]),
        ("is there a user with uid 1003?", ["yes: users/account/emil: uid 1003"]),
        ("does anyone have uid 1002", ["yes: users/account/dora: uid 1002"]),
        ("is uid 1002 free?", ["no: users/account/dora: uid 1002"]),
        ("is there a second account with uid 1002", []),
        # no observer lists all accounts, so that nothing is certain
        ("is there a user with uid 1004?", []),
    ):
        hits = json.loads(run(served, "search", question, "--json").stdout)
        assert [hit["verdict"] for hit in hits if "verdict" in hit] == found, question
        names = {hit["name"] for hit in hits if hit["name"] in {"dora", "emil"}}
        assert names <= (
            {"emil"} if "1003" in question else {"dora"} if "1002" in question else set()
        )


def test_verdicts_of_what_observers_list(daemons: Callable[..., Running]) -> None:
    """Say that an object is not there where an observer lists all of its kind."""
    daemon = daemons(OBSERVE="users", VECTOR_LEVEL="none", STATE_FILE=EXAMPLE).start()
    daemon.wait_for_log("name=users .*state=up")
    for question, verdict in (
        ("is there a user called root?", "yes: users/account/root"),
        ("is there a user with uid 54321?", "no: no user here has uid 54321"),
        ("is uid 0 taken?", "yes: users/account/root: uid 0"),
        ("is there an account named bin-man?", "no: there is no account named bin-man"),
        ("is root in the group root?", "yes: users/group/root: members "),
    ):
        assert as_json(daemon, "search", question)[0]["verdict"].startswith(verdict)


def test_everything_is_no_object(served: Running) -> None:
    """List what drifts where a question asks for all, or for what there is no object of."""
    for question in ("is everything as declared?", "are all services as declared"):
        assert "answers" not in as_json(served, "ask", question)["answer"]
    done = run(served, "ask", "is frobnicator as declared?")
    assert done.stderr.strip() == "no object is called frobnicator"
    assert len(done.stdout.splitlines()) == 1


@pytest.mark.parametrize(
    ("question", "code"),
    [
        ("is redis-server as declared?", 0),
        ("is sshd as declared?", 10),
        ("is the hostname as declared?", 10),
        ("is frobnicator as declared?", 11),
        ("is stranger as declared?", 11),
        ("is gauge as declared?", 11),
        ("is everything as declared?", 10),
        # a name alone asks the same
        ("sshd", 10),
        ("redis-server", 0),
        ("stranger", 11),
        ("tcp 0.0.0.0:22", 11),
        ("services", 10),
    ],
)
def test_an_exit_code_answers_a_question_of_one_object(
    served: Running, question: str, code: int
) -> None:
    """End with 0 for yes, 10 for no, and 11 where nothing of this name is compared."""
    assert run(served, "drift", "--about", question, "--exit-code").returncode == code


def ask(daemon: Running, question: str, limit: int = 10) -> list[Any]:
    """Call State1.Ask."""

    async def work() -> list[Any]:
        async with calling(daemon.bus) as caller:
            return await _ask(caller, question, limit)

    return asyncio.run(work())


async def _ask(caller: Caller, question: str, limit: int) -> list[Any]:
    return await caller.ask("Ask", question, limit, {})


def test_the_bus_answers_with_rows_of_the_method(served: Running) -> None:
    """Return the route, the options that the question gives, and rows as that method returns."""
    for name, (question, _) in QUESTIONS.items():
        route, given, rows = ask(served, question)
        assert route == name
        assert rows
        assert set(given) == (
            {"since"} if name == "changes" else {"about"} if name == "drift" else set()
        )
    hits = ask(served, "who checks passwords", 2)[2]
    assert [len(hit) for hit in hits] == [3, 3]
    assert ask(served, "are you ready")[2]["State"] in {"ready", "degraded"}
    assert ask(served, "why did the unit fail")[1] == {"before_event": "the unit fail"}
    assert ask(served, "why did the unit fail yesterday")[1].keys() == {
        "before_event",
        "since",
        "before",
    }


def test_the_command_takes_the_time_of_an_event(served: Running) -> None:
    """Take with an event the time before which it was, and with a time nothing but it."""
    times = "--since", "2020-01-01", "--until", "2020-01-02"
    assert run(served, "changes", "--before", "the unit failed", *times).stdout == ""
    refused = run(served, "changes", "--before", "yesterday", "--until", "today")
    assert "--until goes with --before EVENT" in refused.stderr


def test_the_answer_so_far(daemons: Callable[..., Running], system_bus: str) -> None:
    """Until every observer has read the host, answers and the status say so, and none is sure."""
    daemon = daemons(OBSERVE="org.example.Slow", VECTOR_LEVEL="none", STATE_FILE=EXAMPLE)
    note = "the host is still being read (org.example.Slow): that is the answer so far"

    async def work() -> None:
        async with Connection(system_bus) as silent, calling(daemon.bus) as caller:
            await silent.own("org.example.Slow")
            daemon.start()
            await caller.ready()
            # the observer waits for ten seconds
            (hits,) = await caller.ask("Search", "sshd", 10, {})
            assert [details["so_far"] for _, _, details in hits] == [True] * len(hits)
            assert max(score for _, score, _ in hits) <= 0.5
            shown = await asyncio.to_thread(run_cli, "status")
            assert "so far" in shown.stdout.splitlines()[0]
            question = "which operating system is this?"
            assert note in (await asyncio.to_thread(run_cli, "ask", question)).stderr

    def run_cli(*words: str) -> Any:
        return daemon.cli(*words)

    asyncio.run(work())
    daemon.wait_for_log("name=org.example.Slow .*state=(failed|absent)")
    assert note not in run(daemon, "search", "sshd").stderr
    hits = json.loads(run(daemon, "search", "sshd", "--json").stdout)
    assert hits[0]["score"] > 0.5
    assert "so_far" not in hits[0]
    assert "so far" not in run(daemon, "status").stdout.splitlines()[0]
