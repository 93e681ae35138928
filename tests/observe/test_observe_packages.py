"""The observer of packages: dpkg's own files, and a fake rpm."""

import asyncio
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from harness.observing import Host, less_than, observed

from opdbus.config import load
from opdbus.history.row_filter import Filter
from opdbus.index.changes.change_finder import ChangeFinder
from opdbus.index.changes.connections import nothing_more
from opdbus.index.vectors.object_vectors import ObjectVectors
from opdbus.language import routes
from opdbus.observe.core.report import MAX_OBJECTS, LostSource, Observer, Report
from opdbus.observe.core.skipped import Skipped
from opdbus.observe.packages import rpm
from opdbus.observe.packages.documents import Documents, Owner, Places
from opdbus.observe.packages.dpkg import MAX_STATUS_BYTES, StatusFile
from opdbus.observe.packages.package_observer import Packages
from opdbus.platform.lines import join_words
from opdbus.platform.tasks import cancel
from opdbus.serving.serving import Serving

PARAGRAPH = """\
Package: {name}
Status: {status}
Priority: important
Section: admin
Installed-Size: 3000
Architecture: {architecture}
Source: thing (1.0)
Version: 1.2-3
Description: {description}
 more about it
Homepage: https://example.org/

"""
SECRET = "hunter2correct"


def paragraph(
    name: str,
    status: str = "install ok installed",
    architecture: str = "amd64",
    description: str = "does things",
) -> str:
    """Return what dpkg writes about a package."""
    return PARAGRAPH.format(
        name=name, status=status, architecture=architecture, description=description
    )


@pytest.fixture
def places(tmp_path: Path) -> Places:
    """Have a host with neither dpkg nor rpm."""
    return Places(tmp_path, tmp_path / "dpkg", tmp_path, str(tmp_path / "rpm"), (tmp_path / "db",))


def write(places: Places, *paragraphs: str | bytes) -> None:
    """Write dpkg's status as dpkg does."""
    places.dpkg.mkdir(exist_ok=True)
    raw = [part.encode() if isinstance(part, str) else part for part in paragraphs]
    (places.dpkg / "status-new").write_bytes(b"".join(raw))
    (places.dpkg / "status-new").rename(places.dpkg / "status")


@asynccontextmanager
async def watched(places: Places) -> AsyncIterator[Host]:
    """Observe the packages of a host."""
    packages = Packages(places, places.root / "states", machine="x86_64")
    observer = Observer("packages", "packages", packages.observe)
    async with observed(places.root, observer) as host:
        yield host


async def listed(places: Places) -> frozenset[str]:
    """Return the names of the packages of a host."""
    report = Report()
    packages = Packages(places, places.root / "states", machine="x86_64")
    task = asyncio.create_task(packages.observe(report))
    await report.news.wait()
    await cancel([task])
    return report.names("package")


@pytest.mark.parametrize("word", "uninstalled purged removed deinstalled deleted".split())
async def test_what_was_uninstalled_is_found_by_any_word(places: Places, word: str) -> None:
    """Find what dpkg removed, be its configuration left or not, in any question about that."""
    write(places, *map(paragraph, ("stays", "goes", "leaves")))
    settings = load({"HOME": "/nonexistent", "OP_DBUS_VECTOR_LEVEL": "none"})
    async with watched(places) as host, Serving(settings) as serving:
        await host.until_shown("packages/package/goes")
        write(places, paragraph("stays"), paragraph("leaves", "deinstall ok config-files"))
        await host.until_shown("packages/package/leaves", removed=True)
        finder = ChangeFinder(ObjectVectors(host.memory, serving), nothing_more)
        for asked in (f"what was {word}?", f"which packages were {word}?", f"{word} software"):
            route = routes.find_route(
                asked, datetime(2026, 11, 26, tzinfo=UTC).replace(tzinfo=None)
            )
            found = await finder.about(route.options.get("about", asked), Filter(), 9)
            assert {each.row.identity.name for each in found} == {"goes", "leaves"}


