"""What the journal says of users and failed units: its lines, and what is published of them."""

import asyncio
import json
import os
import re
import sqlite3
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from harness.running import Caller, Running, calling, state_file

from opdbus.bus import paths
from opdbus.bus.transport.connection import RemoteError
from opdbus.platform.tasks import cancel
from opdbus.publishers import failure_reasons, journal_follower, journal_lines
from opdbus.publishers.failure_reasons import Line
from opdbus.publishers.journal_lines import (
    Act,
    ActStarted,
    CommandContinued,
    Failure,
    RootLoggedIn,
    SessionClosed,
)

AT = 1_795_771_787_089_206
SUDO = "bob : TTY=pts/0 ; PWD=/ ; USER=root ; COMMAND=/usr/bin/systemctl stop chrony"
STOP = "/usr/bin/systemctl stop chrony"
KEY = "b1 77"
BOOT = Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
POLKIT = (
    "Operator of unix-process:9028:5251384 successfully authenticated as unix-user:alice to gain"
    " ONE-SHOT authorization for action org.freedesktop.systemd1.manage-units for"
    " system-bus-name::1.510 [systemctl start php] (owned by unix-user:bob)"
)
OPENED = "session opened for user root(uid=0) by"


def row(message: object, program: str = "sudo", **fields: str) -> dict[str, Any]:
    """Make an entry as journalctl gives it."""
    usual = {"_UID": "0", "_PID": "77", "_BOOT_ID": "b1", "SYSLOG_IDENTIFIER": program}
    times = {"__REALTIME_TIMESTAMP": str(AT), "__CURSOR": "c1"}
    return {**usual, **times, "MESSAGE": message, **fields}


def parsed(message: object, program: str = "sudo", **fields: str) -> journal_lines.Event | None:
    """Parse an entry on a host where bob, an administrator, is user 1000."""
    entry = journal_lines.read_entry(json.dumps(row(message, program, **fields)).encode())
    assert entry
    names = {0: "root", 1000: "bob", 1001: "carol"}
    return journal_lines.parse_event(
        entry, lambda uid: names.get(uid, str(uid)), lambda uid: uid in {0, 1000}
    )


def started(
    user: str, program: str, command: str = "", folder: str = "", **more: Any
) -> ActStarted:
    """Make the beginning of an act."""
    return ActStarted(KEY, Act(user, AT, program, command, folder), **more)


