"""What `make install` puts on a system: files that repeat each other's names, and nothing else."""

import re
import shutil
from configparser import ConfigParser
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree as ET

import pytest
from conftest import ROOT
from harness.running import run_program
from harness.setting_up import files_in, setup

from opdbus import config, errors
from opdbus.bus import names
from opdbus.bus.authorization.authorizer import GROUP, READERS
from opdbus.bus.service import contract
from opdbus.cli import gateway
from opdbus.history import acts
from opdbus.observe.core import netlink
from opdbus.observe.kernel import uevents
from opdbus.publishers import containers, journal_follower
from opdbus.settings import privacy
from opdbus.systemd import unit

UNIT = ROOT / "systemd" / "op-dbus.service"
ENV = "etc/op-dbus/op-dbus.env"
RULES = "etc/op-dbus/notify.toml"
CONTAINERS = UNIT.with_name("op-dbus-containers.service")
JOURNAL = UNIT.with_name("op-dbus-journal.service")
# As systemd counts it; that the others are root's is most of it.
METRICS = UNIT.with_name("op-dbus-metrics.service")
GATEWAY = UNIT.with_name("op-dbus-gateway.service")
WRITER = UNIT.with_name("op-dbus-gateway-write.service")
# These have the network.
SENDER = UNIT.with_name("op-dbus-fleet.service")
SERVER = UNIT.with_name("op-dbus-fleet-server.service")
NOTIFY = UNIT.with_name("op-dbus-notify.service")
MOST_EXPOSED = {UNIT: 0.3, CONTAINERS: 0.6, JOURNAL: 0.6, METRICS: 0.5, NOTIFY: 1.1}
MOST_EXPOSED |= {GATEWAY: 0.6, WRITER: 0.6}
MOST_EXPOSED |= {SENDER: 1.3, SERVER: 1.5}
# Whatever PREFIX is, these are read here and, some of them, nowhere else.
READ_BY_OTHERS = (
    "usr/lib/systemd/system/op-dbus.service",
    "usr/lib/systemd/system/op-dbus-containers.service",
    "usr/lib/systemd/system/op-dbus-fleet.service",
    "usr/lib/systemd/system/op-dbus-fleet-server.service",
    "usr/lib/systemd/system/op-dbus-gateway.service",
    "usr/lib/systemd/system/op-dbus-gateway.socket",
    "usr/lib/systemd/system/op-dbus-gateway-metrics.socket",
    "usr/lib/systemd/system/op-dbus-gateway-write.service",
    "usr/lib/systemd/system/op-dbus-gateway-write.socket",
    "usr/lib/systemd/system/op-dbus-journal.service",
    "usr/lib/systemd/system/op-dbus-metrics.service",
    "usr/lib/systemd/system/op-dbus-metrics.timer",
    "usr/lib/systemd/system/op-dbus-notify.service",
    "usr/lib/systemd/system/op-dbus-diag.socket",
    "usr/lib/systemd/system/op-dbus-uevent.socket",
    "usr/lib/systemd/system/op-dbus-route.socket",
    "usr/lib/systemd/system/op-dbus.service.d/gpu.conf.example",
    "usr/lib/systemd/system/op-dbus.service.d/remote.conf.example",
    "usr/lib/systemd/catalog/op-dbus.catalog",
    "usr/lib/sysusers.d/op-dbus.conf",
    "usr/lib/tmpfiles.d/op-dbus.conf",
    "usr/share/dbus-1/system.d/org.opdbus.conf",
    "usr/share/dbus-1/system-services/org.opdbus.service",
    "usr/share/dbus-1/interfaces/org.opdbus.History1.xml",
    "usr/share/dbus-1/interfaces/org.opdbus.State1.xml",
    "usr/share/polkit-1/actions/org.opdbus.policy",
    "usr/share/polkit-1/rules.d/org.opdbus.rules",
    "etc/op-dbus/op-dbus.env",
    RULES,
)
needs_systemd_analyze = pytest.mark.skipif(
    not shutil.which("systemd-analyze"), reason="there is no systemd-analyze: apt install systemd"
)


