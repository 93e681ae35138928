"""A secret in every field that our observers read, each in all the forms that secrets have.

`plant` writes the files of such a host; as a distribution that is installed there, OBSERVERS are
our observers of it, and `serve_secrets` answers as its PID 1, its logind and a service to mirror.
"""

import os
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from harness.hardware import database, device
from harness.observing import FakeService

from attacks import kernel
from attacks.kernel import FakeKernel, attribute, listing
from opdbus.bus.transport.values import Typed
from opdbus.observe.core.report import Observer, Report
from opdbus.observe.dbus import login1, machined
from opdbus.observe.dbus.mirror import Mirror
from opdbus.observe.host.config_files import Files, Sources
from opdbus.observe.host.cron import Cron
from opdbus.observe.host.host_facts import HostFacts
from opdbus.observe.host.users import Users
from opdbus.observe.kernel.filesystems import FileSystems
from opdbus.observe.kernel.hardware import Devices
from opdbus.observe.kernel.kernel import Kernel
from opdbus.observe.kernel.uevents import Uevents
from opdbus.observe.network.network import Network
from opdbus.observe.network.sockets import Sockets
from opdbus.observe.packages.documents import Places, ServiceNames
from opdbus.observe.packages.package_observer import Packages
from opdbus.observe.systemd import unit_observer
from opdbus.observe.systemd.control_groups import ControlGroups
from opdbus.observe.systemd.unit_observer import Options

# Part of every secret, in any case: it is followed by where the secret is, and in which form.
MARK = "hunter2"
_KEY = "-----{} RSA PRIVATE KEY-----"
FORMS = (
    "password={}",
    "token: {}",
    "--password {}",
    'PASSWORD="two words {}"',
    "db_password='two words {}'",
    "https://user:{}@example.net/",
    "Authorization: Bearer {}0123",
    "ghp_{}",
    '{{"password": "{}"}}',
    f"{_KEY.format('BEGIN')} {{}} {_KEY.format('END')}",
)
NUMBERS = range(len(FORMS))
# The only form that names of units can have.
_SHAPE = FORMS.index("ghp_{}")
# The only one of letters and digits.
_WORD = f"AKIA{MARK.upper()}PLANTED0"
PID1, LOGIND = "org.freedesktop.systemd1", "org.freedesktop.login1"
MACHINED = "org.freedesktop.machine1"
# A service that is mirrored, and where it has its objects.
MIRRORED, LAMPS = "org.example.Many", "/org/example/Many"
MANAGED = "org.freedesktop.DBus.ObjectManager.GetManagedObjects"
LISTED = "a{oa{sa{sv}}}"
_ROW = "a(ssssssouso)"


def text(place: str, number: int, without: str = "") -> str:
    """Give a text with a secret; a plain one where it would have characters that it must not."""
    found = FORMS[number].format(f"{MARK}-{place}-{number}")
    return f"plain{number}" if set(found) & set(without) else found


def _write(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))


def plant(top: Path) -> None:
    """Write all files."""
    for part in (
        *(_users, _mounts, _packages, _rpm, _files, _manual, _hosts, _ports, _network),
        *(_crontabs, _kernels, _devices),
    ):
        part(top)


def _users(top: Path) -> None:
    fields = ("account", "hash", "uid", "uid", "gecos", "home", "shell")
    _write(
        top / "passwd",
        *(
            ":".join(str(2000 + n) if f == "uid" else text(f, n, ":,") for f in fields)
            for n in NUMBERS
        ),
    )
    fields = ("group", "hash", "gid", "member")
    _write(
        top / "group",
        *(
            ":".join(str(2000 + n) if f == "gid" else text(f, n, ":,") for f in fields)
            for n in NUMBERS
        ),
    )
    _write(top / "nsswitch.conf", f"passwd: files {_WORD}")


def _mounts(top: Path) -> None:
    def line(n: int) -> str:
        path, source = (
            found.replace(" ", r"\040") for found in (f"/mnt/{text('path', n)}", text("source", n))
        )
        own, fstype, options = (text(place, n, " ") for place in ("own", "fstype", "options"))
        return f"{n + 30} 1 8:{n} / {path} {own} shared:1 - {fstype} {source} {options}"

    _write(top / "mountinfo", *map(line, NUMBERS))


