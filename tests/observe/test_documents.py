"""What the host's own documents say: owners of files, manual pages, names of ports."""

import gzip
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opdbus.observe.core.file_reading import read_at_most, text_of
from opdbus.observe.packages import dpkg
from opdbus.observe.packages.documents import (
    MAX_DESCRIPTION,
    Documents,
    Owner,
    Places,
    Port,
    describe_page,
    parse_services,
)

STATUS = """\
Package: openssh-server
Status: install ok installed
Architecture: amd64
Version: 1:9.2p1-2
Description: secure shell (SSH) server, for secure access from remote machines
 This is the portable version of OpenSSH.

"""


@pytest.fixture
def places(tmp_path: Path) -> Places:
    """Have a host with merged folders, one package of dpkg and no manual page."""
    (tmp_path / "lib").symlink_to("usr/lib")
    info = tmp_path / "dpkg" / "info"
    info.mkdir(parents=True)
    (tmp_path / "dpkg" / "status").write_text(STATUS)
    (info / "openssh-server:amd64.list").write_text("/.\n/lib/systemd/system/ssh.service\n")
    return Places(tmp_path, tmp_path / "dpkg", tmp_path / "man", "no-rpm", (tmp_path / "rpm",))


def page(places: Places, name: str, content: bytes) -> None:
    """Install a page of section 8."""
    folder = places.manuals / "man8"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (".TH LS 1\n.SH NAME\nls \\- list files\n.SH SYNOPSIS\nls - no\n", "list files"),
        ('.SH "NAME"\n\\fBa\\fR, \\fBb\\fR \\(em run\n\\fIthings\\fP\n.SH X\n', "run things"),
        (".Sh NAME\n.Nm sshd\n.Nd OpenSSH daemon\n.Sh SYNOPSIS\n", "OpenSSH daemon"),
        (".SH NAME\n.nh\n.B foo\n\\- does \\(lqit\\(rq\\&\n.\\\" a comment\n", "does it"),
        (".SH Name\nfoo - plain\\-dashed word\n", "plain-dashed word"),
        (".SH NAME\nfoo-bar has no description\n.SH X\n", ""),
        (".SH DESCRIPTION\nfoo \\- bar\n", ""),
        ("", ""),
    ],
)  # fmt: skip
def test_the_description_of_a_manual_page(text: str, said: str) -> None:
    """A page's one line is found in man and in mdoc, without their escapes."""
    assert describe_page(text) == said


@given(st.text(alphabet="\\.-[](){}'\"fs*nN0aé \n\x00\x1b", max_size=400))
def test_any_page_has_a_short_line(text: str) -> None:
    """Whatever a page holds, what is taken of it is one short line."""
    said = describe_page(f".SH NAME\nx \\- {text}\n")
    assert len(said) <= MAX_DESCRIPTION
    assert said == " ".join(said.split())


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_page_that_is_not_utf_8(places: Places, pack: Callable[[bytes], bytes]) -> None:
    """A page in Latin-1 is described, with a replacement character for each that is not ASCII."""
    end = ".gz" if pack is gzip.compress else ""
    page(places, f"ls.8{end}", pack(".SH NAME\nls \\- donn\xe9es\n".encode("latin-1")))
    assert Documents(places).manual("ls(8)") == "donn\N{REPLACEMENT CHARACTER}es"


def test_a_page_is_found_by_its_reference(places: Places) -> None:
    """A page is named as units name it; one that only refers to another is followed."""
    documents = Documents(places)
    page(places, "sshd.8.gz", gzip.compress(b".Sh NAME\n.Nm sshd\n.Nd OpenSSH daemon\n"))
    page(places, "alias.8.gz", gzip.compress(b".so man8/sshd.8\n"))
    page(places, "plain.8", b".SH NAME\nplain \\- is not packed\n")
    assert documents.manual("man:sshd(8)") == documents.manual("sshd(8)") == "OpenSSH daemon"
    assert documents.manual("alias(8)") == "OpenSSH daemon"
    assert documents.manual("plain(8)") == "is not packed"


def test_broken_pages_say_nothing(places: Places, tmp_path: Path) -> None:
    """What is cut, no gzip, a loop, a folder, too long or outside the manuals is no description."""
    documents = Documents(places)
    packed = gzip.compress(b".SH NAME\nx \\- is cut\n")
    page(places, "cut.8.gz", packed[:15])
    page(places, "text.8.gz", b"no gzip")
    page(places, "loop.8.gz", gzip.compress(b".so man8/loop.8\n"))
    page(places, "bomb.8.gz", gzip.compress(b".\n" * (1 << 20) + b".SH NAME\nx \\- too far\n"))
    (places.manuals / "man8" / "folder.8.gz").mkdir()
    (tmp_path / "secret.8").write_text(".SH NAME\nx \\- outside\n")
    names = "cut(8) text(8) loop(8) folder(8) none(8) bomb(8) ../../secret(8) (8) man:".split()
    names.append("x(99999999999)")
    assert [documents.manual(name) for name in names] == [""] * len(names)


