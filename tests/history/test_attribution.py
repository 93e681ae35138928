"""Who brought a change about: commands that name the object and do that, and nothing else."""

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from opdbus.bus.service.state1 import _closed_with
from opdbus.history import acts, command_lines
from opdbus.history.acts import Act
from opdbus.history.change import Cause, Change, ChangeType, FieldChange
from opdbus.history.forget import Target
from opdbus.history.row_filter import Filter, Row
from opdbus.index.changes import attribution, history_reader
from opdbus.index.changes.attribution import Attribution, _present, _Session
from opdbus.index.state_store.state_store import StateStore
from opdbus.state.object import Identity, Json, StateObject

SECOND = 1_000_000
NOW = 1_800_000_000
STATE = FieldChange(["active_state"], ["active"], ["inactive"])
MAIN_PID = FieldChange(["main_pid"], [812], [])
MODE = FieldChange(["mode"], ["0644"], ["0600"])
SHELL = FieldChange(["shell"], ["/bin/sh"], ["/bin/zsh"])
SETTING = FieldChange(["value"], ["60"], ["10"])
ENABLED = FieldChange(["enabled"], [True], [False])
MASKED = FieldChange(["masked"], [False], [True])
CLOSED = FieldChange(["unit"], ["chrony.service"], [])
LEFT = FieldChange(["members"], [["alice", "bob"]], [["alice"]])
ZONE = FieldChange(["timezone"], ["CET"], ["UTC"])
PORT = "net/listener/udp 127.0.0.1:323"
UNIT, GROUP, ACCOUNT = "systemd/unit/chrony.service", "users/group/sudo", "users/account/bob"
PACKAGE, FILE = "packages/package/curl", "files/file//etc/nginx/nginx.conf"
STOP, OF_APT = "job:7 stop", "apt:2026-11-27T12:00:00 apt-get install curl"


def row(
    name: str = UNIT,
    what: str = "changed",
    cause: str = "",
    fields: Sequence[FieldChange] = (),
    at: int = NOW * SECOND,
) -> Row:
    """Make a row of history of an object that was observed."""
    identity = Identity("live:x", *name.split("/", 2))
    return Row(1, at, "b", identity, what, cause, fields, 0, None, "")