def _packages(top: Path) -> None:
    fields = "Version Architecture Section Priority Source Homepage Description".split()
    status: list[str] = []
    for n in NUMBERS:
        lines = [f"{field}: {text(field.lower(), n)}" for field in fields]
        # that of the plain name is the one that owns files
        for name, file in ((f"p{n}", "conffile"), (text("package", n), "file")):
            own = f"Conffiles:\n /{file}/{text(file, n)} {'0' * 32}"
            status += [f"Package: {name}", "Status: install ok installed", *lines, own, ""]
        _write(top / "dpkg" / "info" / f"p{n}.list", f"/usr/lib/systemd/system/n{n}.service")
    _write(top / "dpkg" / "status", *status)


def _rpm(top: Path) -> None:
    fields = "name epoch version release arch size source section homepage summary".split()
    _write(top / "rpm.txt", *("\t".join(text(f"rpm{f}", n) for f in fields) for n in NUMBERS))
    _write(top / "rpm", "#!/bin/sh", f"cat {top}/rpm.txt")
    (top / "rpm").chmod(0o755)
    (top / "rpmdb").mkdir()


def _files(top: Path) -> None:
    _write(top / "ucf" / "registry", *(f"p{n} /ucf/{text('ucf', n)}" for n in NUMBERS))
    _write(top / "ucf" / "hashfile", *(f"{'0' * 32} /ucf/{text('ucf', n)}" for n in NUMBERS))
    for n in NUMBERS:
        _write(top / "units" / f"{text('unitfile', n, '/')}.service")
        _write(top / "units" / f"{text('unit', n, '/')}.service.d" / f"{text('in', n, '/')} x.conf")
        _write(top / "etc" / f"conf{n}")


def _manual(top: Path) -> None:
    for n in NUMBERS:
        section = [".SH NAME", f"conf{n} \\- {text('man', n)}", ".SH DESCRIPTION"]
        _write(top / "man" / "man5" / f"conf{n}.5", *section)
        _write(top / "man" / "man8" / f"unit{n}.8", ".Sh NAME", f".Nd {text('mdoc', n)}")


def _hosts(top: Path) -> None:
    variables = {
        "etc/machine-info": "PRETTY_HOSTNAME CHASSIS DEPLOYMENT LOCATION",
        "etc/os-release": (
            "PRETTY_NAME ID ID_LIKE VERSION_ID VERSION_CODENAME VARIANT SUPPORT_END"
        ),
        "etc/locale.conf": "LANG LANGUAGE LC_TIME",
        "etc/vconsole.conf": "KEYMAP FONT XKBLAYOUT XKBMODEL XKBVARIANT XKBOPTIONS",
    }
    lines = {
        "etc/hostname": "{}", "etc/timezone": "{}", "proc/sys/kernel/osrelease": "{}",
        "proc/sys/kernel/version": "{}", "proc/cmdline": "quiet {} ro", "proc/cpuinfo":
        "model name : {}", "sys/class/dmi/id/sys_vendor": "{}", "sys/class/dmi/id/product_name":
        "{}", "sys/class/dmi/id/board_name": "{}", "sys/class/dmi/id/bios_version": "{}",
        "sys/class/dmi/id/bios_date": "{}",
    }  # fmt: skip
    for n in NUMBERS:
        root = top / f"host{n}"
        for file, names in variables.items():
            _write(root / file, *(f"{name}={text(name, n)}" for name in names.split()))
        for file, line in lines.items():
            place = file.rpartition("/")[2].replace("_", "")
            _write(root / file, line.format(text(place, n)))


def _ports(top: Path) -> None:
    names = (f"{text('port', n, ' ')}\t{n + 1}/tcp # {text('comment', n)}" for n in NUMBERS)
    _write(top / "services", *names)
    _write(top / "cgroup" / "cgroup.controllers")
    for n in NUMBERS:
        (top / "cgroup" / f"n{n}.service").mkdir()
        (top / "cgroup" / f"{text('cgroup', n, '/')}.service").mkdir()


def _network(top: Path) -> None:
    for n in NUMBERS:
        known = (f"E:ID_{part}_FROM_DATABASE={text(part, n)}" for part in ("VENDOR", "MODEL"))
        _write(top / "udev" / f"n{n + 1}", *known)


def _crontabs(top: Path) -> None:
    def line(n: int) -> str:
        user, program, argument = text("cronuser", n, " "), text("program", n), text("arg", n)
        return f"1 {n} * * * {user} /opt/{program} {argument}"

    _write(top / "etc" / "crontab", *map(line, NUMBERS))
    _write(top / "etc" / "anacrontab", *(f"1 5 {text('anacron', n, ' ')} run" for n in NUMBERS))
    for n in NUMBERS:
        _write(top / "etc" / "cron.d" / text("crond", n, "/"), line(n))