def test_the_package_that_owns_a_file(places: Places) -> None:
    """A file's package is found under both names of a merged folder, also once it is installed."""
    documents = Documents(places)
    owner = Owner(
        "openssh-server", "secure shell (SSH) server, for secure access from remote machines"
    )
    unit = "systemd/system/ssh.service"
    asked = [f"/lib/{unit}", f"/usr/lib/{unit}", "/etc/local.conf", "", "/lib"]
    assert documents.owners(asked) == {f"/lib/{unit}": owner, f"/usr/lib/{unit}": owner}
    assert documents.owners(["/usr/bin/new"]) == {}
    (places.dpkg / "info" / "new.list").write_text("/usr/bin/new\n")
    os.utime(places.dpkg / "info", ns=(0, 10**18))
    (places.dpkg / "status").write_text(STATUS + STATUS.replace("openssh-server", "new"))
    assert documents.owners(["/usr/bin/new"])["/usr/bin/new"].package == "new"
    nowhere = Documents(Places(places.root, places.root / "none", places.root, "rpm", ()))
    assert (nowhere.owners(["/bin/ls"]), nowhere.summary("coreutils")) == ({}, "")


def test_rpm_answers_for_many_files(tmp_path: Path) -> None:
    """Files of rpm packages are told apart, although some have no owner and some have two."""
    program = tmp_path / "rpm"
    program.write_text(
        f"#!{sys.executable}\n"
        "import sys\n"
        "one, two = (\"'%s'\\t'%s'\" % each for each in (('one', 'first'), ('two', 'second')))\n"
        "known = {'/a': [one], '/both': [one, two]}\n"
        "for path in sys.argv[sys.argv.index('--') + 1 :]:\n"
        "    print('\\n'.join(known.get(path, [f'file {path} is not owned by any package'])))\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    places = Places(tmp_path, tmp_path / "dpkg", tmp_path, str(program), (tmp_path,))
    found = Documents(places).owners(["/none", "/both", "/a", "/x\ny"])
    assert found == {"/both": Owner("one", "first"), "/a": Owner("one", "first")}


def test_names_of_ports() -> None:
    """A port has the first name that /etc/services gives it, and its comment."""
    text = (
        "# head\nssh\t22/tcp\t\t# SSH Remote Login Protocol\n"
        "other 22/tcp\ndomain 53/udp dns\nbad line\nx 1/\n"
    )
    assert parse_services(text) == {
        (22, "tcp"): Port("ssh", "SSH Remote Login Protocol"),
        (53, "udp"): Port("domain", ""),
    }


def test_only_the_beginning_of_a_regular_file_is_read(tmp_path: Path) -> None:
    """A file is read up to a limit; what is no file is not waited for."""
    (tmp_path / "file").write_bytes(b"12345")
    assert read_at_most(tmp_path / "file", 4) == (b"1234", True)
    assert read_at_most(tmp_path / "file", 5) == (b"12345", False)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="not a regular file"):
        read_at_most(tmp_path / "fifo", 5)
    # which refuses large reads
    assert text_of(Path("/proc/sys/kernel/ostype")) == "Linux\n"


LINES = [
    *(b"Package: a", b"Package:", b"Status: install ok installed", b"Status: hold", b"\xff: \xff"),
    *(b"Conffiles:", b" /etc/a 0123456789abcdef0123456789abcdef", b" /etc/\xff newconffile"),
    *(b" ", b": x", b"Description: \x00\x1b", b"Version: " + b"9" * 5000),
]
PARAGRAPH = st.lists(st.sampled_from(LINES) | st.binary(max_size=40), max_size=20).map(b"\n".join)


@given(PARAGRAPH)
def test_any_paragraph_is_parsed_or_left_out(paragraph: bytes) -> None:
    """Whatever a paragraph holds, a package has a name, a status, and fields of sane sizes."""
    package = dpkg.parse_paragraph(paragraph)
    if package:
        assert package.name
        assert package.status
        assert all(len(value) <= 1000 and "\n" not in value for value in package.fields.values())
        assert all(path.startswith("/") for path in package.conffiles)