def unit_keys() -> dict[str, list[str]]:
    """Read the unit's assignments."""
    found: dict[str, list[str]] = {}
    for line in UNIT.read_text(encoding="utf-8").splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(key, []).append(value)
    return found


def xml(name: str) -> ET.Element:
    """Parse one of our own XML files."""
    return ET.fromstring((ROOT / "etc" / name).read_text(encoding="utf-8"))  # noqa: S314


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the files into a folder."""
    folder = tmp_path_factory.mktemp("tree")
    setup("install", folder)
    return folder


def test_one_bus_name() -> None:
    """Own the name on the bus that unit, policy and activation file speak of."""
    activation = ConfigParser()
    activation.read(ROOT / "etc" / "dbus-1" / "org.opdbus.service")
    policy = xml("dbus-1/org.opdbus.conf")
    owned = {rule.attrib["own"] for rule in policy.iter("allow") if "own" in rule.attrib}
    assert unit_keys()["BusName"] == [names.BUS_NAME]
    assert owned == {names.BUS_NAME}
    assert activation["D-BUS Service"]["Name"] == names.BUS_NAME
    assert activation["D-BUS Service"]["SystemdService"] == UNIT.name


def test_one_user_and_group() -> None:
    """Run as the user that is created, that may own the name, and that polkit answers."""
    created = re.findall(r"^u (\S+)", (ROOT / "systemd/op-dbus.sysusers").read_text(), re.MULTILINE)
    policy = xml("dbus-1/org.opdbus.conf")
    owners = {
        part.attrib["user"]
        for part in policy.iter("policy")
        if "user" in part.attrib and part.find("allow[@own]") is not None
    }
    asks = {note.text for note in xml("polkit-1/org.opdbus.policy").iter("annotate")}
    own, alerts, journal, sender, server, reading, writing = created
    alone = ((SENDER, sender), (SERVER, server), (GATEWAY, reading), (WRITER, writing))
    for path, user in alone:
        assert f"\nUser={user}\nGroup={user}\n" in path.read_text()
    assert [own] == [GROUP] == unit_keys()["User"] == unit_keys()["Group"]
    assert f"\nUser={alerts}\nGroup={alerts}\n" in NOTIFY.read_text()
    assert journal == acts.PUBLISHER
    assert f"User={journal}\nGroup={GROUP}\n" in JOURNAL.read_text()
    assert owners == {"root", GROUP}
    assert asks == {f"unix-user:{GROUP}"}


def test_everyone_may_send_to_the_service() -> None:
    """Let the bus pass every call: each method decides for itself."""
    policy = xml("dbus-1/org.opdbus.conf").find("policy[@context='default']")
    assert policy is not None
    sent = [rule for rule in policy if not any(key.startswith("receive_") for key in rule.attrib)]
    assert [(rule.tag, rule.attrib) for rule in sent] == [
        ("allow", {"send_destination": names.BUS_NAME})
    ]


def test_sockets_of_the_kernel_come_and_go_with_the_service() -> None:
    """Pass each socket by the name and with the groups that its observer expects.

    A socket that outlived the service would start it again at the kernel's next message.
    """
    units = {}
    for path in set(UNIT.parent.glob("*.socket")) - set(UNIT.parent.glob("*gateway*")):
        units[path.name] = ConfigParser()
        units[path.name].read(path)
    assert set(unit_keys()["Sockets"][0].split()) == units.keys()
    passed = {}
    for found in units.values():
        assert found["Unit"]["BindsTo"] == found["Socket"]["Service"] == UNIT.name
        passed[found["Socket"]["FileDescriptorName"]] = found["Socket"]["ListenNetlink"]
    assert passed == {
        "route": f"route {netlink.ROUTE_GROUPS}",
        "diag": "inet-diag",
        "uevent": f"kobject-uevent {uevents.GROUP}",
    }


def test_sockets_of_the_gateway_are_closed_to_others() -> None:
    """Pass each socket by a name that the gateway knows, to the service that may do what it is for.

    Only the one for reading is the group's; TCP is reached from this host alone.
    """
    units = {}
    for path in UNIT.parent.glob("*gateway*.socket"):
        units[path.name] = ConfigParser()
        units[path.name].read(path)
    seen = {
        found["Socket"]["FileDescriptorName"]: (
            found["Socket"]["Service"],
            found["Socket"].get("SocketGroup"),
            found["Socket"].get("SocketMode"),
            found["Socket"].get("IPAddressAllow"),
        )
        for found in units.values()
    }
    assert seen == {
        "http": (GATEWAY.name, GROUP, "0660", "localhost"),
        "write": (WRITER.name, "root", "0600", "localhost"),
        "metrics": (GATEWAY.name, None, None, "localhost"),
    }
    assert set(seen) == set(gateway.NAMES)
    assert {name: found["Socket"]["Service"] for name, found in units.items()} == unit.GATEWAYS


def test_one_group_reads_the_settings() -> None:
    """Create the group that the folder's rule and the doctor name, with the service alone in it.

    Alerts get it in their sandbox, where nothing else of the folder is.
    """
    created = (ROOT / "systemd/op-dbus.sysusers").read_text(encoding="utf-8")
    assert re.findall(r"^g (\S+)", created, re.MULTILINE) == [privacy.GROUP, READERS]
    assert re.findall(r"^m (\S+) (\S+)", created, re.MULTILINE) == [
        (GROUP, privacy.GROUP),
        ("op-dbus-notify", GROUP),
        (acts.PUBLISHER, GROUP),
        (SENDER.stem, READERS),
        # one gateway may read, the other may publish
        (GATEWAY.stem, READERS),
        (WRITER.stem, GROUP),
    ]
    seen = f"TemporaryFileSystem={privacy.FOLDER}:ro\nBindReadOnlyPaths="
    assert f"\nSupplementaryGroups={privacy.GROUP}\n{seen}" in NOTIFY.read_text()
    rules = (ROOT / "systemd/op-dbus.tmpfiles").read_text(encoding="utf-8")
    rows = [line.split() for line in rules.splitlines() if not line.startswith("#")]
    assert {(row[1], row[-2], row[-1]) for row in rows} == {
        (str(privacy.FOLDER), "root", privacy.GROUP),
        (f"{privacy.FOLDER}-gateway", "root", "op-dbus-gateway"),
    }
    assert Path(unit.SETTINGS).parent == config.load({}).state_file.parent == privacy.FOLDER


def test_every_action_is_known_to_polkit() -> None:
    """Declare in polkit exactly the actions that methods and properties name in the XML."""
    files = sorted((ROOT / "opdbus" / "bus" / "interfaces").glob("*.xml"))
    named = {
        note.attrib["value"]
        for file in files
        for note in ET.fromstring(file.read_text(encoding="utf-8")).iter("annotation")  # noqa: S314
        if note.attrib["name"] == f"{names.BUS_NAME}.Action"
    }
    actions = xml("polkit-1/org.opdbus.policy").findall("action")
    assert {action.attrib["id"] for action in actions} == {f"{names.BUS_NAME}.{n}" for n in named}
    assert named == set(names.ACTIONS)


def test_each_action_is_its_own_owners() -> None:
    """Give every action the owner annotation, a text, and nobody a right without a password."""
    for action in xml("polkit-1/org.opdbus.policy").findall("action"):
        assert action.find("annotate[@key='org.freedesktop.policykit.owner']") is not None
        assert action.findtext("description")
        assert action.findtext("message")
        defaults = [default.text or "" for default in action.find("defaults") or ()]
        assert len(defaults) == 3
        assert all(default.startswith("auth_admin") for default in defaults)


def test_the_group_is_granted_what_it_has_without_polkit() -> None:
    """Grant the group all actions but managing, under the group's own name."""
    rules = (ROOT / "etc" / "polkit-1" / "org.opdbus.rules").read_text(encoding="utf-8")
    granted, read = (
        set(re.findall(r'"org\.opdbus\.(\w+)"', part)) for part in rules.split("var read")
    )
    assert granted == set(names.ACTIONS) - {"manage"}
    assert read == {"read", "vectorize"}
    assert re.findall(r'isInGroup\("(.*)"\)', rules) == [GROUP, READERS]