def _kernels(top: Path) -> None:
    for n in NUMBERS:
        module, user, value = (text(place, n, " ,") for place in ("module", "user", "sysctl"))
        root = top / f"host{n}"
        _write(root / "proc/modules", f"{module} 1 1 {user}, Live 0x0")
        settings = (f"vm.s{n} = {text('sysctl', n)}", f"{text('key', n, '/=')} = {value}")
        # `password=x.conf` is the name of a file
        _write(root / "etc/sysctl.d" / f"{text('conf', n, '/=: ')}.conf", *settings)
        _write(root / f"proc/sys/vm/s{n}", text("value", n))


def _devices(top: Path) -> None:
    names = {"ID_VENDOR_FROM_DATABASE": "vendor", "ID_MODEL_FROM_DATABASE": "model",
             "ID_PCI_SUBCLASS_FROM_DATABASE": "class"}  # fmt: skip
    rows = {f"pci:{n}x*": {k: text(f"db{v}", n) for k, v in names.items()} for n in NUMBERS}
    database(top / "hwdb.bin", rows)
    for n in NUMBERS:
        name = text("device", n, "/:")
        driver = text("driver", n, "/")
        device(top / "sys", f"a/{name}p", "bus/pci/devices", driver, modalias=f"pci:{n}x")
        device(
            top / "sys", f"usb1/{name}u", "bus/usb/devices", manufacturer=text("maker", n),
            product=text("product", n), idVendor="1", idProduct="2",
        )  # fmt: skip
        device(
            top / "sys", f"virtual/{name}b", "class/block", size="9", device__vendor=text("of", n),
            device__model=text("disk", n), dm__name=text("dm", n),
            loop__backing_file=text("back", n),
        )  # fmt: skip
        for link in ("slaves", "holders"):
            (top / "sys" / "class/block" / f"{name}b" / link / text(link, n, "/")).mkdir(
                parents=True
            )


# observers of what was planted


def _links() -> list[bytes]:
    """Give interfaces with secrets in their names and kinds; every other one has an alias too."""
    bare = [kernel.link(n + 1, text("link", n)) for n in NUMBERS]
    kinds = [attribute(18, attribute(1, text("kind", n).encode() + b"\0")) for n in NUMBERS]
    alias = [attribute(20, text("alias", n).encode() + b"\0") for n in NUMBERS]
    parent = [attribute(5, (n + 1).to_bytes(4, "little")) for n in NUMBERS]
    more = [
        kernel.link(n + 101, f"e{n}", kinds[n], alias[n], parent[n], attribute(10, bytes(4)))
        for n in NUMBERS
    ]
    return [*bare, *more]


async def _observe_network(top: Path, report: Report) -> None:
    answers = {
        kernel.LINKS: listing(kernel.LINK, *_links()),
        kernel.ADDRESSES: listing(kernel.ADDRESS, *(kernel.address(n + 1, n + 1) for n in NUMBERS)),
        kernel.ROUTES: listing(kernel.ROUTE, *(kernel.route(n + 1, 10, n, 0, 0) for n in NUMBERS)),
    }
    with FakeKernel(answers) as fake:
        await Network(fake.passed, top / "udev").observe(report)


async def _observe_sockets(top: Path, report: Report) -> None:
    folders = [path for path in sorted((top / "cgroup").iterdir()) if path.is_dir()]
    ports = [kernel.listener(number + 1, path.stat().st_ino) for number, path in enumerate(folders)]
    with FakeKernel({kernel.SOCKETS: listing(kernel.SOCKETS, *ports)}) as fake:
        groups = ControlGroups([top / "cgroup"])
        await Sockets(fake.passed, groups, ServiceNames(top / "services")).observe(report)


