"""Makes a booted host as interesting as hosts that are in use; runs inside it, as root.

It gets accounts, services in all states, ports, mounts, addresses, packages and an edited file,
with the words that people use for such things. Everything else is the machine itself.
"""

from __future__ import annotations

import socket
import subprocess
import tempfile
from pathlib import Path

UNITS = Path("/etc/systemd/system")
SERVE = Path("/usr/local/libexec/serve")
_SERVE = """\
import socket, sys, time
kept = []
for given in sys.argv[1:]:
    kind, _, where = given.partition("/")
    address, _, port = where.rpartition(":")
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    one = socket.socket(family, socket.SOCK_STREAM if kind == "tcp" else socket.SOCK_DGRAM)
    if family == socket.AF_INET6:
        one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    one.bind((address, int(port)))
    if kind == "tcp":
        one.listen()
    kept.append(one)
time.sleep(1e8)
"""
_DAEMON = "[Service]\nUser={user}\nExecStart=/usr/bin/python3 {serve} {ports}\n"
_INSTALL = "[Install]\nWantedBy=multi-user.target\n"

# name: (description, user, what it listens on, is it running, is it enabled)
DAEMONS = {
    "stockroom": ("Warehouse inventory web API", "stock", ["tcp/0.0.0.0:8081"], True, True),
    "helpdesk": (
        "Customer support ticket portal",
        "helpdesk",
        ["tcp/0.0.0.0:8443", "tcp/:::8443"],
        True,
        True,
    ),
    "quickstore": ("In-memory key-value cache", "quickstore", ["tcp/127.0.0.1:6390"], True, True),
    "ledgerdb": (
        "Accounting database server",
        "ledger",
        ["tcp/127.0.0.1:5544", "tcp/::1:5544"],
        True,
        True,
    ),
    "logcatcher": (
        "Collects log messages of other machines",
        "root",
        ["udp/0.0.0.0:5514"],
        True,
        True,
    ),
    "thermowatch": ("Reads the temperature sensors of the server room", "metrics", [], True, False),
    "thumbsmith": ("Makes preview pictures for the web shop", "stock", [], False, True),
    "oldferry": ("Legacy file transfer server", "root", ["tcp/0.0.0.0:2121"], False, False),
}
# Units that are written as they are.
OTHERS = {
    "ledger-dump.service": (
        "[Unit]\nDescription=Dump of the accounting database to the backup server\n"
        "[Service]\nType=oneshot\nExecStart=/bin/sh -c 'exit 23'\n"
    ),
    "ledger-dump.timer": (
        "[Unit]\nDescription=Nightly dump of the accounting database\n"
        "[Timer]\nOnCalendar=*-*-* 02:30:00\n[Install]\nWantedBy=timers.target\n"
    ),
    "sales-letter.service": (
        "[Unit]\nDescription=Mails the weekly sales report to the managers\n"
        "[Service]\nExecStart=/bin/sh -c 'kill -SEGV $$$$'\n"
    ),
    "renew-certificates.service": (
        "[Unit]\nDescription=Renewal of the TLS certificates of the web sites\n"
        "[Service]\nType=oneshot\nExecStart=/bin/true\n"
    ),
    "renew-certificates.timer": (
        "[Unit]\nDescription=Weekly check of the TLS certificates\n"
        "[Timer]\nOnCalendar=weekly\n[Install]\nWantedBy=timers.target\n"
    ),
    "phonehome.service": (
        "[Unit]\nDescription=Sends usage statistics to the vendor\n"
        "[Service]\nExecStart=/bin/sleep infinity\n" + _INSTALL
    ),
    "doorbadge.socket": (
        "[Unit]\nDescription=Connections of the badge reader at the office door\n"
        "[Socket]\nListenStream=127.0.0.1:7007\nAccept=no\n[Install]\nWantedBy=sockets.target\n"
    ),
    "doorbadge.service": (
        "[Unit]\nDescription=Opens the office door for employee badges\n"
        "[Service]\nExecStart=/bin/sleep infinity\n"
    ),
    "scan-inbox.path": (
        "[Unit]\nDescription=Waits for scanned invoices\n"
        "[Path]\nPathExistsGlob=/srv/inbox/*.pdf\n" + _INSTALL
    ),
    "scan-inbox.service": (
        "[Unit]\nDescription=Imports scanned invoices\n"
        "[Service]\nType=oneshot\nExecStart=/bin/true\n"
    ),
    "srv-archive.mount": (
        "[Unit]\nDescription=Archive of old invoices\n"
        "[Mount]\nWhat=tmpfs\nWhere=/srv/archive\nType=tmpfs\nOptions=size=20M,mode=755\n"
    ),
    "srv-media.mount": (
        "[Unit]\nDescription=Product photos\n"
        "[Mount]\nWhat=tmpfs\nWhere=/srv/media\nType=tmpfs\nOptions=size=8M,ro\n"
    ),
    "srv-scratch.mount": (
        "[Unit]\nDescription=Scratch space of the build jobs\n"
        "[Mount]\nWhat=tmpfs\nWhere=/srv/scratch\nType=tmpfs\nOptions=size=40M,mode=1777\n"
    ),
}
_STARTED = "ledger-dump.timer renew-certificates.timer doorbadge.socket scan-inbox.path"
_TIMERS = "apt-daily.timer man-db.timer fstrim.timer systemd-tmpfiles-clean.timer"
CRON = """\
15 4 * * * stock /opt/shop/export-orders --to accounting
*/10 * * * * metrics /usr/local/bin/read-fridge-sensors
0 7 * * mon root /usr/local/sbin/rotate-badges
"""
SETTINGS = "vm.swappiness = 10\nnet.ipv4.ip_forward = 1\nkernel.sysrq = 0\n"
# Each is a command of iproute2.
_NETWORK = (
    "link set lo up",
    "link add lan0 type veth peer name lan0-peer",
    "link add backup0 type veth peer name backup0-peer",
    "link set lan0-peer up",
    "link set lan0 up",
    "address add 192.0.2.10/24 dev lan0",
    "address add 198.51.100.7/24 dev lan0",
    "address add 2001:db8::10/64 dev lan0 nodad",
    "route add default via 192.0.2.1 dev lan0",
    "route add 203.0.113.0/24 via 192.0.2.254 dev lan0",
)
_FILLED = {"/srv/archive": 19 << 20, "/srv/scratch": 20 << 20}