def test_interfaces_are_installed(tree: Path) -> None:
    """Install every interface of ours, and none that others install."""
    installed = {path.stem for path in (tree / "usr/share/dbus-1/interfaces").iterdir()}
    assert installed == {
        names.VECTORIZER, names.STATE, names.OBJECT, names.HISTORY, names.JOB,
    }  # fmt: skip
    assert all(contract.interface(name).methods for name in installed)


def test_a_bad_setting_is_not_tried_again() -> None:
    """Keep systemd from restarting what ends because of settings, models or providers."""
    hopeless = {errors.ConfigError.exit_code, errors.ModelError.exit_code}
    hopeless |= {errors.ProviderError.exit_code}
    assert set(unit_keys()["RestartPreventExitStatus"][0].split()) == set(map(str, hopeless))


def test_a_fault_that_may_pass_is_tried_again_without_an_end() -> None:
    """Start it again so rarely that systemd's limit of five starts in ten seconds is not met."""
    keys = unit_keys()
    assert int(keys["RestartSec"][0]) >= 10
    assert not {key for key in keys if key.startswith("StartLimit")}


def test_the_service_keeps_its_data_in_the_folders_that_it_is_given() -> None:
    """Set the state folder that systemd makes, and in it the folder of the models of root."""
    environ = dict(pair.split("=") for line in unit_keys()["Environment"] for pair in line.split())
    ours = {key: text.replace("%S", "/var/lib") for key, text in environ.items()}
    given = config.load({key: text for key, text in ours.items() if key.startswith("OP_DBUS")})
    assert given.state_dir == Path("/var/lib", *unit_keys()["StateDirectory"])
    assert given.model_dir == config.load({}, euid=0).model_dir == given.state_dir / "models"