ACCEPTED = "@cee:" + json.dumps({
    "sudo": {
        "accept": {
            "uuid": "u", "server_time": {"seconds": 1}, "submituser": "bob",
            "submitcwd": "/home/bob",
            "runuser": "root", "runcwd": "/srv", "command": "/bin/sh",
            "runargv": ["sh", "-c", "id\nsystemctl stop a"],
        }
    }
})  # fmt: skip
OF_BOB = {"_UID": "1000", "_EXE": "/usr/bin/sudo"}
SAID: list[tuple[str, str, dict[str, str], object]] = [
    # sudo 1.8 and 1.9, as root's process and as that of the user; without a terminal; sudo-rs
    (SUDO, "sudo", {}, started("bob", "sudo", STOP, "/")),
    (f"     {SUDO}", "sudo", OF_BOB, started("bob", "sudo", STOP, "/")),
    (f"  bob : PWD=/srv/a b ; USER=root ; COMMAND={STOP}", "sudo", OF_BOB,
     started("bob", "sudo", STOP, "/srv/a b")),
    (f"bob : HOST=h ; TTY=pts/0 ; PWD=/ ; USER=root ; TSID=0001 ; COMMAND={STOP}", "sudo",
     {"_UID": "1000", "_EXE": "/usr/lib/cargo/bin/sudo-rs"}, started("bob", "sudo", STOP, "/")),
    # sudo-rs without a terminal, and as Debian and Arch call it
    (f"bob :  PWD=/ ; USER=root ; COMMAND={STOP}", "sudo-rs",
     {"_UID": "1000", "_EXE": "/usr/bin/sudo-rs"}, started("bob", "sudo", STOP, "/")),
    (f"pam_unix(sudo-rs:session): {OPENED} bob(uid=1000)", "sudo-rs", {},
     started("bob", "sudo", is_open=True)),
    ("pam_unix(su-rs:session): session opened for user root by bob(uid=1000)", "su-rs", {},
     started("bob", "su", is_open=True)),
    # accounts with a blank, as of Active Directory
    (SUDO.replace("bob", "bob smith"), "sudo", {}, started("bob smith", "sudo", STOP, "/")),
    (SUDO.replace("bob", "EXAMPLE\\bob smith"), "sudo", {},
     started("EXAMPLE\\bob smith", "sudo", STOP, "/")),
    (f"pam_unix(sudo:session): {OPENED} bob smith(uid=1000)", "sudo", {},
     started("bob", "sudo", is_open=True)),
    ("bob smith ran command id as root from /", "doas", {},
     started("bob smith", "doas", "id", "/")),
    (f"bob smith: Executing command [USER=root] [TTY=unknown] [CWD=/] [COMMAND={STOP}]", "pkexec",
     {}, started("bob smith", "pkexec", STOP, "/")),
    # commands of several lines, of sudo 1.9.13 on and of sudo-rs
    (SUDO.replace(STOP, "/bin/sh -c 'id#012systemctl stop a'"), "sudo", {},
     started("bob", "sudo", "/bin/sh -c 'id; systemctl stop a'", "/")),
    (SUDO.replace(STOP, "/bin/sh -c 'id\\nsystemctl stop a'"), "sudo-rs", {},
     started("bob", "sudo", "/bin/sh -c 'id; systemctl stop a'", "/")),
    (SUDO.replace(STOP, "/usr/bin/printf 'a\\nb #0123'"), "sudo", {},
     started("bob", "sudo", "/usr/bin/printf 'a\\nb ; 3'", "/")),
    # log_format=json
    (ACCEPTED, "sudo", {}, started("bob", "sudo", "/bin/sh -c 'id; systemctl stop a'", "/srv")),
    (ACCEPTED.replace("@cee:", "@cee: "), "sudo", OF_BOB,
     started("bob", "sudo", "/bin/sh -c 'id; systemctl stop a'", "/srv")),
    (ACCEPTED.replace('"runuser": "root"', '"runuser": "www-data"'), "sudo", {}, None),
    (ACCEPTED.replace('"accept"', '"reject"'), "sudo", {}, None),
    (ACCEPTED.replace("bob", "alice"), "sudo", OF_BOB, None),
    ("bob : (command continued) -- chrony ntp", "sudo", OF_BOB,
     CommandContinued(KEY, "bob", "-- chrony ntp")),
    # older and newer pam_unix
    (f"pam_unix(sudo:session): {OPENED} (uid=1000)", "sudo", OF_BOB,
     started("bob", "sudo", is_open=True)),
    (f"pam_unix(sudo-i:session): {OPENED} bob(uid=1000)", "sudo", OF_BOB,
     started("bob", "sudo", is_open=True)),
    ("pam_unix(su:session): session opened for user root by bob(uid=1000)", "su", {},
     started("bob", "su", is_open=True)),
    (f"pam_unix(su-l:session): {OPENED} root(uid=0)", "su", {"_AUDIT_LOGINUID": "1000",
     "_CMDLINE": "su - -c \"systemctl stop chrony\""},
     started("bob", "su", "systemctl stop chrony", is_open=True)),
    ("pam_unix(sudo:session): session closed for user root", "sudo", OF_BOB,
     SessionClosed(KEY, AT)),
    # others that make a user root
    ("bob ran command systemctl stop chrony as root from /home/bob", "doas", {},
     started("bob", "doas", "systemctl stop chrony", "/home/bob")),
    (f"bob: Executing command [USER=root] [TTY=/dev/pts/0] [CWD=/home/bob] [COMMAND={STOP}]",
     "pkexec", {}, started("bob", "pkexec", STOP, "/home/bob")),
    (POLKIT, "polkitd", {"_UID": "998", "_SYSTEMD_UNIT": "polkit.service"},
     ActStarted(f"{KEY} {AT}", Act("bob", AT, "polkit", "systemctl start php"))),
    (f"pam_unix(sshd:session): {OPENED} (uid=0)", "sshd", {}, started("root", "ssh", is_open=True)),
    (f"pam_unix(login:session): {OPENED} LOGIN(uid=0)", "login", {},
     started("root", "login", is_open=True)),
    ("Accepted publickey for root from 10.0.0.5 port 5022 ssh2: ED25519 SHA256:abc",
     "sshd-session", {}, RootLoggedIn(KEY, "10.0.0.5")),
    ("Accepted password for root from fe80::1%eth0 port 5022 ssh2", "sshd", {},
     RootLoggedIn(KEY, "fe80::1%eth0")),
    # a process that had ended when journald looked: of an administrator about itself
    (SUDO, "sudo", {"_UID": "1000"}, started("bob", "sudo", STOP, "/")),
    (SUDO.replace("bob", "alice"), "sudo", {"_UID": "1000"}, None),
    (SUDO.replace("bob", "carol"), "sudo", {"_UID": "1001"}, None),
    ("pam_unix(sudo:session): session closed for user root", "sudo", {"_UID": "1001"}, None),
    # not root, and not allowed to be root
    ("Accepted publickey for bob from 10.0.0.5 port 5022 ssh2", "sshd", {}, None),
    (SUDO.replace("USER=root", "USER=postgres"), "sudo", {}, None),
    ("pam_unix(su:session): session opened for user bob(uid=1000) by (uid=0)", "su", {}, None),
    (SUDO.replace(" : ", " : user NOT in sudoers ; "), "sudo", {}, None),
    (SUDO.replace(" : ", " : 3 incorrect password attempts ; "), "sudo", {}, None),
    (SUDO.replace(" : ", " : command not allowed ; "), "sudo", {}, None),
    (f"{SUDO} ; EXIT=1", "sudo", {}, None),
    ("    bob : unable to resolve host h: Temporary failure in name resolution", "sudo", {}, None),
    ("    bob : unknown user nosuch ; PWD=/ ; USER=nosuch ;", "sudo", {}, None),
    # what anybody may log: the program is another one, or it says something of somebody else
    (SUDO, "sudo", {"_UID": "1000", "_EXE": "/usr/bin/logger"}, None),
    (SUDO, "sudo", {"_UID": "1000", "_EXE": "/home/bob/sudo"}, None),
    (SUDO.replace("bob", "alice"), "sudo", OF_BOB, None),
    (SUDO, "sudo", {"_UID": "1001", "_EXE": "/usr/bin/sudo"}, None),
    (POLKIT, "polkitd", {"_SYSTEMD_UNIT": "evil.service"}, None),
    (SUDO, "sudo", {"CONTAINER_ID": "abc"}, None),
    # names and folders that can be read in two ways
    (f"root : TTY : TTY=pts/0 ; PWD=/ ; USER=root ; COMMAND={STOP}", "sudo", {}, None),
    (f"bob : PWD=/tmp/a ; USER=root ; COMMAND=x ; USER=root ; COMMAND={STOP}", "sudo", {}, None),
    (f"bob : PWD=/a ; USER=root ; PWD=/b ; USER=root ; COMMAND={STOP}", "sudo", {}, None),
    (f"{SUDO}\nbob : more", "sudo", {}, None),
    ("bob ran command id as root from / as root from /", "doas", {}, None),
    ([98, 255, 10], "sudo", {}, None),
]  # fmt: skip


