"""What history says of the changes of a booted host: the right cause and fields, and no other row.

All observers run but those of what hosts share; each test makes one change, and looks at all rows
that follow.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.debian import build, needs_dpkg

from system.booting import booted, why_not
from system.host import Host
from system.recorded import History, Row, fields, recorded

UNITS = "/run/systemd/system"
# What only systemd sees has followed by then.
SOON = 1.5
OF_UNITS = "live:systemd"
RUN, PORT = "probe-run.service", "tcp 127.0.0.1:4711"
ACCEPT = "import socket; socket.socket(fileno=3).accept()"
CONNECTING = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
LISTEN = (
    "import socket, time; s = socket.socket(); s.bind(('127.0.0.1', 4711)); s.listen();"
    " time.sleep(1e6)"
)
CONNECT = f"""python3 -c '{CONNECTING}'"""
ENABLED = ("enabled", "unit_file_state")
FILES = {
    RUN: "[Service]\nExecStart=/bin/sleep infinity\nExecReload=/bin/true\n",
    "probe-again.service": "[Service]\nExecStart=/bin/sleep infinity\nRestart=always\n",
    "probe-fail.service": "[Service]\nExecStart=/bin/false\n",
    "probe-slow.service": "[Service]\nExecStart=/bin/sleep infinity\nExecStop=/bin/sleep 1\n",
    "probe-ready.service": "[Service]\nType=notify\nNotifyAccess=all\nExecStart=/bin/sh -c"
    " 'sleep 0.3; systemd-notify --ready; exec sleep infinity'\n",
    "probe-once.service": "[Service]\nType=oneshot\nExecStart=/bin/true\n",
    "probe-often.service": "[Service]\nType=oneshot\nExecStart=/bin/sh -c"
    " 'sleep 0.7; test ! -e /run/probe-often'\n",
    "probe-often.timer": "[Timer]\nOnActiveSec=1\nOnUnitInactiveSec=3\nAccuracySec=1ms\n",
    "probe-enable.service": "[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=basic.target\n",
    "probe-port.service": f'[Service]\nExecStart=/usr/bin/python3 -c "{LISTEN}"\n',
}
for kind, line in (("path", "PathChanged"), ("socket", "ListenStream")):
    FILES[f"probe-by-{kind}.{kind}"] = f"[{kind.title()}]\n{line}=/run/probe-by-{kind}\n"
FILES["probe-by-path.service"] = FILES["probe-once.service"]
FILES["probe-by-socket.service"] = f'[Service]\nExecStart=/usr/bin/python3 -c "{ACCEPT}"\n'
# What runs before the observers do.
RUNNING = "probe-again.service probe-slow.service probe-by-path.path probe-by-socket.socket".split()
USERADD = "getent passwd probe || useradd --system --no-create-home probe"


@pytest.fixture(scope="module")
def bare() -> Iterator[Host]:
    """Boot a host without op-dbus."""
    if reason := why_not():
        pytest.skip(reason)
    with booted("dbus") as host:
        for name, text in FILES.items():
            host.write(f"{UNITS}/{name}", text)
        host.ask("systemctl", "daemon-reload")
        host.ask("systemctl", "start", *RUNNING)
        yield host


@pytest.fixture(scope="module")
def history(bare: Host) -> Iterator[History]:
    """Observe it."""
    with recorded(bare) as history:
        yield history


def told(rows: list[Row]) -> list[tuple[str, str, str]]:
    """Give the rows in short, with jobs and times without their numbers.

    A busy host is slow enough for states between to be seen; their number is left out.
    """
    numbers = re.compile(r"(?<=job:)\d+|(?<=:)\d{4}-\d\d-\d\dT[\d:]+")
    causes = [row["cause"].partition(", after ")[0] for row in rows]
    return [
        (row["name"], row["what"], numbers.sub("N", cause))
        for row, cause in zip(rows, causes, strict=True)
    ]


def of_units(rows: list[Row]) -> list[tuple[str, str, str]]:
    """Give those of units in short: other observers may see a change sooner or later."""
    return told([row for row in rows if row["source"] == OF_UNITS])


def runs(name: str, cause: str) -> list[list[tuple[str, str, str]]]:
    """Give the rows of a short run: one, or two on a host so busy that its middle is seen."""
    return [[(name, "event", cause)], [(name, "changed", cause)] * 2]


def test_the_life_of_a_service(bare: Host, history: History) -> None:
    """Starts, stops and restarts are rows with their jobs, one of each, and exits are exits."""
    bare.ask("systemctl", "start", RUN)
    (row,) = rows = history.news()
    assert told(rows) == [(RUN, "changed", "job:N start")]
    assert fields(row)["active_state"] == ("inactive", "active")
    bare.ask("systemctl", "restart", RUN)
    rows = history.news()
    assert told(rows) in runs(RUN, "job:N restart")
    assert len(rows) > 1 or (rows[0]["fields"], rows[0]["folded"]) == ([], 0)
    bare.ask("systemctl", "reload", RUN)
    assert told(history.news()) == [(RUN, "event", "job:N reload")]
    bare.ask("systemctl", "stop", RUN)
    rows = history.news()
    # a busy host is slow enough for `deactivating` to be seen
    assert told(rows) in [[(RUN, "changed", "job:N stop")] * count for count in (1, 2)]
    assert {name for row in rows for name in fields(row)} == {"active_state", "sub_state"}
    bare.ask("systemctl", "start", RUN)
    history.news()
    bare.ask("systemctl", "kill", "--signal=KILL", RUN)
    (row,) = rows = history.news()
    assert told(rows) == [(RUN, "changed", "exit")]
    assert fields(row)["exit_signal"] == (None, "SIGKILL")


def test_a_service_that_fails(bare: Host, history: History) -> None:
    """A service that fails at its start failed by that job, or a moment later by itself."""
    bare.ask("systemctl", "start", "probe-fail.service")
    rows = history.news(quiet=SOON)
    assert told(rows)[0] == ("probe-fail.service", "changed", "job:N start")
    assert told(rows)[1:] in ([], [("probe-fail.service", "changed", "exit")])
    assert fields(rows[-1])["result"] == (None, "exit-code")


def test_a_service_that_systemd_restarts(bare: Host, history: History) -> None:
    """A service that is killed and started again was killed, whether or not its fall is seen."""
    name = "probe-again.service"
    bare.ask("systemctl", "kill", "--signal=KILL", name)
    first, *rest = rows = history.news()
    assert told(rows) in (
        [(name, "event", "exit:SIGKILL")],
        [(name, "changed", "exit"), (name, "changed", "job:N restart, automatic")],
    )
    assert not rest or fields(first)["exit_signal"] == (None, "SIGKILL")


def test_a_stop_right_after_a_start(bare: Host, history: History) -> None:
    """A service that came up and was stopped at once was active, and was stopped by the job."""
    name = "probe-ready.service"
    bare.ask("sh", "-c", f"systemctl start {name} && systemctl stop {name}")
    rows = history.news(quiet=SOON)
    states = [fields(row).get("active_state") for row in rows if row["name"] == name]
    assert states[-1] in (("active", "inactive"), ("deactivating", "inactive"), None)
    assert told(rows)[-1][2].startswith("job:N stop")


def test_a_slow_restart(bare: Host, history: History) -> None:
    """A restart whose middle is seen has its job at both ends."""
    name = "probe-slow.service"
    bare.ask("systemctl", "restart", name)
    first, last = rows = history.news(2)
    assert told(rows) == [(name, "changed", "job:N restart")] * 2
    assert first["cause"] == last["cause"]
    assert fields(last)["active_state"] == ("deactivating", "active")


def test_enabling_and_masking(bare: Host, history: History) -> None:
    """What a reload finds has it as its cause; one that changes nothing is no row."""
    name, masked = "probe-enable.service", "probe-mask.service"
    bare.ask("systemctl", "enable", "--runtime", name)
    (row,) = rows = history.news()
    assert told(rows) == [(name, "changed", "reload")]
    assert fields(row)["enabled"] == (False, True)
    bare.ask("systemctl", "disable", "--runtime", name)
    assert told(history.news()) == [(name, "changed", "reload")]
    bare.ask("systemctl", "mask", "--runtime", masked)
    assert told(history.news()) == [(masked, "appeared", "reload")]
    bare.ask("systemctl", "unmask", "--runtime", masked)
    assert told(history.news()) == [(masked, "gone", "reload")]
    bare.ask("systemctl", "daemon-reload")
    assert history.settled(SOON) == []


def test_files_and_a_job_at_once(bare: Host, history: History) -> None:
    """What a drop-in changed is told apart from the restart; disabled and stopped is one row."""
    bare.ask("systemctl", "restart", RUN)
    history.news()
    path = f"{UNITS}/{RUN}.d/nice.conf"
    bare.write(path, "[Service]\nNice=5\n")
    bare.ask("sh", "-c", f"systemctl daemon-reload; systemctl restart {RUN}")
    rows = [row for row in history.news(3) if row["name"] == RUN]
    assert told(rows)[0] == (RUN, "changed", "reload")
    assert told(rows)[1:] in runs(RUN, "job:N restart")
    assert fields(rows[0]) == {"drop_ins": (None, [path])}
    name = "probe-now.service"
    bare.write(f"/usr/local/lib/systemd/system/{name}", FILES[RUN])
    bare.ask("systemctl", "daemon-reload")
    bare.ask("systemctl", "start", name)
    assert of_units(history.news(3)) == [
        (name, "appeared", "reload"), (name, "changed", "job:N start")
    ]  # fmt: skip
    bare.ask("systemctl", "mask", "--now", name)
    rows = history.news(quiet=2 * SOON)
    # a busy host is slow enough for the states between to be seen, in either order, or late
    while "job:N stop" not in (causes := {cause for _, _, cause in told(rows)}):
        rows += history.news(quiet=2 * SOON)
    assert {row["name"] for row in rows} == {name}
    assert causes <= {"job:N stop", "reload"}
    assert (False, True) in [fields(row).get("masked") for row in rows]


def test_a_timer(bare: Host, history: History) -> None:
    """What a timer starts names it, where systemd says so; the timer changes for the same job."""
    timer, service = "probe-once.timer", "probe-once.service"
    bare.write(f"{UNITS}/{timer}", "[Timer]\nOnActiveSec=3\nAccuracySec=1ms\n")
    bare.ask("systemctl", "daemon-reload")
    assert sorted(told(history.news(2))) == [
        (f"{UNITS}/{timer}", "appeared", ""), (timer, "appeared", "reload")
    ]  # fmt: skip
    bare.ask("systemctl", "start", timer)
    # loading the service is no change of it, although more is known of it then
    # soon, since it elapses after 3 seconds
    assert told(history.news(quiet=0.3)) == [(timer, "changed", "job:N start")]
    rows = told(history.news(2))
    by = f"job:N start by {timer}"
    assert [row for row in rows if row[0] == timer] == [(timer, "changed", by)]
    assert [row for row in rows if row[0] != timer] in runs(service, by)
    bare.ask("systemctl", "start", service)
    assert told(history.news()) in runs(service, "job:N start")


def test_what_a_timer_runs_again_and_again(bare: Host, history: History) -> None:
    """A run that takes its time is one row, and none of its timer's; one that fails has its own."""
    timer, service = "probe-often.timer", "probe-often.service"
    by = f"job:N start by {timer}"
    bare.ask("systemctl", "start", timer)
    history.until(service, "event")
    rows = of_units(history.news(4, 0.5))
    assert rows[0] == (timer, "changed", "job:N start")
    assert set(rows[1:]) == {(service, "event", by)}
    bare.ask("touch", "/run/probe-often")
    history.until(service, "changed")
    bare.ask("systemctl", "stop", timer)
    rows = of_units(history.settled())
    assert (service, "changed", by) in rows
    assert {row for row in rows if row[0] == timer} == {(timer, "changed", "job:N stop")}


