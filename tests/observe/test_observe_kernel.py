"""The observer of the kernel, on a folder like /, and a kernel that is none."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from attacks.kernel import FakeKernel, message
from harness.hardware import uevent
from harness.observing import Host, observed, rows
from harness.own_network import own_network

from opdbus.observe.core.netlink import UEVENT
from opdbus.observe.core.report import Observer
from opdbus.observe.kernel import kernel
from opdbus.observe.kernel.kernel import Kernel
from opdbus.observe.kernel.sysctls import Sysctls
from opdbus.observe.kernel.uevents import GROUP, Uevents
from opdbus.state.object import FILE, SETTINGS, Identity, StateObject

MODULES = """\
kvm_intel 372736 0 - Live 0x0000000000000000
kvm 1040384 1 kvm_intel, Live 0x0000000000000000
nvidia 56 2 nvidia_uvm,nvidia_modeset, Live 0x0000000000000000 (POE)
"""
LINE = (
    'root=/dev/vda1 console=ttyS0 console=tty0 quiet kvm.nested=1 dyndbg="file a.c +p" -- sh -c x\n'
)
VALUES = {
    "vm/swappiness": "60", "net/ipv4/ip_forward": "0", "net/ipv4/tcp_rmem": "4096\t131072\t6291456",
    "net/ipv4/conf/all/rp_filter": "0", "net/ipv4/conf/eth0.100/rp_filter": "2",
    "kernel/core_pattern": "core",
}  # fmt: skip


# of a message that the kernel is asked to send as its own, see uevent_net_rcv
NEWS, REQUEST = 16, 1


def write(root: Path, **files: str) -> None:
    """Write files; `__` in a name is a slash."""
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Make a host with modules, parameters and settings."""
    root = tmp_path / "root"
    write(root, proc__modules=MODULES, proc__cmdline=LINE)
    for name, value in VALUES.items():
        path = root / "proc/sys" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")
    return root


def conf(root: Path, file: str, *lines: str) -> None:
    """Write a file of settings, such as `etc/sysctl.d/x.conf`."""
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / file).write_text("\n".join(lines))


@asynccontextmanager
async def watched(root: Path) -> AsyncIterator[tuple[FakeKernel, Host]]:
    """Observe the kernel of a folder."""
    with FakeKernel() as fake:
        source = Kernel(Uevents(fake.passed), root)
        async with observed(root.parent, Observer("kernel", "kernel", source.observe)) as host:
            yield fake, host


async def test_modules_and_parameters(root: Path) -> None:
    """A module is an object once it is ready, as is each parameter; use counts change nothing."""
    async with watched(root) as (fake, host):
        await host.until_shown("kernel/module/kvm", used_by=["kvm_intel"])
        taints = ["proprietary", "from outside the kernel", "unsigned"]
        await host.until_shown("kernel/module/nvidia", taints=taints)
        write(root, proc__modules=MODULES + "loop 1 0 - Loading 0x0 (+)\nfuse 1 0 - Live 0x0\n")
        fake.tell(uevent("add", "module"))
        await host.until_shown("kernel/module/fuse")
        assert "kernel/module/loop" not in host.names
        write(root, proc__modules=MODULES + "loop 1 0 - Live 0x0\n")
        await host.until_shown("kernel/module/loop")
        generation = host.memory.generation
        write(root, proc__modules=MODULES.replace("372736 0", "372736 7"))
        fake.tell(uevent("remove", "module"))
        await host.until(lambda: "kernel/module/loop" not in host.names)
        assert host.memory.generation == generation + 1
        await host.until_shown("kernel/parameter/console", value="ttyS0, tty0")
        await host.until_shown("kernel/parameter/kvm.nested", value="1", module="kvm")
        await host.until_shown("kernel/parameter/dyndbg", value="file a.c +p")
        # what the first program is given
        await host.until_shown("kernel/parameter/--", value="sh -c x")
        assert "value" not in await host.until_shown("kernel/parameter/quiet")
    (root / "proc/modules").unlink()
    async with watched(root) as (_, host):
        await host.until(lambda: host.status.state == "up")
        assert host.status.detail == "this kernel has no modules that could be loaded"