@pytest.mark.parametrize(("message", "program", "fields", "wanted"), SAID)
def test_what_a_line_says(
    message: object, program: str, fields: dict[str, str], wanted: object
) -> None:
    """A line is one of somebody who was allowed to be root, of a program that says so, or none."""
    assert parsed(message, program, **fields) == wanted


UNREAD = [
    (
        "bob % PWD=/srv/S3cret ; USER=root ; COMMAND=/usr/bin/id",
        "sudo",
        "x ? x=/x/x9x ; x=x ; x=/x/x/x",
    ),
    (f"{SUDO} ; USER=root ; COMMAND=x", "sudo", None),
    ('@cee:{"sudo":{"accept":{"user":"bob"}}}', "sudo", '?x:{"x":{"x":{"x":"x"}}}'),
    ("@cee:{cut", "sudo-rs", None),
    ("bob ran command id as root in /", "doas", None),
    ("bob: Executing command [TTY=unknown] [CWD=/] [COMMAND=id]", "pkexec", None),
    ("pam_unix(sudo:session): session opened for user root whoever", "sudo", None),
    ("Accepted password for root on port 22", "sshd", None),
    (f"{SUDO}\nmore", "sudo", None),
]
# Lines that have been understood, or are about something else.
OTHERS = [
    (SUDO, "sudo"), (ACCEPTED, "sudo"), (ACCEPTED.replace('"accept"', '"reject"'), "sudo"),
    (SUDO.replace("USER=root", "USER=postgres"), "sudo"),
    (SUDO.replace(" : ", " : user NOT in sudoers ; "), "sudo"),
    (SUDO.replace(" : ", " : 3 incorrect password attempts ; "), "sudo"),
    (SUDO.replace(" : ", " : a password is required ; "), "sudo"),
    (SUDO.replace(" : ", " : no tty present and no askpass program specified ; "), "sudo"),
    (SUDO.replace(" : ", " : timestamp owner (1001): Operation not permitted ; "), "sudo"),
    (SUDO.replace(" : ", " : timestamp too far in the future: Nov 28 10:00:00 2026 ; "), "sudo"),
    ("bob: Error executing command as another user: Not authorized [USER=root] [COMMAND=x]",
     "pkexec"),
    ("bob: The value for environment variable XAUTHORITY contains suspicious content [USER=root]",
     "pkexec"),
    (f"{SUDO} ; EXIT=1", "sudo"), ("bob ran command id as carol from /", "doas"),
    (POLKIT, "polkitd"), ("Connection closed by 10.0.0.5 port 5022", "sshd"),
    ("Accepted publickey for bob from 10.0.0.5 port 5022 ssh2", "sshd"),
    ("pam_unix(su:session): session opened for user bob(uid=1000) by (uid=0)", "su"),
    ("gkr-pam: unable to locate daemon control file", "login"),
]  # fmt: skip


