"""The observer of accounts and groups, on files of its own."""

import asyncio
from pathlib import Path

import pytest
from harness.account_files import GROUP, PASSWD, Files
from harness.observing import history, observed

from opdbus.observe.core.report import Report
from opdbus.observe.host.users import Users
from opdbus.platform.tasks import cancel


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """Give the files of a small host."""
    return Files(tmp_path / "etc")


async def test_what_an_account_is_and_may(tmp_path: Path, files: Files) -> None:
    """An account has its own text, groups and shell, a group its members; neither has secrets."""
    line = "ann:$6$HASHPLANTED:1004:1001:password=hunter2-PLANTED:/home/ann:/bin/sh\n"
    files.write(files.users.passwd, PASSWD + line)
    async with observed(tmp_path, files.observer) as host:
        mira = await host.until_shown("users/account/mira", uid=1001, group="mira", system=False)
        assert mira["groups"] == ["sudo", "video"]
        assert mira["full_name"] == "Mira Novak"
        assert mira["description"] == "Mira Novak, user account, administrator"
        assert "555" not in str(mira)
        await host.until_shown("users/account/root", administrator=True, can_log_in=True)
        await host.until_shown("users/account/theo", administrator=False, can_log_in=True)
        for name in ("games", "sync", "nobody"):
            await host.until_shown(f"users/account/{name}", system=True, can_log_in=False)
        theo = await host.properties("users/account/theo")
        assert not {"full_name", "description"} & theo.keys()
        # what only repeats the name describes nothing
        games = await host.until_shown("users/account/games", type="system account")
        assert not {"full_name", "description"} & games.keys()
        await host.until_shown("users/group/video", gid=44, members=["mira", "theo"], system=True)
        # also those whose first group it is
        both = ["ann", "mira"]
        await host.until_shown("users/group/mira", members=both, member_count=2, system=False)
        assert "PLANTED" not in str(await host.until_shown("users/account/ann", uid=1004))


async def test_a_user_that_is_added_and_removed(tmp_path: Path, files: Files) -> None:
    """A line that comes or goes is an account alone; a group makes an administrator of one."""
    async with observed(tmp_path, files.observer) as host:
        await host.until_shown("users/account/mira")
        generation = host.memory.generation
        files.write(files.users.passwd, f"{PASSWD}ines:x:1003:27::/home/ines:/bin/bash\n")
        await host.until_shown("users/account/ines", group="sudo", administrator=True)
        await host.until_shown("users/group/sudo", members=["ines", "mira"])
        assert host.memory.generation == generation + 1
        files.write(files.users.passwd, PASSWD)
        await host.until(lambda: "users/account/ines" not in host.names)
        await host.until_shown("users/account/theo", administrator=False)
        files.write(files.users.group, GROUP.replace("sudo:x:27:mira", "sudo:x:27:mira,theo"))
        await host.until_shown("users/account/theo", administrator=True, groups=["sudo", "video"])
    last = [(row["kind"], row["name"]) for row in history(tmp_path)[-2:]]
    assert last == [("group", "sudo"), ("account", "theo")]


async def test_lines_that_are_not_understood_are_left_out(tmp_path: Path, files: Files) -> None:
    """Garbage costs its own line, and is counted."""
    garbage = (
        "no colons\na:b\nx:x:-1:0::/:/bin/sh\ny:x:1e3:0::/:/bin/sh\n+::::::\n\n# note\n\x00\xff\n"
    )
    huge = f"z:x:{'9' * 5000}:0::/:/bin/sh\n:x:1:1::/:/bin/sh\n"
    bytes_ = b"b\xffd:x:70:70:caf\xe9:/:/bin/sh\n".decode(errors="surrogateescape")
    files.write(files.users.passwd, garbage + huge + bytes_ + PASSWD + "mira:x:0:0:::\n")
    async with observed(tmp_path, files.observer) as host:
        await host.until_shown("users/account/mira", uid=1001)
        bad = ", ".join(f"{files.users.passwd}:{number}" for number in (1, 2, 3, 4, 8))
        assert f"7 lines not understood: {bad} and 2 more" in host.status.detail
        accounts = {name for name in host.names if name.startswith("users/account/")}
        assert len(accounts) == 1 + PASSWD.count("\n")


async def test_blanks_that_the_c_library_skips(tmp_path: Path, files: Files) -> None:
    """Blanks before a line, a number and a member count nothing, as `getent` shows them."""
    files.write(
        files.users.passwd,
        f"{PASSWD} \tann:x: 1005: 1005:Ann:/home/ann:/bin/sh\n"
        "\x0bbob:x:+1006:1006:B\x0bo\u2028b\xa0X\x85:/home/bob:/bin/sh:more\n"
        "  # c:x:1:1:::\nmin:x:8:8\n"
        "joe:x:1007 :1007::/:/bin/sh\n",
    )
    files.write(
        files.users.group,
        "  sudo:x:27: ann,\tbob ,, mira\nsudo:x:27: theo\nwheel:x:10\n\tusers:x:100:\x0bann, min\n",
    )
    async with observed(tmp_path, files.observer) as host:
        for name in ("ann", "mira", "theo"):
            await host.until_shown(f"users/account/{name}", administrator=True)
        sudo = await host.until_shown("users/group/sudo", gid=27)
        # a blank after a name is a part of it
        assert sudo["members"] == ["ann", "bob ", "mira", "theo"]
        bob = await host.until_shown("users/account/bob", uid=1006)
        assert bob["shell"] == "/bin/sh:more"
        assert bob["full_name"] == "B\x0bo\u2028b\xa0X\x85"
        await host.until_shown("users/account/min", home="", groups=["users"])
        await host.until_shown("users/group/wheel", members=[])
        number = PASSWD.count("\n") + 5
        assert f"1 line not understood: {files.users.passwd}:{number}" in host.status.detail
        assert host.status.objects == 4 + PASSWD.count("\n") - 1 + 3


