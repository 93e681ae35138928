"""The observer of configuration files, on files in a folder."""

import asyncio
import hashlib
import json
import os
import re
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from harness.observing import PATIENCE, Host, history, observed, rows

from opdbus.observe.core.report import Observer
from opdbus.observe.host.config_files import (
    MAX_FILES,
    OBSERVER,
    ConfigFileLists,
    Examiner,
    Files,
    Origin,
    Sources,
)
from opdbus.observe.packages.documents import Places
from opdbus.state.object import FILE, Identity, StateObject
from opdbus.state.watch import Watch

SECRET = "hunter2correct"


@pytest.fixture
def here() -> Iterator[Path]:
    """Have a folder that everybody may look into, which pytest's own are not."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        folder.chmod(0o755)
        (folder / "etc").mkdir()
        (folder / "units").mkdir()
        yield folder


@asynccontextmanager
async def watched(here: Path) -> AsyncIterator[Host]:
    """Observe the configuration files of a host."""
    files = Files(sources(here))
    async with observed(here, Observer("files", "files", files.observe, OBSERVER.volatile)) as host:
        yield host


def sources(here: Path) -> Sources:
    """Return where a host in a folder names its configuration files."""
    places = Places(here, here / "dpkg", here / "usr" / "share" / "man", "no-rpm", ())
    return Sources(places, here / "ucf", (here / "units",), here / "etc")


def install(here: Path, conffiles: dict[Path, str], status: str = "install ok installed") -> None:
    """Have a package with configuration files, as dpkg writes it."""
    dpkg = here / "dpkg"
    dpkg.mkdir(exist_ok=True)
    lines = "".join(f" {path} {note}\n" for path, note in conffiles.items())
    (dpkg / "status-new").write_text(
        f"Package: ssh\nStatus: {status}\nArchitecture: all\nVersion: 1\n"
        f"Conffiles:\n{lines}Description: secure shell server\n\n"
    )
    (dpkg / "status-new").rename(dpkg / "status")


def configuration(
    here: Path, name: str = "ssh.conf", content: str = "Port 22\n"
) -> tuple[Path, str]:
    """Write a configuration file, and return it with its sum."""
    path = here / "etc" / name
    path.write_text(content)
    path.chmod(0o644)
    return path, hashlib.md5(content.encode(), usedforsecurity=False).hexdigest()


async def test_a_file_is_compared_with_its_package(here: Path) -> None:
    """A file is shown with its package, mode, size and digest; an edit is a modification."""
    path, md5 = configuration(here)
    install(here, {path: md5})
    async with watched(here) as host:
        shown = await host.until_shown(f"files/file/{path}", modified=False)
        assert shown.pop("modified_at").endswith("Z")
        assert shown == {
            "description": "configuration of ssh: secure shell server",
            "package": "ssh",
            "mode": "0644",
            "size": 8,
            "sha256": hashlib.sha256(b"Port 22\n").hexdigest(),
            "modified": False,
            **({"owner": "not root"} if os.geteuid() else {}),
        }
        path.write_text("Port 2222\n")
        await host.until_shown(f"files/file/{path}", modified=True, size=10)
        # another time is shown, and is no change
        generation = host.memory.generation
        os.utime(path, (86400, 86400))
        await host.until_shown(f"files/file/{path}", modified_at="1970-01-02T00:00:00Z")
        assert host.memory.generation == generation
        path.unlink()
        await host.until_shown(f"files/file/{path}", missing=True)
        configuration(here)
        await host.until_shown(f"files/file/{path}", modified=False)


@pytest.mark.parametrize("owner", [":", "other"])
async def test_a_file_that_is_diverted(here: Path, owner: str) -> None:
    """A package's file is compared where dpkg-divert put it, not in its place."""
    path, md5 = configuration(here)
    install(here, {path: md5})
    async with watched(here) as host:
        await host.until_shown(f"files/file/{path}", modified=False, package="ssh")
        diverted = path.rename(f"{path}.distrib")
        path.write_text("Port 2222\n")
        lines = f"{path}\n{diverted}\n{owner}\n"
        (here / "dpkg" / "diversions").write_text(f"/a\n/b\nx\n{lines}")
        shown = await host.until_shown(
            f"files/file/{diverted}", modified=False, package="ssh",
            description="configuration of ssh: secure shell server",
        )  # fmt: skip
        instead = await host.until_shown(
            f"files/file/{path}", description="configuration in place of that of ssh"
        )
        assert shown["sha256"] != instead["sha256"]
        assert ("modified" in instead, instead.get("package", ":")) == (False, owner)