def _unread(*lines: tuple[str, str]) -> str:
    batch = journal_follower.JournalBatch({}, BOOT)
    for message, program in lines:
        batch.take(json.dumps(row(message, program)).encode())
    return batch.unread


@pytest.mark.parametrize(("message", "program", "shape"), UNREAD)
def test_lines_that_are_not_understood_are_counted(
    message: str, program: str, shape: str | None
) -> None:
    """A line that should say who became root counts; its shape has none of its words."""
    found = _unread((message, program), *OTHERS, (message, program))
    assert found.startswith(f"2 lines of {program} not understood; the last: ")
    assert shape is None or found.endswith(f": {shape}")
    assert not {"S3cret", "bob", "root", "srv"} & set(re.split(r"\W", found))


def test_other_lines_are_not_counted() -> None:
    """Lines that are understood, and those about something else, do not count."""
    assert _unread(*OTHERS) == ""
    batch = journal_follower.JournalBatch({}, BOOT)
    batch.take(b"\n")
    assert batch.unread == ""
    batch.take(b"no JSON of 12345\n")
    assert batch.unread == "1 line of journalctl not understood; the last: x x x 9"


def test_a_failed_unit() -> None:
    """Only PID 1 says that a unit failed."""
    fields = {"MESSAGE_ID": journal_lines.FAILED, "UNIT": "a.service", "UNIT_RESULT": "exit-code"}
    of_pid1 = parsed("a.service: Failed", "systemd", _PID="1", INVOCATION_ID="f" * 32, **fields)
    assert of_pid1 == Failure("a.service", AT, "exit-code", "f" * 32)
    assert parsed("a.service: Failed", "systemd", INVOCATION_ID="f" * 32, **fields) is None


@pytest.mark.parametrize(
    "line", [b"", b"{", b"[]", b"1", b"{}", b'{"__REALTIME_TIMESTAMP": "x"}', b"[" * 10_000]
)
def test_what_is_no_entry(line: bytes) -> None:
    """A line that is no entry is left out."""
    assert journal_lines.read_entry(line) is None


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        (("starting", 'web: [emerg] unknown directive "x"', "configuration test failed"), 1),
        (("Traceback (most recent call last):", '  File "a.py", line 1', "ValueError: x"), 2),
        (("line 1: Bad configuration option: X", "terminating, 2 bad configuration options"), 0),
        (("cannot open /etc/a", "bye"), 0),
        (("one", "two"), 1),
    ],
)
def test_the_reason_of_a_failure(lines: tuple[str, ...], wanted: int) -> None:
    """The first line about an error says why a unit failed, without any the last line."""
    said = [Line(text, 6) for text in lines]
    of_systemd = Line("Failed to start a.service.", 3, is_of_systemd=True)
    reason = failure_reasons.describe_reason
    assert reason("exit-code", [of_systemd, *said, of_systemd]) == lines[wanted]
    assert reason("exit-code", [Line("of priority err", 3), *said]) == "of priority err"
    cause = Line("a.service: Failed to load environment files: No such file", 3, is_of_systemd=True)
    assert reason("resources", [of_systemd, cause, of_systemd]) == cause.text