async def test_events_through_the_kernel(root: Path) -> None:
    """What the kernel sends in its own name is heard on a real socket, as systemd opens it."""
    with own_network() as net, net.netlink(UEVENT, GROUP) as passed, net.netlink(UEVENT) as sender:
        source = Kernel(Uevents(passed), root)
        async with observed(root.parent, Observer("kernel", "kernel", source.observe)) as host:
            await host.until_shown("kernel/module/kvm")
            write(root, proc__modules=MODULES + "loop 1 0 - Live 0x0\n")
            fields = b"ACTION=add\0DEVPATH=/module/loop\0SUBSYSTEM=module\0"
            sender.sendto(message(NEWS, b"add@/module/loop\0" + fields, flags=REQUEST), (0, 0))
            await host.until_shown("kernel/module/loop")


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ('"dyndbg=file drivers/usb/* +p" quiet', "dyndbg", "file drivers/usb/* +p"),
        ('dyndbg="file drivers/usb/* +p" quiet', "dyndbg", "file drivers/usb/* +p"),
        ('quiet "usbcore.dyndbg=+p"', "usbcore.dyndbg", "+p"),
        ('"quiet"', "quiet", None),
        ('"a=b', "a", "b"),
        ('a="b', "a", "b"),
        ('a=""', "a", None),
        ('"a="', "a", None),
        ('a=b"c d"e', "a", 'b"c d"e'),
        ('"a=b c" a="d e"', "a", "b c, d e"),
        ("root=UUID=1-2 ro", "root", "UUID=1-2"),
    ],
)
def test_quotes_of_the_command_line(line: str, name: str, value: str | None) -> None:
    """Quotes stand round a value, or round a parameter with its value, as the kernel reads them."""
    assert kernel.parse_parameters(f"{line}\n")[name].get("value") == value


def test_secrets_are_hidden(root: Path) -> None:
    """What follows the name of a secret is hidden before a line is split, and in settings."""
    line = "quiet password=hunter2 luks.key=hunter2 -- --password hunter2\n"
    found = kernel.parse_parameters(line)
    assert "hunter2" not in str(found)
    assert {"quiet", "password", "--"} <= found.keys()
    (root / "proc/sys/kernel/password").write_text("hunter2")
    both = "kernel.password=hunter2", "net.ipv4.tcp_fastopen_key=hunter2"
    conf(root, "etc/sysctl.d/a.conf", *both)
    for is_apart in (False, True):
        assert "hunter2" not in str(Sysctls(root, is_apart=is_apart).read())


async def test_settings_that_differ(root: Path) -> None:
    """A setting says what it is and should be; blanks and comments change nothing."""
    conf(
        root, "usr/lib/sysctl.d/50-a.conf", "# no", "vm.swappiness = 10", "; no", "kernel.no_such=1"
    )
    conf(root, "etc/sysctl.d/60-b.conf", "net.ipv4.tcp_rmem = 4096 131072   6291456", "nonsense")
    async with watched(root) as (_, host):
        name = "kernel/sysctl/vm.swappiness"
        await host.until_shown(
            name, value="60", wanted="10", differs=True, file="/usr/lib/sysctl.d/50-a.conf"
        )
        await host.until_shown("kernel/sysctl/kernel.no_such", missing=True, wanted="1")
        await host.until_shown("kernel/sysctl/net.ipv4.tcp_rmem", differs=False)
        generation = host.memory.generation
        conf(root, "etc/sysctl.d/60-b.conf", "# comment", "net.ipv4.tcp_rmem=4096 131072 6291456")
        conf(root, "usr/lib/sysctl.d/50-a.conf", "vm.swappiness = 60", "kernel.no_such=1")
        await host.until_shown(name, wanted="60", differs=False)
        assert host.memory.generation == generation + 1


@pytest.mark.parametrize(
    ("value", "wanted", "differs"),
    [
        ("4\t4\t1\t7", "4 4 1 7", False),
        ("3 4 1 7", "3", False),
        ("3 4 1 7", "4", True),
        ("438", "0x1b6", False),
        ("-1", "-1", False),
        ("core", "core.%p", True),
        ("|/bin/dump %P %u", "|/bin/dump  %P %u", False),
        ("|/bin/dump %P %u", "|/bin/dump", True),
        ("", "1", True),
        ("16", "0x10", False),
        ("16", "0X10", False),
        ("8", "010", False),
        ("10", "010", True),
        ("-16", "-0x10", False),
        ("0", "00", False),
        ("1", "+1", True),
        ("8", "08", True),
        ("1", " 1\t", False),
        ("4096 131072 6291456", "4096\t0x20000   6291456", False),
        ("10", "10 # ten", False),
        ("10", "ten", True),
        ("10", "11 # ten", True),
        ("1", "1\u00a0", True),
        ("bbr", "BBR", True),
    ],
)
def test_values_that_mean_the_same(root: Path, value: str, wanted: str, *, differs: bool) -> None:
    """Blanks, hexadecimal numbers and numbers that are left out at the end make no difference."""
    write(root, proc__sys__kernel__probe=f"{value}\n")
    conf(root, "etc/sysctl.d/a.conf", f"kernel.probe = {wanted}")
    found = Sysctls(root).read()["kernel.probe"]
    assert found["differs"] is differs
    # a difference is seen in what is said of it
    has, _, other = str(found["description"]).removeprefix("is ").partition(", but ")
    assert not differs or has != other.partition(" says ")[2]