async def test_what_is_known_of_a_package(places: Places) -> None:
    """A package has its fields, its state and how it came, and an architecture not the host's."""
    write(
        places,
        paragraph("tool"),
        paragraph("lib"),
        paragraph("held", "hold ok installed"),
        paragraph("broken", "install reinstreq half-installed"),
        paragraph("removed", "deinstall ok config-files"),
        paragraph("purged", "purge ok not-installed"),
        paragraph("libc6"),
        paragraph("libc6", architecture="i386"),
    )
    states = "Package: lib\nArchitecture: amd64\nAuto-Installed: 1\n\n"
    (places.root / "states").write_text(states)
    async with watched(places) as host:
        shown = await host.until_shown("packages/package/tool", automatic=False)
        assert shown == {
            "version": "1.2-3",
            "architecture": "amd64",
            "status": "installed",
            "description": "does things",
            "source": "thing",
            "section": "admin",
            "priority": "important",
            "homepage": "https://example.org/",
            "installed_size_mb": 2.9,
            "automatic": False,
        }
        await host.until_shown("packages/package/lib", automatic=True)
        await host.until_shown("packages/package/held", on_hold=True, status="installed")
        await host.until_shown("packages/package/broken", status="half-installed")
        await host.until_shown("packages/package/removed", status="config-files", removed=True)
        names = {name.rpartition("/")[2] for name in host.names}
        assert names == {*"tool lib held broken removed libc6 libc6:i386".split()}


def test_what_dpkg_has_not_taken_over_yet(places: Places) -> None:
    """While dpkg runs, its notes are newer than its status, the last one of a package counts."""
    write(places, paragraph("one"), paragraph("two"))
    updates = places.dpkg / "updates"
    updates.mkdir()
    (updates / "0000").write_text(paragraph("one", "install ok unpacked"))
    (updates / "0001").write_text(paragraph("two", "purge ok not-installed"))
    (updates / "0002").write_text(paragraph("one"))
    (updates / "tmp.i").write_text(paragraph("three"))
    found = StatusFile(places.dpkg / "status").read()
    assert [(package.name, package.status) for package in found] == [("one", "installed")]


def test_a_package_that_dpkg_merges_meanwhile_is_there(places: Places) -> None:
    """Find a package whose paragraph moves from the updates to the status while both are read."""
    write(places, paragraph("one"))
    status, updates = places.dpkg / "status", places.dpkg / "updates"
    updates.mkdir()
    (updates / "0000").write_text(paragraph("new"))

    class Merging(StatusFile):
        def _updates(self) -> Iterator[bytes]:
            if (updates / "0000").exists():
                merged = places.dpkg / "status-new"
                merged.write_text(f"{status.read_text()}\n{paragraph('new')}")
                merged.rename(status)
                (updates / "0000").unlink()
            return super()._updates()

    assert "new" in {found.name for found in Merging(status).read()}


def test_no_more_packages_than_an_observer_may_have(places: Places) -> None:
    """Of more packages than there are on a sane host, the first are listed, and it is said."""
    write(places, *(paragraph(f"p{number}") for number in range(MAX_OBJECTS + 1)))
    status = StatusFile(places.dpkg / "status")
    assert len(status.read()) == MAX_OBJECTS
    assert "more than 20,000 packages" in status.limited