@pytest.mark.parametrize("kind", ["path", "socket"])
def test_what_starts_a_service(bare: Host, history: History, kind: str) -> None:
    """A path or a socket that starts a service is named each time."""
    touch = {"path": "touch", "socket": CONNECT}[kind]
    trigger, service = f"probe-by-{kind}.{kind}", f"probe-by-{kind}.service"
    by = f"job:N start by {trigger}"
    # a busy host is slow enough for its run, and what the trigger does meanwhile, to be seen
    seen = {(service, "changed", by), (service, "changed", "exit"), (trigger, "changed", by)}
    seen |= {(trigger, "changed", "exit")}
    for _ in range(2):
        bare.ask("sh", "-c", f"{touch} /run/probe-by-{kind}")
        rows = told(history.news(quiet=SOON))
        if rows != [(service, "event", by)]:
            # a oneshot service ends with its job, and another one by its exit
            while [row[:2] for row in rows].count((service, "changed")) < 2:
                rows += told(history.news(quiet=SOON))
            assert {(service, "changed", by)} <= set(rows) <= seen


def test_a_unit_that_is_started_with_its_file(bare: Host, history: History) -> None:
    """A new unit came by the reload, and was started by the job; first known, then loaded."""
    for pause in (0, 0.6):
        name = f"probe-new-{pause}.service"
        bare.write(f"{UNITS}/{name}", f"{FILES[RUN]}[Install]\nWantedBy=basic.target\n")
        enable = f"systemctl enable --runtime --now {name}"
        bare.ask("sh", "-c", f"systemctl daemon-reload; sleep {pause}; {enable}")
        rows = [row for row in history.news(3) if row["source"] == OF_UNITS]
        assert told(rows) == [(name, "appeared", "reload"), (name, "changed", "job:N start")]
        assert fields(rows[1])["active_state"] == ("inactive", "active")
        assert fields(rows[1]).keys() <= {"active_state", "sub_state", *ENABLED}