async def test_a_diversion_for_a_package_leaves_its_own_file(here: Path) -> None:
    """The file of the package that diverts another's is its own, at its own path."""
    path, md5 = configuration(here)
    install(here, {path: md5})
    (here / "dpkg" / "diversions").write_text(f"{path}\n{path}.orig\nssh\n")
    async with watched(here) as host:
        await host.until_shown(f"files/file/{path}", modified=False, package="ssh")
        assert f"files/file/{path}.orig" not in host.names


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
async def test_a_file_that_is_not_of_root_says_so(here: Path) -> None:
    """A file that is given to another user than root has an owner, until root has it again."""
    path, md5 = configuration(here)
    install(here, {path: md5})
    async with watched(here) as host:
        assert "owner" not in await host.until_shown(f"files/file/{path}", modified=False)
        os.chown(path, 7, -1)
        await host.until_shown(f"files/file/{path}", owner="not root")
        os.chown(path, 0, -1)
        path.write_text("Port 2222\n")
        assert "owner" not in await host.until_shown(f"files/file/{path}", modified=True)


async def test_a_package_whose_name_is_that_of_a_secret(here: Path) -> None:
    """The summary of a package such as passwd or token is no secret."""
    path, md5 = configuration(here)
    install(here, {path: md5})
    status = here / "dpkg" / "status"
    for name in ("passwd", "token", "libsecret-1-0"):
        status.write_text(re.sub("Package: .*", f"Package: {name}", status.read_text()))
        async with watched(here) as host:
            description = f"configuration of {name} (secure shell server)"
            await host.until_shown(f"files/file/{path}", description=description)


def test_a_package_that_is_being_installed(here: Path) -> None:
    """Of a package that is being installed no sum is known; of too many files the first count."""
    path, md5 = configuration(here)
    install(here, {path: md5}, "install ok half-configured")
    (origin,) = ConfigFileLists(sources(here)).list().origins.values()
    assert origin.md5 == ""
    install(here, {path: md5}, "install ok triggers-pending")
    (origin,) = ConfigFileLists(sources(here)).list().origins.values()
    assert origin.md5 == md5
    install(here, {path: f"{md5} obsolete"})
    (origin,) = ConfigFileLists(sources(here)).list().origins.values()
    assert (origin.md5, origin.is_obsolete) == (md5, True)
    install(here, {Path(f"/etc/{number}"): "newconffile" for number in range(MAX_FILES + 1)})
    listing = ConfigFileLists(sources(here)).list()
    assert len(listing.origins) == MAX_FILES
    assert "more than 10,000 files" in listing.limited


async def test_what_is_first_read_is_no_change(here: Path) -> None:
    """That a package's sum becomes known is no change of a file; that it is edited is one."""
    path, md5 = configuration(here)
    install(here, {path: md5}, "install ok half-configured")
    async with watched(here) as host:
        assert "modified" not in await host.until_shown(f"files/file/{path}", size=8)
        install(here, {path: md5})
        await host.until_shown(f"files/file/{path}", modified=False)
        assert [what for what, *_ in rows(here, str(path))] == ["appeared"]
        path.write_text("Port 23\n")
        await host.until_shown(f"files/file/{path}", modified=True)
        changed = [row["fields"] for row in history(here) if row["what"] == "changed"]
        assert [{path[0] for path, *_ in fields} for fields in changed] == [{"sha256", "modified"}]