def test_too_large_a_status_is_read_to_a_limit(places: Places) -> None:
    """Of too large a file so much is read that memory stays small, and it is said."""
    places.dpkg.mkdir()
    status = StatusFile(places.dpkg / "status")
    some = "".join(paragraph(f"p{number}") for number in range(3000)).encode()
    size = MAX_STATUS_BYTES + 1_000_000
    contents = (some * (1 + size // len(some)), b"\n" * size, b"x" * size)
    for content, packages in zip(contents, (3000, 0, 0), strict=True):
        status.path.write_bytes(content)
        with less_than(2 * MAX_STATUS_BYTES):
            assert len(status.read()) == packages
        assert "the rest is left out" in status.limited


async def test_too_large_a_status_is_said(places: Places) -> None:
    """What was left out stands in the observer's status, and goes when the file is sane again."""
    write(places, paragraph("one"), paragraph("two", description="x" * 300_000))
    async with watched(places) as host:
        await host.until_shown("packages/package/one")
        await host.until(lambda: "a package with more than 256 KiB" in host.status.detail)
        assert host.names == {"packages/package/one"}
        write(places, paragraph("one"))
        await host.until(lambda: not host.status.detail)


async def test_insane_names_and_values(places: Places) -> None:
    """Control characters, bytes that are no UTF-8, huge lines and secrets do no harm."""
    write(
        places,
        b"Package: \xff\x00\x1b[2J\nStatus: install ok installed\nVersion: \xfe\n\n",
        b"Package: " + b"n" * 100_000 + b"\nStatus: install ok installed\n\n",
        b"Package: no-status\n\n",
        b"\x00" * 1000 + b"\n\n",
        "Package: leaky\nStatus: install ok installed\n"
        f"Version: password={SECRET}\nArchitecture: token={SECRET}\nSection: password={SECRET}\n"
        f"Priority: --password={SECRET}\nSource: api_key={SECRET}\n"
        f"Homepage: https://user:{SECRET}@example.org/\nDescription: password={SECRET}\n\n",
        f"Package: password={SECRET}\nStatus: install ok installed\n\n",
        paragraph("sane"),
    )
    async with watched(places) as host:
        await host.until_shown("packages/package/sane", version="1.2-3")
        assert len(host.names) == 5
        for name in host.names:
            assert "\x00" not in name
            assert SECRET not in name
            assert SECRET not in str(await host.properties(name))


async def test_a_host_without_packages(places: Places) -> None:
    """Without dpkg and rpm the observer is absent; its objects go with dpkg's status."""
    write(places, paragraph("one"))
    async with watched(places) as host:
        await host.until_shown("packages/package/one")
        (places.dpkg / "status").unlink()
        await host.until(lambda: host.status.state == "absent")
        assert host.names == set()
        assert "neither" in host.status.detail
        write(places, paragraph("two"))
        await host.until_shown("packages/package/two")


def fake_rpm(places: Places, code: str) -> None:
    """Install a program that is called rpm."""
    places.rpm_databases[0].mkdir(exist_ok=True)
    program = Path(places.rpm)
    program.write_text(f"#!{sys.executable}\nimport sys\n{code}\n")
    program.chmod(0o755)


def quoted(fields: Sequence[str]) -> str:
    """Write fields as rpm quotes them for a shell: no numbers, and not one that is not there."""
    words = (word.replace("'", "'\\''") for word in fields)
    return "\t".join(
        word if word == "(none)" or word.isdecimal() else f"'{word}'" for word in words
    )


def rpm_row(name: str, version: str, architecture: str = "x86_64") -> list[str]:
    """Return the fields that rpm prints about a package."""
    fields = ["0", version, "1.fc40", architecture, "8000000", f"{name}.src.rpm", "Unspecified"]
    return [name, *fields, "https://example.org", f"the {name}'s"]


def fake_rpm_database(places: Places, rows: Sequence[Sequence[str]], beside: str = "") -> None:
    """Install an rpm with rows of packages; those whose names begin as `beside` stay beside."""
    short = [(row[0], *row[2:5]) for row in rows if beside and row[0].startswith(beside)]
    answers = {
        "-qa": "".join(f"{quoted(row)}\n" for row in rows),
        "-q": "no package provides multiversion(kernel)\n"
        + "".join(f"{quoted(row)}\n" for row in short),
    }
    code = f"sys.stdout.write({answers!r}[sys.argv[1]]); sys.exit(sys.argv[1] == '-q')"
    fake_rpm(places, code)
    (places.rpm_databases[0] / "rpmdb.sqlite").write_text(str(rows))


async def test_packages_of_rpm(places: Places) -> None:
    """The program rpm is asked at first and when its database changes; each row is by itself."""
    rows = [rpm_row("bash", "5.2"), rpm_row("kernel", "6.1"), rpm_row("kernel", "6.2")]
    fake_rpm_database(places, [*rows, ["lost", "0", "no field"], ["1"]])
    async with watched(places) as host:
        shown = await host.until_shown("packages/package/bash", version="5.2-1.fc40")
        assert shown["installed_size_mb"] == 7.6
        assert shown["source"] == "bash.src"
        # neither is meant to stay beside the other
        both = "6.1-1.fc40; 6.2-1.fc40"
        await host.until_shown("packages/package/kernel", version=both, section="Unspecified")
        of = f"{places.rpm} -qa"
        assert f"2 rows not understood: 4 of {of}, 5 of {of}" in host.status.detail
        fake_rpm_database(places, rows[:1])
        await host.until(lambda: host.names == {"packages/package/bash"})


@pytest.mark.parametrize(
    ("first", "second", "name"),
    [
        (("kernel-core", "503"), ("kernel-core", "570"), "kernel-core-503-1.fc40"),
        (("kernel-devel", "503"), ("kernel-devel", "570"), "kernel-devel-503-1.fc40"),
        (("gpg-pubkey", "a1", "(none)"), ("gpg-pubkey", "b2", "(none)"), "gpg-pubkey-a1-1.fc40"),
        (("kernel-core", "503", "i686"), ("kernel-core", "503"), "kernel-core-503-1.fc40:i686"),
        (("glibc", "2"), ("glibc", "2", "i686"), "glibc"),
        (("glibc", "2", "i686"), ("glibc", "2"), "glibc:i686"),
        (("fonts", "1", "noarch"), ("fonts-more", "1", "noarch"), "fonts"),
    ],
)
async def test_a_package_of_rpm_keeps_its_name(
    places: Places, first: Sequence[str], second: Sequence[str], name: str
) -> None:
    """A package is named after itself: it is the same whatever is installed beside it."""
    fake_rpm_database(places, [rpm_row(*first)], "kernel")
    assert await listed(places) == {name}
    fake_rpm_database(places, [rpm_row(*second), rpm_row(*first)], "kernel")
    assert len(both := await listed(places)) == 2
    assert name in both


@pytest.mark.parametrize(
    ("first", "second", "manager", "name"),
    [
        ("amd64", "i386", "", "libc6"),
        ("i386", "amd64", "", "libc6:i386"),
        ("arm64", "amd64", "", "libc6:arm64"),
        ("all", "i386", "", "libc6"),
        # a 32-bit host on a 64-bit kernel
        ("i386", "amd64", "i386", "libc6"),
        ("amd64", "i386", "i386", "libc6:amd64"),
        ("arm64", "armhf", "arm64", "libc6"),
    ],
)
async def test_a_package_of_dpkg_keeps_its_name(
    places: Places, first: str, second: str, manager: str, name: str
) -> None:
    """A package of another architecture has that in its name, be there one of the host's or not."""
    dpkg = [paragraph("dpkg", architecture=manager)] if manager else []
    write(places, *dpkg, paragraph("libc6", architecture=first))
    before = await listed(places)
    assert before - {"dpkg"} == {name}
    others = paragraph("libc6", architecture=second), *dpkg
    write(places, *others, paragraph("libc6", architecture=first))
    both = await listed(places)
    assert before < both
    assert len(both) == len(before) + 1


SUMMARIES = [
    *(
        "a\ttab",
        "two\nlines",
        "it's 'quoted'",
        "\\\\' \x1f\x1e\v\x85\u2028end",
        "",
        "'\t'\n'",
        "plain",
    )
]


async def test_separators_in_the_summary_of_an_rpm(places: Places) -> None:
    """No character in a field ends it: the package is listed, its summary in one line."""
    row = ["0", "1", "1", "noarch", "1", "(none)", "(none)", "(none)"]
    rows = [quoted([f"p{n}", *row, summary]) for n, summary in enumerate(SUMMARIES)]
    answer = places.root / "answer"
    answer.write_text("".join(f"{row}\n" for row in rows), newline="")
    code = f"sys.argv[1] == '-qa' and sys.stdout.buffer.write(open({str(answer)!r}, 'rb').read())"
    fake_rpm(places, code)
    found = await rpm.list_packages(places.rpm, Skipped())
    assert [row["summary"] for row in found] == SUMMARIES
    assert (found[-1]["name"], found[-1]["homepage"]) == (f"p{len(rows) - 1}", "(none)")
    async with watched(places) as host:
        for n, summary in enumerate(SUMMARIES):
            shown = await host.until_shown(f"packages/package/p{n}", version="1-1")
            assert shown.get("description", "") == join_words(summary)


SPEC = """\
Name: odd
Version: 1.0
Release: 1
Summary: A\ttab and its 'quotes'
License: none
BuildArch: noarch
Provides: installonlypkg(kernel)
%description
x
%install
mkdir -p %{buildroot}/usr/share/odd
touch %{buildroot}/usr/share/odd/it
%files
/usr/share/odd/it
"""


def test_a_real_rpm_with_separators(tmp_path: Path) -> None:
    """A package that rpmbuild made with a tab in its summary is listed, and owns its file."""
    if not shutil.which("rpmbuild"):
        pytest.skip("rpmbuild is not installed: `apt install rpm`")
    (tmp_path / "odd.spec").write_text(SPEC)
    build = ["rpmbuild", "--define", f"_topdir {tmp_path}", "-bb", str(tmp_path / "odd.spec")]
    subprocess.run(build, check=True, capture_output=True)
    # into the database only
    install = "-i --justdb --nodeps --ignoresize --noscripts --force-debian".split()
    built = str(tmp_path / "RPMS/noarch/odd-1.0-1.noarch.rpm")
    subprocess.run(
        ["rpm", "--dbpath", f"{tmp_path}/db", *install, built], check=True, capture_output=True
    )
    program = tmp_path / "rpm"
    program.write_text(f'#!/bin/sh\nexec rpm --dbpath {tmp_path}/db "$@"\n')
    program.chmod(0o755)
    (row,) = asyncio.run(rpm.list_packages(str(program), Skipped()))
    assert row["summary"] == "A\ttab and its 'quotes'"
    assert row["beside"]
    places = Places(tmp_path, tmp_path / "dpkg", tmp_path, str(program), (tmp_path / "db",))
    path = "/usr/share/odd/it"
    owners = Documents(places).owners([path, "/no/such"])
    assert owners == {path: Owner("odd", "A tab and its 'quotes'")}


async def test_an_rpm_that_hangs(places: Places) -> None:
    """An rpm that does not end is ended; a row with too few fields is a fault that is told."""
    fake_rpm(places, "import time; time.sleep(1000)")
    with pytest.raises(LostSource, match=r"took more than 0\.2 s"):
        await rpm.list_packages(places.rpm, Skipped(), seconds=0.2)
    fake_rpm(places, "print(\"'odd'\\t'0'\")")
    with pytest.raises(LostSource, match="no list of packages"):
        await rpm.list_packages(places.rpm, Skipped())


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("sys.exit(3)", "ended with code 3"),
        ("while True: print('x' * 100000)", "said more than 32 MiB"),
    ],
)
async def test_an_rpm_that_fails(places: Places, code: str, said: str) -> None:
    """An rpm that ends with an error or says too much is reported, and listed nothing."""
    fake_rpm(places, code)
    async with watched(places) as host:
        await host.until(lambda: said in host.status.detail)
        assert host.status.state == "failed"
        assert host.names == set()


async def test_what_of_dpkgs_status_is_not_understood(places: Places) -> None:
    """Lines and paragraphs that are skipped are noted by file and line, in its updates, too."""
    odd = "does\x0bmany\u2028odd\xa0things\x85"
    write(
        places,
        paragraph("tool", description=odd).replace("Section: admin", "Sect ion: admin\nnothing"),
        "Rubbish: 1\n\n",
        paragraph("last").replace("Homepage", "Conffiles:\n /etc/a nosum\nHomepage"),
    )
    (places.dpkg / "updates").mkdir()
    (places.dpkg / "updates" / "0001").write_text("Package: x\n")
    async with watched(places) as host:
        await host.until_shown("packages/package/tool", description=odd)
        await host.until_shown("packages/package/last")
        status = f"{places.dpkg}/status"
        places_ = [f"{status}:{n}" for n in (4, 5, 14, 27)] + [f"{places.dpkg}/updates/0001:1"]
        assert host.status.detail == f"5 lines not understood: {', '.join(places_)}"
        write(places, paragraph("tool"))
        (places.dpkg / "updates" / "0001").unlink()
        await host.until(lambda: host.status.detail == "")