def test_the_settings_file_is_the_table() -> None:
    """Hold every variable, commented, with its default; `python systemd/manual` writes the file."""
    lines = (ROOT / ENV).read_text(encoding="utf-8").splitlines()
    held = [line.removeprefix("#") for line in lines if line.startswith("#OP_DBUS_")]
    table = [f"{setting.variable}={setting.default}" for setting in config.SETTINGS]
    assert held == [*table, f"{config.CONFIG_FILE_VARIABLE}="]
    text = " ".join(line.removeprefix("# ") for line in lines)
    assert all(setting.doc[1:] in text for setting in config.SETTINGS)
    assert all(line.startswith("#") for line in lines if line)


def test_every_default_is_accepted() -> None:
    """Let an operator remove any comment sign of the settings file without harm."""
    lines = (ROOT / ENV).read_text(encoding="utf-8").splitlines()
    pairs = [line[1:].split("=", 1) for line in lines if line.startswith("#OP_DBUS_")]
    assert config.load(dict(pairs), euid=0).rows()


@needs_systemd_analyze
@pytest.mark.parametrize("service", MOST_EXPOSED, ids=lambda path: path.stem)
def test_the_sandbox_is_tight(service: Path) -> None:
    """Stay below the exposure that the project promises."""
    done = run_program(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", service], check=True
    )
    exposure = re.search(r"Overall exposure level for [\w.-]+: ([\d.]+)", done.stdout)
    assert exposure is not None
    assert float(exposure[1]) <= MOST_EXPOSED[service]