SERVICE_ACCOUNTS = {
    "stock": "Warehouse software",
    "helpdesk": "Support portal",
    "quickstore": "Key-value cache",
    "ledger": "Accounting database",
    "metrics": "Sensor readings",
}
# name: (full name, shell, other groups)
PEOPLE = {
    "alice": ("Alice Moreau", "/bin/bash", ["sudo", "webteam"]),
    "bob": ("Bob Tanaka", "/bin/bash", ["webteam"]),
    "carol": ("Carol Lindqvist", "/bin/zsh", []),
    "dmitri": ("Dmitri Orlov, has left the company", "/usr/sbin/nologin", []),
}
_PACKAGES = {
    "acme-agent": ("2.4.1", "monitoring agent of the Acme company", "/etc/acme-agent.conf"),
    "faxgate": ("0.9", "gateway between e-mail and fax machines", "/etc/faxgate.conf"),
}


def run(*command: str) -> None:
    """Run a command that has to succeed."""
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def identity() -> None:
    """Name the host, and say where it stands."""
    socket.sethostname("bluebird")
    Path("/etc/hostname").write_text("bluebird\n")
    Path("/etc/localtime").unlink(missing_ok=True)
    Path("/etc/localtime").symlink_to("/usr/share/zoneinfo/Europe/Lisbon")