async def test_only_what_everybody_may_read_is_read(here: Path) -> None:
    """A file that is not for everybody, or in a folder that is not, has no digest."""
    secret, md5 = configuration(here, "secret.conf")
    secret.chmod(0o640)
    (here / "etc" / "closed").mkdir()
    inside, _ = configuration(here, "closed/inside.conf")
    inside.parent.chmod(0o700)
    install(here, {secret: md5, inside: md5})
    async with watched(here) as host:
        for path in (secret, inside):
            shown = await host.until_shown(f"files/file/{path}", readable=False)
            assert shown.keys().isdisjoint({"sha256", "modified"})
        # a write shows, even where it leaves the size
        secret.write_text("Port 22\n")
        os.utime(secret, ns=(0, 86400_000_000_000 + 5000))
        written = "1970-01-02T00:00:00.000005Z"
        await host.until_shown(f"files/file/{secret}", size=8, written_at=written)
        secret.chmod(0o644)
        await host.until_shown(f"files/file/{secret}", modified=False)


async def test_units_of_this_host(here: Path) -> None:
    """Unit files and drop-ins of this host are files; links, such as masks, are not."""
    unit, dropin = here / "units" / "my.service", here / "units" / "ssh.service.d" / "x.conf"
    async with watched(here) as host:
        await host.until(lambda: host.status.state == "absent")
        unit.write_text("[Service]\nExecStart=/bin/true\n")
        (here / "units" / "masked.service").symlink_to("/dev/null")
        await host.until_shown(f"files/file/{unit}", unit="my.service")
        dropin.parent.mkdir()
        dropin.write_text("[Service]\n")
        shown = await host.until_shown(f"files/file/{dropin}", unit="ssh.service")
        assert shown["description"] == "drop-in of ssh.service, written on this host"
        unit.unlink()
        await host.until(lambda: host.names == {f"files/file/{dropin}"})


async def test_folders_and_links_on_the_way(here: Path) -> None:
    """A file is followed where its folder or a link to it leads elsewhere, or comes later."""
    (here / "etc" / "one").mkdir()
    (here / "etc" / "two").mkdir()
    configuration(here, "one/a.conf", "one\n")
    configuration(here, "two/a.conf", "second\n")
    link, later = here / "etc" / "link", here / "etc" / "later" / "deep" / "b.conf"
    link.symlink_to("one")
    install(here, {link / "a.conf": "newconffile", later: "newconffile"})
    async with watched(here) as host:
        await host.until_shown(f"files/file/{link}/a.conf", size=4)
        configuration(here, "one/a.conf", "changed\n")
        await host.until_shown(f"files/file/{link}/a.conf", size=8)
        (here / "etc" / "new").symlink_to("two")
        (here / "etc" / "new").rename(link)
        await host.until_shown(f"files/file/{link}/a.conf", size=7)
        await host.until_shown(f"files/file/{later}", missing=True)
        later.parent.mkdir(parents=True)
        later.write_text("x")
        await host.until_shown(f"files/file/{later}", size=1)


async def test_what_the_manual_describes(here: Path) -> None:
    """A file in /etc is what a page of section 5 says, and makes others beside it files, too."""
    pages = here / "usr" / "share" / "man" / "man5"
    pages.mkdir(parents=True)
    (pages / "fstab.5").write_text(".SH NAME\nfstab \\- static information about filesystems\n")
    configuration(here, "ssh.conf")
    async with watched(here) as host:
        await host.until(lambda: host.status.state == "absent")
        path, _ = configuration(here, "fstab", "# nothing\n")
        shown = await host.until_shown(f"files/file/{path}", size=10)
        assert shown["description"] == "static information about filesystems"
        beside = await host.until_shown(f"files/file/{here}/etc/ssh.conf")
        assert beside["description"] == "configuration of no package"
        path.unlink()
        await host.until(lambda: host.names == set())