async def declare(host: Host, **settings: int) -> None:
    """Take in a state file with settings; `__` in a name is a dot."""
    values = {name.replace("__", "."): value for name, value in settings.items()}
    identity = Identity(FILE, "sysctl", SETTINGS, "settings")
    item = StateObject(identity, values)
    await host.memory.replace(FILE, {identity}, [item])


async def test_settings_that_the_state_file_names(root: Path) -> None:
    """A setting is looked at while the state file names it, and its rows say that this is why."""
    async with watched(root) as (_, host):
        await host.until_shown("kernel/parameter/quiet")
        await declare(host, vm__swappiness=10, kernel__no_such=1, description=7)
        name = "kernel/sysctl/vm.swappiness"
        assert (await host.until_shown(name, value="60")).keys() == {"description", "value"}
        await host.until_shown("kernel/sysctl/kernel.no_such", missing=True)
        conf(root, "etc/sysctl.d/a.conf", "vm.swappiness=10")
        await host.until_shown(name, differs=True)
    async with watched(root) as (_, host):
        await host.until(lambda: host.status.state == "up")
        (root / "etc/sysctl.d/a.conf").unlink()
        await host.until_shown(name, description="is 60")
        await declare(host, kernel__core_pattern=1)
        await host.until_shown("kernel/sysctl/kernel.core_pattern", value="core")
        await host.until(lambda: name not in host.names)
        assert len([one for one in host.names if "/sysctl/" in one]) == 1
    told = [(what, cause) for what, cause, _ in rows(root.parent, "vm.swappiness")]
    file, edited = "state file", ("changed", "")
    assert told == [("appeared", file), edited, edited, ("gone", file)]


def test_the_last_file_counts_and_names_count_before_patterns(root: Path) -> None:
    """Files count as systemd applies them: by name, those of /etc instead of others."""
    conf(root, "usr/lib/sysctl.d/50-a.conf", "vm.swappiness=1", "net.ipv4.ip_forward=1")
    conf(root, "etc/sysctl.d/50-a.conf", "vm.swappiness=2")
    conf(root, "run/sysctl.d/70-c.conf", "-net.ipv4.conf.all.rp_filter", "kernel/core_pattern=x")
    conf(root, "run/sysctl.d/60-b.conf", "net.ipv4.conf.*.rp_filter=1", "-vm/swappiness = 3")
    found = Sysctls(root).read()
    assert {name: values["wanted"] for name, values in found.items()} == {
        "vm.swappiness": "3", "kernel.core_pattern": "x", "net.ipv4.conf.eth0/100.rp_filter": "1"
    }  # fmt: skip
    assert found["vm.swappiness"]["file"] == "/run/sysctl.d/60-b.conf"


def test_sysctl_conf_counts_where_a_link_leads_to_it(root: Path) -> None:
    """Count /etc/sysctl.conf only if a file in a folder is a link to it, as systemd-sysctl does."""
    conf(root, "etc/sysctl.conf", "vm.swappiness=4")
    conf(root, "usr/lib/sysctl.d/50-a.conf", "vm.swappiness=60")
    assert Sysctls(root).read()["vm.swappiness"]["differs"] is False
    conf(root, "etc/sysctl.d/README.sysctl", "vm.swappiness=9")
    (root / "etc/sysctl.d/99-sysctl.conf").symlink_to("../sysctl.conf")
    found = Sysctls(root).read()["vm.swappiness"]
    assert (found["wanted"], found["differs"]) == ("4", True)
    assert found["file"] == "/etc/sysctl.d/99-sysctl.conf"
    (root / "etc/sysctl.d/50-a.conf").symlink_to("/dev/null")
    (root / "etc/sysctl.d/99-sysctl.conf").unlink()
    assert "vm.swappiness" not in Sysctls(root).read()