def _observers(top: Path) -> list[Observer]:
    places = Places(top, top / "dpkg", top / "man", str(top / "rpm"), (top / "rpmdb",))
    of_rpm = Places(top, top / "none", top / "man", str(top / "rpm"), (top / "rpmdb",))
    sources = Sources(places, top / "ucf", (top / "units",), top / "etc")
    options = Options(places=places)
    users = Users(top / "passwd", top / "group", top / "nsswitch.conf")
    observes: dict[str, Callable[[Report], Coroutine[Any, Any, None]]] = {
        "systemd": partial(unit_observer.observe, options=options),
        "login1": login1.observe,
        "machined": machined.observe,
        "network": partial(_observe_network, top),
        "sockets": partial(_observe_sockets, top),
        "packages": Packages(places, top / "none").observe,
        "packages_rpm": Packages(of_rpm, top / "none").observe,
        "users": users.observe,
        "filesystems": FileSystems(top / "mountinfo").observe,
        "files": Files(sources).observe,
        "mirror": Mirror(MIRRORED).observe,
        **{f"host_{n}": HostFacts(top / f"host{n}").observe for n in NUMBERS},
        "cron": Cron(top / "etc").observe,
        "devices": Devices(Uevents(), top / "sys", (top / "hwdb.bin",)).observe,
        **{f"kernel_{n}": Kernel(Uevents(), top / f"host{n}").observe for n in NUMBERS},
    }
    plugins = {"network": "net", "sockets": "net", "filesystems": "mounts", "host": "system"}
    plugins["mirror"] = "many"
    volatile = {"systemd": unit_observer.OBSERVER.volatile, "login1": login1.OBSERVER.volatile}
    return [
        Observer(
            f"planted_{name}",
            plugins.get(ours := name.partition("_")[0], ours),
            observe,
            volatile.get(ours, {}),
        )
        for name, observe in observes.items()
    ]


_TOP = "PLANTED"
OBSERVERS = SimpleNamespace(
    **{each.name: each for each in _observers(Path(os.environ.get(_TOP, "/nonexistent")))}
)
NAMES = tuple(vars(OBSERVERS))


def install(folder: Path) -> dict[str, str]:
    """Write the distribution and plant; gives what Python's environment needs to find both."""
    plant(folder / "host")
    info = folder / "planted-1.0.dist-info"
    _write(info / "METADATA", "Metadata-Version: 2.1", "Name: planted", "Version: 1.0")
    points = (f"{name} = attacks.planted:OBSERVERS.{name}" for name in NAMES)
    _write(info / "entry_points.txt", "[opdbus.observers]", *points)
    tests = Path(__file__).parent.parent
    return {"PYTHONPATH": f"{folder}:{tests}", _TOP: str(folder / "host")}


# the fakes of PID 1 and logind

_TEXTS = (
    "SubState UnitFileState FragmentPath Following Result Group Slice Restart StatusText Unit What"
    " Options SysFSPath Type User"
).split()
_LISTS = "Documentation DropInPaths Triggers TriggeredBy Names Requires Wants After".split()


def _properties(name: str, n: int) -> dict[str, Any]:
    """Give the properties of a unit, a secret in each text."""
    found: dict[str, Any] = {key: text(key.lower(), n) for key in _TEXTS}
    found |= {key: Typed("as", [text(key.lower(), n), f"man:unit{n}(8)"]) for key in _LISTS}
    arguments = [text("arg0", n), f"/{text('script', n)}", text("arg2", n)]
    command = [text("program", n), arguments, False, 0, 0, 0, 0, 0, 0, 0]
    return found | {
        "Id": name,
        "LoadState": "error" if n % 2 else "loaded",
        "ActiveState": "active",
        "Description": text("description", n),
        "FragmentPath": f"/usr/lib/systemd/system/n{n}.service",
        "ExecMainPID": 0,
        "ExecStart": Typed("a(sasbttttuii)", [command]),
        "Environment": Typed("as", [text("environment", n)]),
        "Listen": Typed("a(ss)", [["Stream", text("listen", n)]]),
        "Paths": Typed("a(ss)", [["PathExists", text("watched", n)]]),
        "TimersCalendar": Typed("a(sst)", [["OnCalendar", text("calendar", n), 0]]),
        "LoadError": Typed("(ss)", ["error", text("loaderror", n)]),
        "ConditionResult": False,
        "ConditionTimestamp": 1,
        "Conditions": Typed("a(sbbsi)", [["ConditionHost", False, True, text("cond", n), -1]]),
    }