async def test_what_is_beside_configuration(here: Path) -> None:
    """What an administrator adds is a file: beside those of packages, and in folders of parts."""
    path, md5 = configuration(here)
    parts = here / "etc" / "conf.d"
    parts.mkdir()
    (here / "etc" / "elsewhere").mkdir()
    install(here, {path: md5})
    async with watched(here) as host:
        await host.until_shown(f"files/file/{path}", modified=False)
        for left in ("ssh.conf~", ".ssh.conf.swp", "ssh.conf.dpkg-old", "elsewhere/x.conf"):
            configuration(here, left)
        (parts / "link.conf").symlink_to(path)
        added, _ = configuration(here, "conf.d/site.conf")
        shown = await host.until_shown(f"files/file/{added}", size=8)
        assert shown["description"] == "configuration of no package"
        assert "package" not in shown
        added.write_text("Port 2222\n")
        await host.until_shown(f"files/file/{added}", size=10)
        assert host.names == {f"files/file/{path}", f"files/file/{added}"}
        added.unlink()
        await host.until(lambda: host.names == {f"files/file/{path}"})


async def test_what_a_configuration_names(here: Path) -> None:
    """A file that a configuration names is one, too, with those beside it; nothing else is."""
    site, md5 = configuration(here, "web.conf")
    (here / "etc/tls").mkdir()
    (here / "etc/own").mkdir()
    key, own = here / "etc/tls/cert.pem", here / "etc/own/app.toml"
    site.write_text(f"# {here}/etc/tls/old.pem\ncert {key};\nlog {here}/var/log/x\n")
    for path in (key, here / "etc/tls/old.pem", here / "ca.pem"):
        path.write_text("x")
    own.write_text(f"ca = '{here}/etc/ca.pem'\n")
    (here / "etc/ca.pem").write_text("x")
    (here / "units/app.service").write_text(f"[Service]\nExecStart=/bin/app -c {own}\n")
    # a package's file that is gone names nothing, and hides none of the others
    install(here, {here / "etc/gone.conf": md5, site: md5})
    async with watched(here) as host:
        shown = await host.until_shown(f"files/file/{key}")
        assert shown["description"] == f"named in {site}"
        assert (await host.until_shown(f"files/file/{here}/etc/ca.pem"))["size"] == 1
        for path in (f"{here}/etc/tls/old.pem", f"{here}/ca.pem", f"{here}/var/log/x"):
            # beside the certificate there is what somebody may have left there
            assert (f"files/file/{path}" in host.names) == path.endswith("old.pem")
        key.write_text("other")
        await host.until_shown(f"files/file/{key}", size=5)
        (here / "etc/own/more.toml").write_text("")
        await host.until_shown(f"files/file/{here}/etc/own/more.toml")
        key.unlink()
        await host.until(lambda: f"files/file/{key}" not in host.names)


async def test_links_to_the_parts_that_count(here: Path) -> None:
    """A link in a folder of what is enabled is a part of the configuration; others are not."""
    path, md5 = configuration(here, "web.conf")
    for name in ("sites-available", "sites-enabled"):
        (here / "etc" / name).mkdir()
    site = here / "etc/sites-available/shop"
    site.write_text("server {}")
    install(here, {path: md5})
    async with watched(here) as host:
        await host.until_shown(f"files/file/{path}")
        (here / "etc/sites-enabled/shop").symlink_to(site)
        shown = await host.until_shown(f"files/file/{here}/etc/sites-enabled/shop")
        assert shown["description"] == f"configuration of no package, a link to {site}"
        (here / "etc/sites-enabled/shop").unlink()
        await host.until(lambda: f"files/file/{here}/etc/sites-enabled/shop" not in host.names)


async def declare(host: Host, *names: object) -> None:
    """Take in a state file that has these files."""
    identities = [Identity(FILE, "files", "file", str(name)) for name in names]
    items = [StateObject(identity, {"mode": "0644"}) for identity in identities]
    await host.memory.replace(FILE, set(identities), items)