async def test_accounts_that_the_files_do_not_show(tmp_path: Path, files: Files) -> None:
    """Wherever the switch can bring accounts or groups, the status says what is not listed."""
    files.write(files.users.passwd, f"{PASSWD}+@admins::::::\n -mallory::::::\n+::::::\n")
    cases = {
        " passwd:\tcompat # old\n": "accounts of nis that line 7, 8, 9 of",
        "passwd: compat\npasswd_compat: ldap\n": "accounts of ldap that line 7, 8, 9",
        "passwd: files[NOTFOUND=return]my-source db\n": "accounts of db, my-source are not",
        "passwd: files\ngroup: files winbind\n": "groups of winbind are not listed",
        "passwd: files\ngroup: files\ninitgroups: sss\n": "groups of sss are not listed",
        "passwd:  files sss [NOTFOUND=x] systemd # y\n": "accounts of sss are not listed",
        "passwd: files systemd\n": "accounts that systemd makes, such as dynamic ones",
        "passwd files\ngroup:\n": f"1 line not understood: {files.users.switch}:2",
    }
    async with observed(tmp_path, files.observer) as host:
        for text, said in cases.items():
            files.write(files.users.switch, text)
            await host.until(lambda said=said: said in host.status.detail)  # type: ignore[misc]
        files.write(files.users.switch, "passwd: files\ngroup: files\n")
        await host.until(lambda: host.status.detail == "")


async def test_more_accounts_than_are_listed(tmp_path: Path, files: Files) -> None:
    """Of more than 10,000 accounts the first are listed; groups and the rest are served."""
    lines = [f"u{n}:x:{n + 2000}:1001::/home/u{n}:/bin/sh\n" for n in range(10_100)]
    files.write(files.users.passwd, PASSWD + "".join(lines))
    async with observed(tmp_path, files.observer) as host:
        await host.until_shown("users/group/video", members=["mira", "theo"])
        group = await host.until_shown("users/group/mira")
        assert len(group["members"]) < group["member_count"]
        assert "10,106 entries: 10,000 are listed" in host.status.detail


async def test_what_sudo_allows_is_not_seen(tmp_path: Path, files: Files) -> None:
    """The status says that rules of sudo may let others become root."""
    files.write(files.users.sudoers, "mira ALL=(ALL) ALL\n")
    async with observed(tmp_path, files.observer) as host:
        await host.until_shown("users/account/mira")
        said = f"only root may read {files.users.sudoers}: whom it lets become root is not known"
        assert said in host.status.detail


async def test_without_accounts_there_is_nothing_to_observe(tmp_path: Path, files: Files) -> None:
    """A host without the file has no accounts, and the status says which file it is."""
    files.users.passwd.unlink()
    async with observed(tmp_path, files.observer) as host:
        await host.until(lambda: host.status.state == "absent")
        assert str(files.users.passwd) in host.status.detail
        files.write(files.users.passwd, PASSWD)
        await host.until_shown("users/account/mira")


@pytest.mark.parametrize(
    ("shell", "can_log_in"),
    [
        *((shell, False) for shell in (
            "/dev/null", "/dev/zero", "/usr/sbin/nologin", "/bin/false", "/bin/true", "/bin/sync",
            "/nonexistent", "/usr/local/bin/noshell", "/usr/lib/openssh/sftp-server",
            "/sbin/reboot", "/usr/bin/nologin", "/usr/bin/git-shell", "/usr/bin/scponly",
            "/usr/lib/uucp/uucico", "/usr/bin/passwd",
        )),
        *((shell, True) for shell in (
            "/bin/bash", "/bin/sh", "", "/usr/bin/fish", "/bin/rbash", "/home/a/dev/zsh",
        )),
    ],
)  # fmt: skip
async def test_shells_that_nobody_can_log_in_with(
    tmp_path: Path, shell: str, *, can_log_in: bool
) -> None:
    """A device, or a program that takes no commands, is no shell; without one it is sh."""
    (tmp_path / "passwd").write_text(f"a:x:1000:1000:A:/home/a:{shell}\n")
    files = (tmp_path / name for name in ("passwd", "group", "nsswitch.conf", "sudoers"))
    report = Report()
    task = asyncio.create_task(Users(*files).observe(report))
    await report.news.wait()
    await cancel([task])
    account = report.take().kinds["account"]["a"]
    assert account
    assert account["can_log_in"] is can_log_in