def serve_secrets(services: dict[str, FakeService]) -> None:
    """Answer as PID 1 and logind of a host with secrets."""
    rows, properties = [], {"/org/freedesktop/systemd1": {"Virtualization": text("virtual", 0)}}
    names = [(f"n{n}.service", n) for n in NUMBERS] + [(f"m{n}.mount", n) for n in NUMBERS]
    for name, n in [*names, (f"{text('unitname', _SHAPE)}.socket", _SHAPE)]:
        path = f"/org/freedesktop/systemd1/unit/{len(rows)}"
        rows.append([name, text("row", n), "loaded", "active", "running", "", path, 0, "", "/"])
        properties[path] = _properties(name, n)
        if name.endswith(".mount"):
            properties[path]["Where"] = f"/mnt/{text('where', n)}"
    manager = f"{PID1}.Manager"
    services[PID1].properties = properties
    services[PID1].answers = {
        f"{manager}.Subscribe": lambda _: ("", []),
        f"{manager}.ListUnits": lambda _: (_ROW, [rows]),
        f"{manager}.ListUnitsByPatterns": lambda *_: (_ROW, [rows]),
        f"{manager}.ListUnitFiles": lambda _: ("a(ss)", [[]]),
        f"{manager}.ListUnitFilesByPatterns": lambda *_: ("a(ss)", [[]]),
        "org.freedesktop.DBus.Properties.Get": lambda *_: ("v", [["/nowhere"]]),
    }
    _serve_logins(services[LOGIND])
    _serve_machines(services[MACHINED])
    lamps = {f"{LAMPS}/n{n}": {f"{MIRRORED}.Lamp": _lamp(n)} for n in NUMBERS}
    lamps[_LAMP] = {f"{MIRRORED}.{_element('sort')}": _lamp(_SHAPE)}
    services[MIRRORED].answers = {MANAGED: lambda _: (LISTED, [lamps])}


def _serve_machines(service: FakeService) -> None:
    fields = "Class Service Unit RootDirectory State".split()
    at = "/org/freedesktop/machine1"
    for n in NUMBERS:
        service.properties[f"{at}/{n}"] = {field: text(field.lower(), n) for field in fields}
    rows = [[text("machine", n), "", "", f"{at}/{n}"] for n in NUMBERS]
    release = {"PRETTY_NAME": text("release", 0)}
    service.answers = {
        f"{MACHINED}.Manager.ListMachines": lambda _: ("a(ssso)", [rows]),
        f"{MACHINED}.Manager.GetMachineOSRelease": lambda *_: ("a{ss}", [release]),
    }


def _element(place: str) -> str:
    """Give a text with a secret of the characters that paths and names of interfaces can have."""
    return text(place, _SHAPE).replace("-", "_")


_LAMP: Final = f"{LAMPS}/{_element('path')}"


def _lamp(n: int) -> dict[str, Any]:
    """Give an object with a secret in values of every type, and in the name of a property."""
    return {
        "Name": text("lampname", n),
        "Device": Typed("ay", text("bytes", n).encode() + b"\0"),
        "Devices": Typed("aay", [text("manybytes", n).encode() + b"\0"]),
        "Words": Typed("as", [text("words", n), "--password", text("after", n)]),
        "Rows": Typed("a(sa{sv})", [["crypttab", {"options": text("inner", n)}]]),
        "Nested": {"deep": {"deeper": text("deeper", n)}},
        "Psk": Typed("ay", text("psk", n).encode()),
        "Password": {"value": text("below", n)},
        "Drive": Typed("o", _LAMP),
        text("property", n): True,
    }


def _serve_logins(service: FakeService) -> None:
    fields = "Name Seat TTY Type Class State RemoteHost Service Desktop ActiveSession".split()
    at = "/org/freedesktop/login1"
    kinds = {n: (f"{at}/session/{n}", f"{at}/user/{n}", f"{at}/seat/{n}") for n in NUMBERS}
    for n, paths in kinds.items():
        values = {field: text(field.lower(), n) for field in fields}
        service.properties |= dict.fromkeys(paths, values)
    names = {n: text("login", n) for n in NUMBERS}
    manager = f"{LOGIND}.Manager"
    sessions = [[names[n], n, names[n], names[n], paths[0]] for n, paths in kinds.items()]
    users = [[n, names[n], paths[1]] for n, paths in kinds.items()]
    seats = [[names[n], paths[2]] for n, paths in kinds.items()]
    places = ("what", "who", "why", "mode")
    inhibitors = [[*(text(place, n) for place in places), n, n] for n in NUMBERS]
    service.answers = {
        f"{manager}.ListSessions": lambda _: ("a(susso)", [sessions]),
        f"{manager}.ListUsers": lambda _: ("a(uso)", [users]),
        f"{manager}.ListSeats": lambda _: ("a(so)", [seats]),
        f"{manager}.ListInhibitors": lambda _: ("a(ssssuu)", [inhibitors]),
    }