def test_the_reason_of_a_killed_unit() -> None:
    """Of a unit that was killed, systemd's result is the reason, whatever it had logged."""
    said = "a.service: Main process exited, code={}, status={}"
    for result, end, why in (
        ("signal", ("killed", "9/KILL"), "killed by SIGKILL"),
        ("core-dump", ("dumped", "11/SEGV"), "killed by SIGSEGV, with a core dump"),
        ("signal", ("exited", "1/FAILURE"), "killed by a signal"),
    ):
        of_systemd = Line(said.format(*end), 5, is_of_systemd=True)
        of_unit = Line(said.format("killed", "15/TERM"), 3)
        assert failure_reasons.describe_reason(result, [of_unit, of_systemd]) == why
    for lines in ([], [Line("error: harmless", 3)]):
        assert failure_reasons.describe_reason("signal", lines) == "killed by a signal"
        assert failure_reasons.describe_reason("oom-kill", lines) == "killed since memory was short"


async def test_a_command_that_has_said_all_ends_itself(tmp_path: Path) -> None:
    """A command whose output is read to its end is not killed, unless it never ends."""
    left = tmp_path / "left"
    for last in (f"touch {left}", "exec sleep 600"):
        script = f"echo x; exec >&-; sleep 0.2; {last}"
        async with journal_follower.running_command("sh", "-c", script) as lines:
            assert await lines.read() == b"x\n"
        assert left.exists()
    async with journal_follower.running_command("sh", "-c", "echo x; exec sleep 600") as lines:
        assert await lines.readline() == b"x\n"


def test_sessions_of_root_itself() -> None:
    """That root became root with su is nothing; its commands are, and that it logged in."""
    batch = journal_follower.JournalBatch({}, BOOT)

    def take(message: str, program: str, pid: str) -> None:
        batch.take(json.dumps(row(message, program, _PID=pid)).encode())

    take(f"pam_unix(su:session): {OPENED} root(uid=0)", "su", "1")
    take("pam_unix(su:session): session closed for user root", "su", "1")
    assert batch.users() == []
    take(SUDO.replace("bob", "root"), "sudo", "2")
    take(f"pam_unix(sudo:session): {OPENED} root(uid=0)", "sudo", "2")
    take(f"pam_unix(login:session): {OPENED} LOGIN(uid=0)", "login", "3")
    ((_, _, user, fields),) = batch.users()
    assert (user, [act["with"] for act in fields["ran"]]) == ("root", ["sudo"])
    assert [act["with"] for act in fields["as_root"]] == ["login"]


def test_texts_of_others_are_escaped() -> None:
    """What cannot be printed is escaped, and the length is bounded."""
    assert journal_lines.escape("a\x1b[31m\u202eb\x00\n") == r"a\x1b[31m\u202eb\x00\n"
    assert len(journal_lines.escape("\x00" * 5000, 300)) == 300


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("", ""),
        ("- root", ""),
        ("-c id -c 'systemctl stop a'", "systemctl stop a"),
        ("-cid root", "id"),
        ("-lc id", "id"),
        ("-s /bin/bash root --session-command=id", "id"),
        ("--comm id", "id"),
        ("- root -- -c id", "sh -c id"),
        ("--nonsense -c id", ""),
        ("-c 'id", ""),
    ],
)
def test_the_command_of_su(given: str, wanted: str) -> None:
    """The command is the one that su ran: the last that it was given, in any of the ways."""
    line = f"pam_unix(su:session): {OPENED} bob(uid=1000)"
    command = started("bob", "su", wanted, is_open=True)
    assert parsed(line, "su", _CMDLINE=f"su {given}") == command


def test_commands_are_cut_once_their_secrets_are_replaced() -> None:
    """Wherever a command is cut, nothing remains of a password that it has there."""
    for length in range(930, 1000):
        line = f"{SUDO} {'x' * length} postgres://app:hunter2-secret@db"
        found = parsed(line)
        assert isinstance(found, ActStarted)
        assert len(found.act.command) <= journal_lines.MAX_TEXT
        assert "hunter2" not in found.act.command


# A journal in a file: its lines are printed, and then those that are added; runs have others.
FAKE = """
import pathlib, sys, time
folder, *given = sys.argv[1:]
folder = pathlib.Path(folder)
runs = [each for each in given if each.startswith("_SYSTEMD_INVOCATION_ID=")]
assert "--all" in given, "fields over 4 KiB would be null"
if "--follow" not in given:
    path = folder / (runs[0].partition("=")[2] if runs else "boot")
    if given[-1] == "--lines=1":
        path = folder / "newest"
    elif not runs and not given[-1].startswith("_BOOT_ID="):
        sys.exit()
    sys.stdout.write(path.read_text() if path.exists() else "")
    sys.exit()
(folder / "since").write_text(next(each for each in given if "cursor=" in each or "since=" in each))
with (folder / "lines").open() as file:
    while True:
        sys.stdout.write(file.read())
        sys.stdout.flush()
        time.sleep(0.02)
"""