def test_a_port(bare: Host, history: History) -> None:
    """A port is opened and closed by the job of its unit, or by its exit."""
    unit = "probe-port.service"
    bare.ask("systemctl", "start", unit)
    job = history.until(PORT, "appeared")["cause"]
    # which of both is seen first depends on how busy the host is
    assert sorted(told(history.settled(SOON))) == [
        (unit, "changed", "job:N start"), (PORT, "appeared", "job:N start")
    ]  # fmt: skip
    assert job.startswith("job:")
    bare.ask("systemctl", "kill", unit)
    history.until(PORT, "gone")
    rows = sorted(told(history.settled(SOON)))
    assert [(name, what) for name, what, _ in rows] == [(unit, "changed"), (PORT, "gone")]
    assert {cause for *_, cause in rows} == {"exit"}


def test_an_address(bare: Host, history: History) -> None:
    """An address comes and goes by the kernel's word, and its interface has it."""
    address = "192.0.2.77/32"
    for what, verb in (("appeared", "add"), ("gone", "del")):
        bare.ask("ip", "address", verb, address, "dev", "lo")
        rows = told(history.news(2))
        assert sorted(rows) == [(f"{address} on lo", what, "kernel"), ("lo", "changed", "kernel")]


def test_an_account(bare: Host, history: History) -> None:
    """An account comes with its group and the files that hold both, for a reason nobody knows."""
    bare.ask("useradd", "--no-create-home", "somebody")
    rows = told(history.news(8))
    assert {("somebody", "appeared", "")} <= set(rows)
    files = {"/etc/passwd", "/etc/group", "/etc/shadow", "/etc/gshadow"}
    files |= {"/etc/subuid", "/etc/subgid"}
    assert {name for name, _, _ in rows} - files == {"somebody"}
    assert {cause for _, _, cause in rows} == {""}