@pytest.mark.parametrize(
    ("line", "name", "wanted"),
    [
        ("vm.swappiness=1", "vm.swappiness", "1"),
        ("\tvm/swappiness\t=\t 1 \t", "vm.swappiness", "1"),
        ("- vm.swappiness = 1", "vm.swappiness", "1"),
        ("/vm/swappiness = 1", "vm.swappiness", "1"),
        ("vm/./swappiness = 1", "vm.swappiness", "1"),
        ("vm.swappiness = 1 # one", "vm.swappiness", "1 # one"),
        ("kernel.core_pattern = a=b", "kernel.core_pattern", "a=b"),
        ("net.ipv4.conf.eth0/100.rp_filter = 2", "net.ipv4.conf.eth0/100.rp_filter", "2"),
        ("net/ipv4/conf/eth0.100/rp_filter = 2", "net.ipv4.conf.eth0/100.rp_filter", "2"),
        ("vm.swappiness", "", ""),
        ("; vm.swappiness = 1", "", ""),
        ("  # vm.swappiness = 1", "", ""),
        # a later line that wants a setting to be left alone
        ("vm.swappiness = 1\n-vm.swappiness", "", ""),
        ("-vm.swappiness\nvm.swappiness = 1", "vm.swappiness", "1"),
        ("net.ipv4.conf.*.rp_filter = 1\n-net.ipv4.conf.*.rp_filter", "", ""),
    ],
)
def test_lines_are_read_as_systemd_sysctl_reads_them(
    root: Path, line: str, name: str, wanted: str
) -> None:
    """Read signs, blanks and separators of names; what each line does was seen of systemd 252."""
    conf(root, "etc/sysctl.d/a.conf", line)
    found = {name: values["wanted"] for name, values in Sysctls(root).read().items()}
    assert found == ({name: wanted} if name else {})


def test_what_a_sandbox_has_of_its_own_is_not_shown(root: Path) -> None:
    """In namespaces of our own the host's network is not measured: only what is wanted is told."""
    conf(root, "etc/sysctl.d/a.conf", "net.ipv4.ip_forward=1", "net.ipv4.conf.*.rp_filter=1")
    found = Sysctls(root, is_apart=True).read()
    assert found.keys() == {"net.ipv4.ip_forward", "net.ipv4.conf.*.rp_filter"}
    assert all("value" not in values and values["not_measured"] for values in found.values())


def test_nothing_outside_of_the_settings_is_read(root: Path) -> None:
    """Names that lead elsewhere, pipes and values of megabytes are not followed."""
    (root / "secret").write_text("hunter2")
    lines = ["../../secret=1", "kernel/../../../secret=1", "/secret=1", "a..b=1", "...=1", "*=1"]
    conf(root, "etc/sysctl.d/a.conf", *lines, "vm.swappiness=" + "9" * 100_000, "**/**/*=1")
    (root / "etc/sysctl.d/b.conf").symlink_to("/dev/zero")
    found = Sysctls(root).read()
    assert "hunter2" not in str(found)
    assert len(found) < 20


def test_rows_that_are_no_modules() -> None:
    """Half a row, a long one and one of another shape harm no module; an odd letter is shown."""
    text = "\n\nx\na b c\n" + "y " * 100_000 + "\nkvm 1 0 - Live 0x0\nz 1 0 , Live\n"
    assert kernel.parse_modules(text).keys() == {"kvm", "z"}
    found = kernel.parse_modules("x 1 0 - Live 0x0 (OZ)\ny 1 0 - Live 0x0 (E+)\n")
    both = ["from outside the kernel", "flag Z"]
    assert found == {"x": {"taints": both}, "y": {"taints": ["unsigned"]}}


async def test_lines_of_the_kernel_and_of_settings_that_are_not_understood(root: Path) -> None:
    """What is no module and no setting is noted with its file and line until it is mended."""
    write(root, proc__modules=f"{MODULES}half a row\n")
    odd = "ok=1\x0b\u2028\xa02"
    lines = "# c", "; d", "", "nothing", f" vm/x = {odd}\r", "=5", "-vm.y", ""
    conf(root, "etc/sysctl.d/10-odd.conf", *lines)
    (root / "etc/sysctl.d/20-pipe.conf").symlink_to("20-pipe.conf")
    async with watched(root) as (_, host):
        found = await host.until_shown("kernel/sysctl/vm.x", wanted=odd)
        assert found["missing"] is True
        file = root / "etc/sysctl.d/10-odd.conf"
        places = {f"{root}/proc/modules:4", f"{file}:4", f"{file}:6"}
        await host.until(lambda: "3 lines not understood: " in host.status.detail)
        said = host.status.detail.partition("understood: ")[2].partition(";")[0]
        assert set(said.split(", ")) == places
        pipe = f"1 file not read or not understood: {root}/etc/sysctl.d/20-pipe.conf"
        assert pipe in host.status.detail
        (root / "etc/sysctl.d/20-pipe.conf").unlink()
        conf(root, "etc/sysctl.d/10-odd.conf", "vm.x = 2\n")
        await host.until_shown("kernel/sysctl/vm.x", wanted="2")
        await host.until(
            lambda: host.status.detail == f"1 line not understood: {root}/proc/modules:4"
        )