def accounts() -> None:
    """Add people, and accounts of services."""
    run("groupadd", "webteam")
    for name, purpose in SERVICE_ACCOUNTS.items():
        home = f"/var/lib/{name}"
        run("useradd", "--system", f"--comment={purpose}", f"--home-dir={home}",
            "--shell=/usr/sbin/nologin", name)  # fmt: skip
    for name, (full_name, shell, groups) in PEOPLE.items():
        run("useradd", f"--comment={full_name}", f"--shell={shell}",
            f"--groups={','.join(groups)}", name)  # fmt: skip


def units() -> None:
    """Write, start, enable and mask units; two of them fail."""
    SERVE.parent.mkdir(parents=True, exist_ok=True)
    SERVE.write_text(_SERVE)
    for name, (description, user, ports, _, _) in DAEMONS.items():
        unit = _DAEMON.format(user=user, serve=SERVE, ports=" ".join(ports))
        text = f"[Unit]\nDescription={description}\n{unit}{_INSTALL}"
        (UNITS / f"{name}.service").write_text(text)
    for name, text in OTHERS.items():
        # a unit is masked by a link in the place of the administrator's own file
        folder = Path("/usr/lib/systemd/system") if name == "phonehome.service" else UNITS
        (folder / name).write_text(text)
    run("systemctl", "daemon-reload")
    run("systemctl", "mask", "phonehome.service")
    enabled = [f"{name}.service" for name, (*_, is_enabled) in DAEMONS.items() if is_enabled]
    run("systemctl", "enable", *enabled, *_STARTED.split())
    running = [f"{name}.service" for name, (*_, runs, _) in DAEMONS.items() if runs]
    run("systemctl", "start", *running, *_STARTED.split(), *_TIMERS.split())
    for name in ("ledger-dump", "sales-letter"):
        subprocess.run(["systemctl", "start", name], check=False, stderr=subprocess.DEVNULL)


def settings() -> None:
    """Add jobs of cron, and settings of the kernel that nothing has applied."""
    Path("/etc/cron.d/shop").write_text(CRON)
    Path("/etc/sysctl.d/80-bluebird.conf").write_text(SETTINGS)


def mounts() -> None:
    """Mount one that is nearly full, one half full, one read-only."""
    run("systemctl", "start", *(name for name in OTHERS if name.endswith(".mount")))
    for folder, size in _FILLED.items():
        Path(folder, "data").write_bytes(bytes(size))


def network() -> None:
    """Add a card with three addresses and the default route, and one that is down."""
    for line in _NETWORK:
        run("ip", *line.split())


def packages() -> None:
    """Install two packages, hold one and edit its file, and remove the other, but for its file."""
    with tempfile.TemporaryDirectory() as name:
        for package in _PACKAGES:
            run("dpkg", "--install", str(_built(Path(name), package)))
    for file in (Path("/etc/acme-agent.conf"), Path("/etc/adduser.conf")):
        file.write_text(f"{file.read_text()}\n# changed by the administrator\n")
    run("dpkg", "--remove", "faxgate")
    hold = "acme-agent hold\n"
    subprocess.run(["dpkg", "--set-selections"], input=hold, text=True, check=True)


def _built(folder: Path, package: str) -> Path:
    version, description, file = _PACKAGES[package]
    control, owned = folder / package / "DEBIAN", folder / package / file.lstrip("/")
    control.mkdir(parents=True)
    owned.parent.mkdir(parents=True)
    owned.write_text("interval = 60\n")
    (control / "conffiles").write_text(f"{file}\n")
    (control / "control").write_text(
        f"Package: {package}\nVersion: {version}\nArchitecture: all\n"
        f"Maintainer: nobody <a@b.c>\nDescription: {description}\n"
    )
    deb = folder / f"{package}.deb"
    run("dpkg-deb", "--build", str(folder / package), str(deb))
    return deb


def main() -> None:
    """Make all of it."""
    for part in (identity, accounts, units, settings, mounts, network, packages):
        part()


if __name__ == "__main__":
    main()