async def sizes(host: Host) -> dict[str, object]:
    """Return the size of each observed file, None for one that is missing."""
    entries = [entry for entry in host.memory.catalogue if entry.identity.source != FILE]
    contents = await host.memory.content(entries)
    read = [(e, json.loads(contents[e.id].properties)) for e in entries if e.id in contents]
    return {entry.identity.name: None if "missing" in v else v["size"] for entry, v in read}


async def test_a_declared_file_is_looked_for_wherever_it_is(here: Path) -> None:
    """A file that was listed because it was there is missing once it is gone, if it is declared."""
    path, md5 = configuration(here, "web.conf")
    (here / "etc/sites-enabled").mkdir()
    link, other = here / "etc/sites-enabled/shop", here / "srv/app.toml"
    link.symlink_to(path)
    install(here, {path: md5})
    async with watched(here) as host:

        async def until_seen(**expected: int | None) -> None:
            files = {"path": path, "link": link, "other": other}
            wanted = {str(files[name]): size for name, size in expected.items()}
            async with asyncio.timeout(PATIENCE):
                while await sizes(host) != wanted:  # noqa: ASYNC110 -- not all that changes says so
                    await asyncio.sleep(0.01)

        await until_seen(path=8, link=8)
        await declare(host, link, other, "relative", "/not/../plain")
        await until_seen(path=8, link=8, other=None)
        other.parent.mkdir()
        other.write_text("x = 1\n")
        await until_seen(path=8, link=8, other=6)
        link.unlink()
        await until_seen(path=8, link=None, other=6)
        await declare(host)
        await until_seen(path=8)


def test_files_that_are_no_files(here: Path) -> None:
    """A folder, a pipe, a huge file, a loop of links and insane names stop nobody."""
    etc = here / "etc"
    (etc / "folder").mkdir()
    os.mkfifo(etc / "pipe", 0o644)
    (etc / "huge").touch(0o644)
    os.truncate(etc / "huge", 100_000_000)
    (etc / "loop").symlink_to("loop")
    insane = os.fsdecode(bytes(etc) + b"/\xff\x1b[2J")
    Path(insane).write_text("x")
    names = [*(str(etc / name) for name in ("folder", "pipe", "huge", "loop")), insane, "/\0"]
    origin = Origin("", md5="0" * 32)
    found = Examiner().examine(dict.fromkeys(names, origin))
    assert [found[name].get("regular") for name in names[:2]] == [False, False]
    assert found[names[2]]["too_large"] is True
    assert found[names[3]]["readable"] is found[names[5]]["readable"] is False
    assert found[insane]["modified"] is True


async def test_a_flood_of_events_means_to_look_anew(here: Path) -> None:
    """More events than are worth telling apart are answered by another watch."""
    path, _ = configuration(here)
    with Watch([str(path)]) as watch:
        for number in range(1100):
            (path.parent / f"{number}").touch()
        assert await watch.change(0.3) is None


async def test_secrets_are_hidden(here: Path) -> None:
    """Names and descriptions are redacted; of contents nothing is kept but digests."""
    path, _ = configuration(here, "a.conf", f"password={SECRET}\n")
    odd = here / "etc" / f"password={SECRET}"
    odd.write_text("x")
    install(here, {path: "newconffile", odd: "newconffile"})
    async with watched(here) as host:
        await host.until(lambda: len(host.names) == 2)
        for name in host.names:
            assert SECRET not in name + str(await host.properties(name))


async def test_what_ucf_installed(here: Path) -> None:
    """A file that a package installed with ucf is compared with ucf's sum; odd lines are noted."""
    path, md5 = configuration(here, "ssh\x0b\u2028x\xa0.conf")
    install(here, {})
    (here / "ucf").mkdir()
    (here / "ucf" / "registry").write_text(f"ssh \t {path}\nnothing\nnone /etc/none\n")
    (here / "ucf" / "hashfile").write_text(f"{md5}  {path}\n")
    async with watched(here) as host:
        await host.until_shown(f"files/file/{path}", package="ssh", modified=False)
        assert host.status.detail == f"1 line not understood: {here}/ucf/registry:2"
        assert len(host.names) == 1