@pytest.mark.parametrize(
    ("path", "program"), [(CONTAINERS, containers), (JOURNAL, journal_follower)]
)
def test_publishers_are_apart_and_go_with_the_service(path: Path, program: ModuleType) -> None:
    """Do not enable programs that may ask the engines or read the journal; they go with it."""
    unit = ConfigParser(strict=False, interpolation=None)
    unit.read(path)
    assert unit["Unit"]["BindsTo"] == unit["Unit"]["After"] == UNIT.name
    assert unit["Install"]["WantedBy"] == UNIT.name
    assert f"{unit['Service']['ExecStart']} ".partition(f" -m {program.__name__} ")[1]
    assert path.name not in UNIT.read_text()
    enabled = re.findall(r"systemctl enable.*", (ROOT / "systemd" / "setup").read_text())
    assert enabled == ["systemctl enable --now op-dbus"]


@needs_systemd_analyze
@pytest.mark.parametrize("example", ["", "gpu", "remote"])
def test_systemd_has_nothing_to_say_about_the_unit(
    tmp_path: Path, tree: Path, example: str
) -> None:
    """Let `systemd-analyze verify` print nothing, with and without each drop-in."""
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/usr/local/bin/op-dbus", "/bin/true"))
    drop_in = tmp_path / "op-dbus.service.d" / f"{example}.conf"
    if example:
        drop_in.parent.mkdir()
        shutil.copy(UNIT.parent / "op-dbus.service.d" / f"{example}.conf.example", drop_in)
    done = run_program(
        ["systemd-analyze", "verify", f"--man={shutil.which('man') is not None}", unit],
        env={"PATH": "/usr/bin:/bin", "MANPATH": str(tree / "usr/local/share/man")},
    )
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


@needs_systemd_analyze
def test_systemd_has_nothing_to_say_about_alerts(tmp_path: Path, tree: Path) -> None:
    """Let `systemd-analyze verify` print nothing about the service that delivers alerts."""
    written = (tree / "usr/lib/systemd/system" / NOTIFY.name).read_text()
    unit = tmp_path / NOTIFY.name
    unit.write_text(
        written.replace("\nExecStart=/usr/local/bin/op-dbus ", "\nExecStart=/bin/true ")
    )
    assert unit.read_text() != written
    done = run_program(["systemd-analyze", "verify", "--man=no", unit])
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


@needs_systemd_analyze
def test_systemd_has_nothing_to_say_about_the_metrics_timer(tmp_path: Path, tree: Path) -> None:
    """Let `systemd-analyze verify` print nothing about the timer and the service that it starts."""
    for source in (METRICS, METRICS.with_suffix(".timer")):
        text = source.read_text().replace("/usr/local/bin/op-dbus", "/bin/true")
        (tmp_path / source.name).write_text(text)
    done = run_program(["systemd-analyze", "verify", "--man=no", *tmp_path.iterdir()])
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)
    written = (tree / "usr/lib/systemd/system" / METRICS.name).read_text()
    assert "\nExecStart=/usr/local/bin/op-dbus metrics --output " in written


@pytest.mark.parametrize("prefix", ["/usr", "/usr/local", "/opt/op-dbus"])
def test_files_are_where_they_are_read(tmp_path: Path, prefix: str) -> None:
    """Put what others read under /usr whatever PREFIX is, and the rest under PREFIX."""
    setup("install", tmp_path, prefix)
    found = files_in(tmp_path)
    assert found >= set(READ_BY_OTHERS)
    rest = {name for name in found if not name.startswith(("usr/lib/", "usr/share/", "etc/"))}
    assert all(f"/{name}".startswith(f"{prefix}/") for name in rest)
    assert {f"{prefix[1:]}/share/man/man1/op-dbus.1"} <= found
    unit = (tmp_path / READ_BY_OTHERS[0]).read_text()
    assert f"\nExecStart={prefix}/bin/op-dbus daemon\n" in unit


def test_everyone_may_read_what_is_installed(tree: Path) -> None:
    """Install files that every user may read, but for the settings, and only root may write."""
    modes = {name: (tree / name).stat().st_mode & 0o777 for name in files_in(tree)}
    assert modes.pop(ENV) == modes.pop(RULES) == 0o640
    for folder in ((tree / ENV).parent, tree / "etc/op-dbus/notify.d"):
        assert folder.stat().st_mode & 0o777 == 0o750
    assert set(modes.values()) == {0o644}