FITS: list[tuple[str, Row]] = [
    ("/usr/bin/systemctl stop chrony", row(cause=STOP, fields=[STATE])),
    ("systemctl --no-block stop foo chrony.service", row(cause=STOP)),
    ("systemctl stop 'chron*'", row(cause=STOP)),
    ("sh -c 'echo hi; systemctl stop chrony'", row(cause=STOP)),
    ("/bin/sh -c systemctl stop chrony", row(cause=STOP)),
    ("env LANG=C nice systemctl restart chrony", row(cause="job:7 restart, after 1 stop")),
    ("service chrony stop", row(cause=STOP)),
    ("/etc/init.d/chrony stop", row(cause=STOP)),
    ("systemctl disable --now chrony", row(cause=STOP)),
    ("systemctl disable chrony", row(cause="reload", fields=[ENABLED])),
    ("systemctl start chrony", row(cause="job:7 start, failed", what="event")),
    ("systemctl kill chrony", row(cause="exit:SIGTERM", fields=[STATE])),
    ("pkill -9 -x chrony", row(cause="exit:SIGKILL", fields=[STATE])),
    ("killall chrony", row(cause="exit:SIGTERM", fields=[STATE])),
    ("kill 812", row(cause="exit", fields=[STATE, MAIN_PID])),
    ("kill -9 811 812", row(cause="exit:SIGKILL", what="event", fields=[MAIN_PID])),
    ("kill -- -812", row(cause="exit:SIGTERM", what="event", fields=[MAIN_PID])),
    ("sh -c 'kill -s HUP 812 && true'", row(cause="exit:status 1", fields=[MAIN_PID])),
    ("usermod -aG sudo,adm bob", row(GROUP)),
    ("usermod -aG sudo bob", row(ACCOUNT)),
    ("userdel --remove bob", row(ACCOUNT, "gone")),
    ("gpasswd --delete bob sudo", row(GROUP)),
    ("apt-get install curl", row(PACKAGE, "appeared", OF_APT)),
    ("sh -c 'apt-get update && apt-get install curl'", row(PACKAGE, "appeared", OF_APT)),
    ("dpkg -i /tmp/curl_8.1_amd64.deb", row(PACKAGE, "appeared", "dpkg:2026-11-27T12:00:00")),
    ("vim /etc/nginx/nginx.conf", row(FILE)),
    ("sed -i s/a/b/ nginx.conf", row(FILE)),
    ("visudo", row("files/file//etc/sudoers")),
    # other options, wrappers, and targets of copies
    ("nice -n 10 systemctl stop chrony", row(cause=STOP)),
    ("sudo -nu root systemctl stop chrony", row(cause=STOP)),
    ("env -u A B=c timeout -k 9 5 systemctl stop chrony", row(cause=STOP)),
    ("bash -o pipefail -ec 'true && systemctl stop chrony 2>/dev/null'", row(cause=STOP)),
    ("dpkg --purge curl", row(PACKAGE, "gone", "dpkg:2026-11-27T12:00:00")),
    ("rpm -Uvh curl", row(PACKAGE, "changed", "rpm:2026-11-27T12:00:00")),
    ("apt -y -o A=b install curl", row(PACKAGE, "appeared", "dpkg:2026-11-27T12:00:00")),
    ("chage -E 2027-01-01 bob", row(ACCOUNT)),
    ("passwd -l bob", row(ACCOUNT)),
    ("cp -r /root/nginx.conf /etc/nginx/", row(FILE, "appeared")),
    ("install -m 644 new nginx.conf", row(FILE)),
    ("mv /root/new nginx.conf", row(FILE, "appeared")),
    ("mv nginx.conf old", row(FILE, "gone")),
    ("sysctl -w net.ipv4.ip_forward=1", row("kernel/sysctl/net.ipv4.ip_forward")),
    ("hostnamectl set-hostname web", row("system/fact/hostname")),
    ("chmod 600 /etc/nginx/nginx.conf", row(FILE, fields=[MODE])),
    ("usermod -s /bin/zsh bob", row(ACCOUNT, fields=[SHELL])),
    # what a script writes to, also in the folder that it went to
    ("sh -c 'echo foo > /etc/nginx/nginx.conf'", row(FILE, "appeared")),
    ("bash -c 'cd /; cd etc/nginx; echo foo >>nginx.conf 2>/dev/null'", row(FILE)),
    # what goes with it: files of users, groups of an account, jobs of a file, ports of a unit
    ("useradd bob", row("files/file//etc/gshadow")),
    ("passwd -l bob", row("files/file//etc/shadow")),
    ("chpasswd", row("files/file//etc/shadow")),
    ("hostnamectl set-hostname web", row("files/file//etc/hostname")),
    ("userdel -r bob", row(GROUP, fields=[LEFT])),
    ("tee /etc/cron.d/backup", row("cron/job//etc/cron.d/backup curl", "appeared")),
    ("rm /etc/cron.daily/dpkg", row("cron/job//etc/cron.daily/dpkg", "gone")),
    ("systemctl stop chrony", row(PORT, "gone", STOP, [CLOSED])),
    # a unit by its files, or started for a command
    ("ln -s /dev/null /etc/systemd/system/chrony.service", row(cause="reload", fields=[MASKED])),
    ("sh -c 'echo > /etc/systemd/system/chrony.service.d/a.conf'", row(cause="reload")),
    ("systemd-run --unit=chrony sleep 9", row(what="appeared", cause="job:7 start")),
    ("systemd-run -u chrony sleep 9", row(what="appeared", cause="job:7 start")),
    ("timedatectl set-timezone UTC", row("system/fact/time", fields=[ZONE])),
]
FITS_NOT: list[tuple[str, Row]] = [
    # another object, another act, only a mention
    ("systemctl stop nginx", row(cause=STOP)),
    ("systemctl start chrony", row(cause=STOP)),
    ("systemctl status chrony", row(cause=STOP)),
    ("echo systemctl stop chrony", row(cause=STOP)),
    ("systemctl stop chrony.socket", row(cause=STOP)),
    ("pkill -x nginx", row(cause="exit:SIGKILL", fields=[STATE])),
    ("kill 813", row(cause="exit:SIGKILL", fields=[STATE, MAIN_PID])),
    ("kill 812", row(cause="exit:SIGKILL", fields=[STATE])),
    ("pkill 812", row(cause="exit", fields=[STATE, MAIN_PID])),
    ("pkill -x chrony", row(cause=STOP)),
    ("cat /etc/nginx/nginx.conf", row(FILE)),
    ("vim /etc/nginx/other.conf", row(FILE)),
    ("userdel bob", row(ACCOUNT, "appeared")),
    ("useradd bob", row(ACCOUNT, "gone")),
    ("usermod -aG sudo alice", row(ACCOUNT)),
    ("apt-get install wget", row(PACKAGE, "appeared", OF_APT)),
    ("bash", row(cause=STOP)),
    ("", row(cause=STOP)),
    # only a look
    ("sudo -l systemctl stop chrony", row(cause=STOP)),
    ("hostnamectl status", row("system/fact/hostname")),
    ("hostnamectl hostname", row("system/fact/hostname")),
    ("hostname -f", row("system/fact/hostname")),
    ("dpkg -l curl", row(PACKAGE, "changed", "dpkg:2026-11-27T12:00:00")),
    ("apt show curl", row(PACKAGE, "changed", "dpkg:2026-11-27T12:00:00")),
    ("apt -s upgrade curl", row(PACKAGE, "changed", "dpkg:2026-11-27T12:00:00")),
    ("apt-get --dry-run install curl", row(PACKAGE, "changed", "dpkg:2026-11-27T12:00:00")),
    ("rpm -qi curl", row(PACKAGE, "changed", "rpm:2026-11-27T12:00:00")),
    ("chage -l bob", row(ACCOUNT)),
    ("passwd -S bob", row(ACCOUNT)),
    ("sysctl net.ipv4.ip_forward", row("kernel/sysctl/net.ipv4.ip_forward")),
    ("sed s/a/b/ nginx.conf", row(FILE)),
    ("visudo -c", row("files/file//etc/sudoers")),
    ("systemctl --user stop chrony", row(cause=STOP)),
    # only what is copied from
    ("cp nginx.conf nginx.conf.bak", row(FILE)),
    ("cp -t /root nginx.conf", row(FILE)),
    ("rsync -a /etc/nginx/nginx.conf host:/root", row(FILE)),
    ("dd if=nginx.conf of=other", row(FILE)),
    ("touch -r nginx.conf other", row(FILE)),
    # only text
    ("sh -c \"echo 'x; systemctl stop chrony'\"", row(cause=STOP)),
    ("sh -c echo 'x; systemctl stop chrony'", row(cause=STOP)),
    # somebody else is known to have done it
    ("systemctl start chrony", row(cause="job:7 start by chrony.timer")),
    ("systemctl start chrony", row(cause="job:7 start, automatic")),
    ("systemctl stop chrony", row(cause="start", fields=[STATE])),
    ("systemctl stop chrony", row(cause="exit", fields=[STATE])),
    ("usermod -aG sudo bob", row(GROUP, cause=OF_APT)),
    # another value, or another field
    ("chmod 644 /etc/nginx/nginx.conf", row(FILE, fields=[MODE])),
    ("chmod 600 /etc/nginx/nginx.conf", row(FILE, fields=[SHELL])),
    ("usermod -s /bin/sh bob", row(ACCOUNT, fields=[SHELL])),
    ("usermod --shell=/bin/sh bob", row(ACCOUNT, fields=[SHELL])),
    ("sysctl -w vm.swappiness=1", row("kernel/sysctl/vm.swappiness", fields=[SETTING])),
    ("timedatectl set-timezone UTC", row("system/fact/time", fields=[SETTING])),
    ("timedatectl set-timezone CET", row("system/fact/time", fields=[ZONE])),
    # another file, group, job, port or unit
    ("sh -c 'cat < /etc/nginx/nginx.conf > other'", row(FILE)),
    ("passwd -l bob", row("files/file//etc/passwd")),
    ("userdel alice", row(GROUP, fields=[LEFT])),
    ("deluser bob adm", row(GROUP, fields=[LEFT])),
    ("tee /etc/cron.d/other", row("cron/job//etc/cron.d/backup curl", "appeared")),
    ("systemctl stop nginx", row(PORT, "gone", STOP, [CLOSED])),
    ("systemctl start chrony", row(PORT, "gone", STOP, [CLOSED])),
    ("systemctl stop chrony", row(PORT, "gone", "", [CLOSED])),
    ("tee /etc/systemd/system/nginx.service", row(cause="reload")),
    ("tee /etc/systemd/system/chrony.service", row(cause=STOP)),
    ("tee /root/chrony.service", row(cause="reload")),
    ("systemd-run sleep 9 chrony", row(what="appeared", cause="job:7 start")),
    ("systemctl enable chrony", row(cause="reload", fields=[ENABLED])),
]