class FakeJournal:
    """A journal that the test writes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.command = (sys.executable, str(folder / "fake.py"), str(folder))
        (folder / "fake.py").write_text(FAKE)
        (folder / "lines").touch()
        self.state = folder / "state.json"
        self._count = 0

    def add(self, message: object, program: str = "sudo", **fields: str) -> None:
        """Add an entry of now, logged by this process."""
        self.write(self.entry(message, program, **fields))

    def write(self, entry: str, file: str = "lines") -> None:
        """Write an entry to a file."""
        with (self.folder / file).open("a") as written:
            written.write(entry)

    def entry(self, message: object, program: str = "sudo", **fields: str) -> str:
        """Make an entry of now, logged by this process."""
        self._count += 1
        now = {"__REALTIME_TIMESTAMP": str(int(time.time() * 1e6)), "_PID": str(os.getpid())}
        now["_BOOT_ID"] = BOOT
        line = row(message, program, **now, __CURSOR=f"c{self._count}") | fields
        return json.dumps(line) + "\n"

    def fail(self, unit: str, *lines: str, file: str = "lines") -> None:
        """Let a unit fail after it logged lines; in the file `boot`, before it was followed."""
        run = self.write_lines(unit, *lines)
        fields = {"MESSAGE_ID": journal_lines.FAILED, "UNIT": unit, "UNIT_RESULT": "exit-code"}
        entry = self.entry(f"{unit}: Failed", "systemd", _PID="1", INVOCATION_ID=run, **fields)
        self.write(entry, file)

    def write_lines(self, unit: str, *lines: str) -> str:
        """Let a unit have logged lines in its last run, and give that."""
        run = f"{abs(hash(unit)):032x}"
        (self.folder / run).write_text("".join(json.dumps(row(line)) + "\n" for line in lines))
        return run

    @asynccontextmanager
    async def followed(self, bus: str) -> AsyncIterator[None]:
        """Publish it."""
        task = asyncio.create_task(journal_follower.main(self.state, bus, self.command))
        yield
        await cancel([task])


async def shown(caller: Caller, kind: str, name: str) -> dict[str, Any]:
    """Return the published object of a user or a unit; empty if there is none."""
    path = paths.of("journal", kind, name)
    try:
        (text,) = await caller.ask("Get", path, {})
    except RemoteError:
        return {}
    return dict(json.loads(text)["observed"])


async def until_shown(
    caller: Caller, kind: str, name: str, is_so: Callable[[Any], object] = bool
) -> dict[str, Any]:
    """Wait until what is published of a user or a unit is so, and return it."""

    async def ask() -> bool:
        return bool(is_so(await shown(caller, kind, name)))

    await caller.until(ask, wanted=True)
    return await shown(caller, kind, name)


@pytest.fixture(scope="module")
def daemon(shared_daemons: Callable[..., Running], tmp_path_factory: Any) -> Running:
    """Run a daemon without objects."""
    file = state_file(tmp_path_factory.mktemp("declared") / "state.json", {})
    return shared_daemons(OBSERVE="none", STATE_FILE=file, VECTOR_LEVEL="none").start()


async def test_users_and_units_are_published(daemon: Running, tmp_path: Path) -> None:
    """Commands, sessions as root and last lines are published, without secrets, also later on."""
    fake = FakeJournal(tmp_path)
    opened = f"pam_unix(sudo:session): {OPENED} bob(uid=0)"
    closed = "pam_unix(sudo:session): session closed for user root"
    async with calling(daemon.bus) as caller:
        await caller.ready()
        async with fake.followed(daemon.bus):
            fake.add(SUDO.replace("stop chrony", "set-environment DB_PASSWORD=hunter2-secret"))
            fake.add(opened)
            found = await until_shown(caller, "user", "bob", lambda found: found.get("as_root"))
            (act,) = found["ran"]
            assert act["command"].endswith("DB_PASSWORD=[redacted]")
            assert [act] == found["as_root"]
            cut = f"{'x' * 270} postgres://app:hunter2-secret@db"
            lines = ["starting", "web: [emerg] no \x1b[31mdirective", "token=hunter2-secret-0123"]
            fake.fail("web.service", cut, *lines)
            (last,) = (await until_shown(caller, "failure", "web.service"))["failed"]
            assert last["why"] == "web: [emerg] no directive"
            assert (last["result"], len(last["lines"])) == ("exit-code", 4)
            # lines that the journal gets late
            fake.fail("late.service")
            fake.write_lines("late.service", "error: too late")
            (late,) = (await until_shown(caller, "failure", "late.service"))["failed"]
            assert late["why"] == "error: too late"
        # it goes on where it ended, and knows who was root
        async with fake.followed(daemon.bus):
            await caller.until(lambda: is_followed(fake, "--after-cursor=c4"), wanted=True)
            fake.add(closed)
            found = await until_shown(
                caller, "user", "bob", lambda found: found.get("as_root") == []
            )
            (left,) = found["was_root"]
            assert {**act, "until": left["until"]} == left
            # the end of a session is no command: those that came last stay
            assert found["ran"] == [act]
    everything = daemon.logs() + json.dumps([found, last]) + fake.state.read_text()
    assert "hunter2" not in everything
    assert b"hunter2" not in b"".join(p.read_bytes() for p in daemon.state_dir.glob("*.db*"))


def test_questions_to_op_dbus_are_left_out() -> None:
    """A command that only asks op-dbus is no command, nor a session; one that changes it is."""
    batch = journal_follower.JournalBatch({}, BOOT)
    opened = f"pam_unix(sudo:session): {OPENED} bob(uid=0)"
    for asking in ("op-dbus ask 'who stopped chrony?'", "/usr/bin/op-dbus changes --since -2h"):
        batch.take(json.dumps(row(SUDO.replace(STOP, asking))).encode())
        batch.take(json.dumps(row(opened)).encode())
        assert (batch.users(), batch.open) == ([], {})
        batch.take(json.dumps(row("pam_unix(sudo:session): session closed for user root")).encode())
    batch.take(json.dumps(row(SUDO.replace(STOP, "op-dbus history forget sshd"))).encode())
    batch.take(json.dumps(row(opened)).encode())
    ((*_, user, fields),) = batch.users()
    assert (user, len(fields["ran"]), len(fields["as_root"])) == ("bob", 1, 1)


async def is_followed(fake: FakeJournal, since: str) -> bool:
    """Return whether the journal is followed from a place on."""
    file = fake.folder / "since"
    return file.exists() and since in file.read_text()


async def test_it_begins_where_it_ended(daemon: Running, tmp_path: Path) -> None:
    """A restart goes on after the last entry; after an hour, with units that failed since boot.

    Until when it read is noted at its end, also where nothing was published for long.
    """
    fake = FakeJournal(tmp_path)
    fake.state.write_text(json.dumps({"cursor": "c0"}))
    fake.fail("before.service", "error: before", file="boot")
    fake.add(SUDO.replace("bob", "erin"))
    long_ago = time.time() - 7200
    async with calling(daemon.bus) as caller:
        await caller.ready()
        async with fake.followed(daemon.bus):
            await until_shown(caller, "user", "erin")
            assert await is_followed(fake, "--after-cursor=c0")
            os.utime(fake.state, (long_ago, long_ago))
        assert fake.state.stat().st_mtime > long_ago + 3600
        # the time of the file is that of a clock that may have been set
        os.utime(fake.state, (long_ago, long_ago))
        async with fake.followed(daemon.bus):
            await caller.until(lambda: is_followed(fake, "--after-cursor="), wanted=True)
        assert not await shown(caller, "failure", "before.service")
        state = json.loads(fake.state.read_text())
        state["saved"][1] -= 7200
        fake.state.write_text(json.dumps(state))
        async with fake.followed(daemon.bus):
            await until_shown(caller, "failure", "before.service")
            await caller.until(lambda: is_followed(fake, "--since=@"), wanted=True)


async def test_a_restart_reads_what_a_failed_unit_says_later(
    daemon: Running, tmp_path: Path
) -> None:
    """Lines that the journal got only after a restart are read."""
    fake = FakeJournal(tmp_path)
    fake.state.write_text(json.dumps({"cursor": "c0"}))
    fake.fail("later.service")
    fake.add(SUDO.replace("bob", "frank"))
    async with calling(daemon.bus) as caller:
        await caller.ready()
        async with fake.followed(daemon.bus):
            await until_shown(caller, "user", "frank")
        fake.write_lines("later.service", "error: later")
        (fake.folder / "lines").write_text("")
        async with fake.followed(daemon.bus):
            (last,) = (await until_shown(caller, "failure", "later.service"))["failed"]
    assert last["why"] == "error: later"


async def test_sessions_of_another_boot_are_ended(daemon: Running, tmp_path: Path) -> None:
    """A restart ends sessions of another boot, when they began, and keeps those of this one."""
    fake, pid = FakeJournal(tmp_path), os.getpid()
    of_boot = {"this": BOOT, "other": BOOT[:8]}
    sessions = {f"{boot} {pid}": ("dave", AT, "su", name) for name, boot in of_boot.items()}
    fake.state.write_text(json.dumps({"open": sessions}))
    async with calling(daemon.bus) as caller:
        await caller.ready()
        async with fake.followed(daemon.bus):
            found = await until_shown(caller, "user", "dave")
    assert [act["command"] for act in found["as_root"]] == ["this"]
    (ended,) = found["was_root"]
    assert (ended["command"], ended["until"]) == ("other", ended["at"])


async def test_a_flood_of_lines_costs_little(daemon: Running, tmp_path: Path) -> None:
    """Of 20,000 forged lines nothing is published, and a command among them is."""
    fake = FakeJournal(tmp_path)
    forged = json.dumps(row(SUDO, "sudo", _UID="1000", _EXE="/usr/bin/logger")) + "\n"
    with (fake.folder / "lines").open("a") as file:
        file.write(forged * 20_000)
    fake.add(SUDO.replace("bob", "carol"))
    began = time.process_time()
    async with calling(daemon.bus) as caller:
        await caller.ready()
        async with fake.followed(daemon.bus):

            async def is_there() -> bool:
                return bool(await shown(caller, "user", "carol"))

            await caller.until(is_there, wanted=True)
    assert time.process_time() - began < 4


def test_no_failure_is_lost_among_many() -> None:
    """However many units fail at once, each is looked at, up to those that are kept."""
    batch = journal_follower.JournalBatch({}, BOOT)
    for number in range(600):
        fields = {"MESSAGE_ID": journal_lines.FAILED, "UNIT": f"u{number}.service"}
        more = {"UNIT_RESULT": "exit-code", "INVOCATION_ID": "1", "_PID": "1"}
        batch.take(json.dumps(row("Failed", "systemd", **fields, **more)).encode())
        kept = min(number + 1, 500)
        assert len(batch.failed) == kept
    assert [*batch.failed] == [f"u{number}.service" for number in range(100, 600)]


async def test_no_command_is_lost_among_many(daemon: Running, tmp_path: Path) -> None:
    """Of more commands of a user than one change may have, several changes have all."""
    fake = FakeJournal(tmp_path)
    given = [SUDO.replace("bob", "gina").replace("chrony", f"unit{n}") for n in range(130)]
    entries = [
        fake.entry(text, _PID=str(10_000 + number)) for number, text in enumerate((*given, "last"))
    ]
    with (fake.folder / "lines").open("a") as file:
        file.write("".join(entries))
    fake.add(SUDO.replace("bob", "hal"))
    async with calling(daemon.bus) as caller:
        await caller.ready()
        async with fake.followed(daemon.bus):
            await until_shown(caller, "user", "hal")
    with closing(sqlite3.connect(daemon.state_dir / "memory.db")) as reader:
        rows = reader.execute("SELECT fields FROM history WHERE name = 'gina'").fetchall()
    assert len(rows) > 1
    assert all(f'unit{number}"' in str(rows) for number in range(130))


async def test_a_place_that_cannot_be_noted_ends_nothing(
    daemon: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Go on where the state cannot be written, say so once, and write it when it can be."""
    fake = FakeJournal(tmp_path)
    fake.state = tmp_path / "gone" / "state.json"
    began: set[int] = set()
    async with calling(daemon.bus) as caller:
        await caller.ready()
        async with fake.followed(daemon.bus):
            for number in range(4):
                if number == 3:
                    fake.state.parent.mkdir()
                fake.add(SUDO.replace("bob", f"ivy{number}"))
                await until_shown(caller, "user", f"ivy{number}")
                began.add((fake.folder / "since").stat().st_mtime_ns)
            await caller.until(lambda: is_noted(fake), wanted=True)
    assert len(began) == 1
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(": ")[0] for line in lines] == [
        f"cannot write {fake.state}, which a restart needs",
        f"{fake.state} is written again",
    ]


async def is_noted(fake: FakeJournal) -> bool:
    """Return whether the state was written."""
    return fake.state.exists()