@needs_dpkg
def test_packages(bare: Host, history: History, tmp_path: Path) -> None:
    """All that a run of dpkg changes has it as its cause: 30 packages are 30 rows."""
    names = [f"probe-{number:02}" for number in range(30)]
    for version, what in (("1.0", "appeared"), ("2.0", "changed")):
        for name in names:
            file = build(tmp_path, name, version=version, files={f"/usr/share/{name}": version})
            bare.path(f"/root/{file.name}").write_bytes(file.read_bytes())
        bare.ask("sh", "-c", f"dpkg --install /root/probe-*-{version}.deb")
        rows = history.news(len(names))
        assert sorted(told(rows)) == [(name, what, "dpkg:N") for name in names]
        assert len({row["cause"] for row in rows}) == 1
        assert {row["folded"] for row in rows} == {0}
    assert {frozenset(fields(row)) for row in rows} == {frozenset({"version"})}
    bare.ask("dpkg", "--purge", *names)
    rows = history.news(len(names))
    assert sorted(told(rows)) == [(name, "gone", "dpkg:N") for name in names]


@needs_dpkg
def test_what_a_package_brings(bare: Host, history: History, tmp_path: Path) -> None:
    """Accounts, configuration and units that come with a package have its run as their cause."""
    files = {"/etc/probe.conf": "a=1\n", "/lib/systemd/system/probe.service": FILES[RUN]}
    scripts = {
        "postinst": f"#!/bin/sh\n{USERADD}\nsystemctl daemon-reload\n",
        "prerm": "#!/bin/sh\nsystemctl stop probe.service\n",
        "postrm": "#!/bin/sh\nsystemctl daemon-reload\n",
    }
    file = build(tmp_path, "probe", files=files, scripts=scripts)
    bare.path("/root/probe.deb").write_bytes(file.read_bytes())
    bare.ask("dpkg", "--install", "/root/probe.deb")
    rows = told(history.news(9))
    assert {cause for _, _, cause in rows} == {"dpkg:N"}
    appeared = {name for name, what, _ in rows if what == "appeared"}
    assert appeared == {"probe", "probe.service", "/etc/probe.conf"}
    bare.ask("systemctl", "start", "probe.service")
    history.news()
    bare.ask("dpkg", "--purge", "probe")
    for name in appeared:
        history.until(name, "gone")
    gone = {(name, cause) for name, what, cause in told(history.news()) if what == "gone"}
    assert gone == {(name, "dpkg:N") for name in appeared}


@needs_dpkg
def test_what_follows_a_package_run(bare: Host, history: History, tmp_path: Path) -> None:
    """What others change at once after a run of dpkg is none of its doing."""
    drop_in = f"{UNITS}/{RUN}.d/after.conf"
    bare.path(drop_in).parent.mkdir(exist_ok=True)
    package = build(tmp_path, "probe-bare", files={"/etc/probe-bare.conf": "a=1\n"})
    bare.path("/root/probe.deb").write_bytes(package.read_bytes())
    others = f"groupadd others; echo [Service] >{drop_in}; systemctl daemon-reload"
    for verb, what in (("--install /root/probe.deb", "appeared"), ("--purge probe-bare", "gone")):
        bare.ask("sh", "-c", f"dpkg {verb}; {others}")
        rows = told(history.news(7))
        ours = {("probe-bare", what, "dpkg:N"), ("/etc/probe-bare.conf", what, "dpkg:N")}
        assert ours <= set(rows)
        assert {cause for name, _, cause in rows if "probe-bare" not in name} == {"", "reload"}
        assert (RUN, "changed", "reload") in rows
        others = f"groupdel others; rm {drop_in}; systemctl daemon-reload"