def act(command: str, at: int = NOW * SECOND) -> Act:
    """Make a command of bob."""
    return Act("bob", at, "sudo", command, "/etc/nginx", 9)


@pytest.mark.parametrize(("command", "change"), FITS)
def test_a_command_that_explains_a_change(command: str, change: Row) -> None:
    """A command explains a change of an object that it names, if it does what happened."""
    assert acts.explains(act(command), change)


@pytest.mark.parametrize(("command", "change"), FITS_NOT)
def test_a_command_that_explains_nothing(command: str, change: Row) -> None:
    """A command for something else, or with another cause known, explains nothing."""
    assert not acts.explains(act(command), change)


def stamp(at: float) -> str:
    """Format a time as it is published."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")


class Live:
    """A history with changes of a host and with what the journal said."""

    def __init__(self, memory: StateStore, clock: list[float]) -> None:
        self.memory = memory
        self.clock = clock

    async def say(
        self, kind: str, name: str, owner: int = 0, source: str = "journal", **fields: Json
    ) -> None:
        """Publish about a user or a unit, as a user."""
        item = StateObject(Identity(f"publish:{source}", "journal", kind, name), fields)
        await self.memory.publish([item], owner, cause=f"bus::1.9 uid {owner}")

    async def change(
        self, what: ChangeType = "changed", cause: str = STOP, field: FieldChange = STATE
    ) -> Attribution:
        """Record a change of the unit, and give what is known of it 10 s later."""
        found = Change(Identity("live:systemd", *UNIT.split("/")), what, Cause(cause), [field])
        await self.memory.record([found], lambda _: None)
        return await self.known()

    async def known(self) -> Attribution:
        """Give what is known of the newest change of the unit."""
        wanted = Filter(plugin="systemd")
        (newest,) = await history_reader.first_rows(self.memory, wanted, 1)
        known = await attribution.attribute(self.memory, [newest])
        return known.get(newest.seq, Attribution())


def live(folder: Path, work: Any) -> None:
    """Do work in a new history, whose clock the work sets."""

    async def run() -> None:
        clock = [float(NOW)]
        async with StateStore(folder / "memory.db", clock=lambda: clock[0]) as memory:
            await work(Live(memory, clock))

    asyncio.run(run())


def ran(command: str, at: float) -> list[dict[str, Json]]:
    """Make a command as it is published."""
    return [{"at": stamp(at), "with": "sudo", "command": command, "folder": "/"}]


def test_a_change_is_of_who_did_it(tmp_path: Path) -> None:
    """The command is named also if it is published late; not one of long ago, nor a forged one."""

    async def work(host: Live) -> None:
        stop = ran("/usr/bin/systemctl stop chrony", NOW - 1)
        # anybody may publish under this name
        await host.say("user", "bob", owner=4711, source="journal", ran=stop, as_root=[])
        assert await host.change() == Attribution()
        (forged,) = await history_reader.first_rows(host.memory, Filter(plugin="journal"), 1)
        assert not attribution.is_believed(attribution.believed_users(), forged)
        await host.memory.withdraw([_user("bob")], 4711)
        await host.say("user", "bob", ran=ran("/usr/bin/systemctl stop chrony", NOW - 300))
        assert await host.change() == Attribution()
        host.clock[0] += 2
        await host.say("user", "bob", ran=stop, as_root=[])
        host.clock[0] += 60
        await host.say("user", "bob", ran=ran("/usr/bin/id", NOW + 60), as_root=[])
        found = await host.known()
        assert str(found.by) == "bob with sudo systemctl stop chrony"
        # what is forgotten is no answer any more
        await host.memory.forget(Target(_user("bob")), "")
        assert await host.known() == Attribution()

    live(tmp_path, work)


def _user(name: str) -> Any:
    return Identity("publish:journal", "journal", "user", name).object_id


def test_a_command_explains_one_change(tmp_path: Path) -> None:
    """Of changes that a command fits, it explains the first, and none after its opposite."""

    async def work(host: Live) -> None:
        stop = ran("/usr/bin/systemctl stop chrony", NOW)
        await host.say("user", "bob", ran=stop, as_root=[])
        host.clock[0] += 1
        assert (await host.change(cause="job:7 stop")).by
        # rows of one job are one change
        assert (await host.change(cause="job:7 stop")).by
        host.clock[0] += 1
        assert not (await host.change(cause="job:8 start")).by
        host.clock[0] += 1
        assert not (await host.change(cause="job:9 stop")).by
        # it did nothing, as the unit was down
        host.clock[0] += 300
        await host.say("user", "bob", ran=ran("/usr/bin/systemctl stop chrony", host.clock[0]))
        host.clock[0] += 1
        assert not (await host.change(cause="job:10 start")).by
        host.clock[0] += 1
        assert not (await host.change(cause="job:11 stop")).by
        host.clock[0] += 1
        mask = ran("/usr/bin/systemctl mask --now chrony", host.clock[0])
        await host.say("user", "bob", ran=mask)
        for cause, field, is_named in (
            ("reload", MASKED, True), ("job:12 stop", STATE, True), ("reload", MASKED, False),
        ):  # fmt: skip
            host.clock[0] += 1
            found = await host.change(cause=cause, field=field)
            assert bool(found.by) == is_named, cause

    live(tmp_path, work)


def test_a_file_was_read_after_it_changed() -> None:
    """A session that began while the observer was about to read is not named."""
    bash = Act("bob", at=10_000_000, program="sudo", command="bash", folder="/", seq=1)
    session = _Session(bash, "b")
    found = {
        late: bool(_present([session], replace(row(FILE), at=10_000_000 + late)))
        for late in (300_000, 600_000)
    }
    assert found == {300_000: False, 600_000: True}
    unit = replace(row(cause="exit:SIGKILL"), at=10_300_000)
    assert _present([session], unit)


def test_who_was_root_meanwhile(tmp_path: Path) -> None:
    """A session that was open is named as that, and no longer once it has ended."""

    async def work(host: Live) -> None:
        shell = ran("/bin/bash", NOW - 7200)
        host.clock[0] = NOW - 7199
        await host.say("user", "bob", ran=shell, as_root=shell)
        host.clock[0] = NOW
        found = await host.change()
        assert found.by is None
        assert [str(one) for one in found.meanwhile] == ["bob with sudo bash"]
        # while nobody reads the journal, nobody knows
        host.clock[0] += 1
        await host.say("reader", "op-dbus-journal", source="journal.reader")
        host.clock[0] += 1
        assert await host.change() == Attribution()
        await host.say("user", "bob", ran=[], as_root=[])
        await host.say("user", "bob", ran=[], as_root=shell)
        assert [one.command for one in (await host.change()).meanwhile] == ["/bin/bash"]
        # a command that does one thing, and not this
        other = ran("/usr/bin/systemctl start postgresql", host.clock[0] - 60)
        await host.say("user", "bob", ran=[], as_root=other)
        host.clock[0] += 10
        assert await host.change() == Attribution()
        await host.say("user", "bob", ran=[], as_root=shell)
        # a timer did this one
        assert await host.change(cause="job:7 start by a.timer") == Attribution()
        host.clock[0] += 10
        await host.say("user", "bob", ran=[], as_root=[])
        host.clock[0] += 10
        assert await host.change() == Attribution()
        # one that was published when it had ended, and one that was over too soon to matter
        host.clock[0] += 1000
        for seconds, is_named in ((5, True), (0.1, False)):
            deploy = ran("/srv/deploy", host.clock[0] - seconds)
            found = await host.change()
            ended = [{**deploy[0], "until": stamp(host.clock[0])}]
            await host.say("user", "bob", ran=deploy, as_root=[], was_root=ended)
            assert [str(one) for one in (await host.known()).meanwhile] == [
                "bob with sudo /srv/deploy"
            ] * is_named
            host.clock[0] += 1000

    live(tmp_path, work)


def test_why_a_unit_failed(tmp_path: Path) -> None:
    """A failure has the lines of that failure, not those of an earlier one or another unit."""

    async def work(host: Live) -> None:
        def last(at: float, why: str) -> list[Json]:
            return [{"at": stamp(at), "result": "exit-code", "why": why, "lines": ["a", why]}]

        await host.say("failure", "chrony.service", failed=last(NOW - 900, "of before"))
        await host.say("failure", "nginx.service", failed=last(NOW, "of another"))
        assert (await host.change("event", "exit:status 1")).failure is None
        await host.say("failure", "chrony.service", failed=last(NOW, "could not bind"))
        found = (await host.known()).failure
        assert found
        assert (found.why, found.lines) == ("could not bind", ["a", "could not bind"])
        # a stop is no failure
        assert await host.change() == Attribution()
        unit = Identity("live:systemd", *UNIT.split("/")).object_id
        known = await attribution.last_failure(host.memory, unit)
        assert known
        assert known.why == "could not bind"

    live(tmp_path, work)


def test_a_session_of_days_ago_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of days with more rows than are read at once, each is as if it had been asked for alone."""

    async def work(host: Live) -> None:
        shell = ran("/bin/bash", NOW)
        await host.say("user", "bob", ran=[], as_root=shell)
        host.clock[0] += 10
        open_then = await host.change()
        host.clock[0] += 10
        await host.say("user", "bob", ran=[], as_root=[])
        monkeypatch.setattr(attribution, "_MOST_ROWS", 20)
        for _ in range(50):
            host.clock[0] += 100
            await host.say("user", "bob", ran=ran("/usr/bin/id", host.clock[0]), as_root=[])
        host.clock[0] += 10
        assert await host.change() == Attribution()
        host.clock[0] += 1
        await host.say("user", "bob", ran=ran("systemctl stop chrony", host.clock[0]), as_root=[])
        stopped = await host.change()
        assert stopped.by
        for _ in range(50):
            host.clock[0] += 7200
            assert await host.change() == Attribution()
        rows = await history_reader.first_rows(host.memory, Filter(plugin="systemd"), 1000)
        known = await attribution.attribute(host.memory, rows)
        assert [known[row.seq] for row in reversed(rows) if row.seq in known] == [
            open_then, stopped,
        ]  # fmt: skip

    live(tmp_path, work)


def test_commands_are_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many changes and a command cost one reading of its words, and not the event loop's time."""
    parsed: list[bool] = []
    parse = command_lines.commands

    def watch(text: str) -> Any:
        parsed.append(threading.current_thread() is threading.main_thread())
        return parse(text)

    async def work(host: Live) -> None:
        await host.say("user", "bob", ran=ran("systemctl stop chrony", NOW - 1), as_root=[])
        await host.change()
        for number in range(20):
            await host.change(cause=f"job:{number} stop")
        rows = await history_reader.first_rows(host.memory, Filter(plugin="systemd"), 1000)
        monkeypatch.setattr(command_lines, "commands", watch)
        assert len(await attribution.attribute(host.memory, rows)) == 2
        assert parsed == [False]

    live(tmp_path, work)


def test_a_closed_port_names_its_unit() -> None:
    """Name the unit with which a port was closed, and none of any other change."""
    assert _closed_with(row(PORT, "gone", STOP, [CLOSED])) == {"unit": "chrony.service"}
    assert _closed_with(row(PORT, "gone", STOP)) == {}
    assert _closed_with(row(PORT, "changed", STOP, [CLOSED])) == {}
    assert _closed_with(row(UNIT, "gone", STOP, [CLOSED])) == {}
