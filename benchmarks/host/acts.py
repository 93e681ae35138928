"""A day of a host in minutes: starts, stops, installs, breaks and mends things; runs inside it.

Writes JSON to standard output: of each act its name, and when it began, in microseconds since 1970.
What `populate.py` made is there already.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from populate import SERVE, UNITS

# What one act changes has been seen, or is about to be, when the next begins.
_PAUSE_SECONDS = 3.0
_DEBS = Path("/run/debs")
_SERVICE = "[Unit]\nDescription={}\n[Service]\nExecStart={}\n"
_ENABLED = "[Install]\nWantedBy=multi-user.target\n"
# Files of packages: of each package and version its description, and its files.
PACKAGES = {
    ("dnscrab", "1.0"): (
        "small caching DNS resolver",
        {
            "/etc/dnscrab.conf": "cache = 100\n",
            "/usr/lib/systemd/system/dnscrab.service": _SERVICE.format(
                "Caching DNS resolver", f"/usr/bin/python3 {SERVE} udp/127.0.0.54:53"
            )
            + _ENABLED,
        },
    ),
    ("acme-agent", "2.5.0"): (
        "monitoring agent of the Acme company",
        {
            "/etc/acme-agent.conf": "interval = 60\n",
            "/usr/lib/systemd/system/acme-agent.service": _SERVICE.format(
                "Monitoring agent of the Acme company", "/bin/sh -c 'exit 4'"
            ),
        },
    ),
    ("inkwell", "3.1"): ("word processor for letters", {}),
    ("libraster2", "2.0.1"): ("library that reads pictures", {}),
}
FILES = {
    UNITS / "mailrelay.service": (
        "[Unit]\nDescription=Relay for outgoing mail\nStartLimitIntervalSec=30\n"
        "StartLimitBurst=5\n[Service]\nExecStart=/bin/false\nRestart=on-failure\n"
        "RestartSec=200ms\n"
    ),
    UNITS / "photo-backup.service": (
        "[Unit]\nDescription=Backup of the product photos\n[Service]\nType=oneshot\n"
        "ExecStart=/bin/sh -c 'exit 3'\n"
    ),
    UNITS / "photo-backup.timer": (
        "[Unit]\nDescription=Nightly backup of the product photos\n[Timer]\n"
        "OnCalendar=*-*-* 03:15:00\n"
    ),
    UNITS / "quickstore.service.d/limits.conf": "[Service]\nMemoryMax=64M\n",
    UNITS / "ledgerdb.service.d/tuning.conf": (
        "[Service]\nExecStart=\nExecStart=/usr/bin/python3 /srv/ledger/missing.py\n"
    ),
    Path("/etc/sysctl.d/90-routing.conf"): "net.ipv4.ip_forward = 1\n",
    Path("/etc/cron.d/sales-report"): "15 6 * * 1 root /usr/local/bin/sales-report\n",
}
# In order: the name of an act, and its command.
ACTS = {
    "resolver installed": f"dpkg --install {_DEBS}/dnscrab_1.0.deb",
    "resolver started": "systemctl daemon-reload; systemctl enable --now dnscrab",
    "resolver configured": "echo 'cache = 500' >>/etc/dnscrab.conf",
    "hosts edited": "echo '192.0.2.30 printer' >>/etc/hosts",
    "cache restarted": "systemctl restart quickstore",
    "trainee added": "useradd --comment='Erin Novak, trainee' --shell=/bin/bash erin",
    "bob made administrator": "usermod --append --groups=sudo bob",
    "agent upgraded": f"dpkg --install {_DEBS}/acme-agent_2.5.0.deb",
    "agent failed": "systemctl daemon-reload; systemctl start acme-agent",
    "address added": "ip address add 192.0.2.99/24 dev lan0",
    "ferry started": "systemctl start oldferry",
    "database stopped": "systemctl stop ledgerdb",
    "database started": "systemctl start ledgerdb",
    "sensors enabled": "systemctl enable thermowatch",
    "previews disabled": "systemctl disable thumbsmith",
    "portal crashed": "systemctl kill --signal=SEGV helpdesk",
    "portal mended": "systemctl start helpdesk",
    "letters installed": f"dpkg --install {_DEBS}/inkwell_3.1.deb {_DEBS}/libraster2_2.0.1.deb",
    "fax purged": "dpkg --purge faxgate",
    "former colleague deleted": "userdel dmitri",
    "shell taken away": "usermod --shell=/usr/sbin/nologin carol",
    "group added": "groupadd auditors",
    "relay written": "@mailrelay.service",
    "relay crashes again and again": "systemctl daemon-reload; systemctl start mailrelay; sleep 4",
    "address removed": "ip address del 198.51.100.7/24 dev lan0",
    "gateway changed": "ip route replace default via 192.0.2.254 dev lan0",
    "link set up": "ip link set backup0-peer up; ip link set backup0 up",
    "mtu changed": "ip link set lan0 mtu 1400",
    "tunnel made": "ip link add vpn0 type veth peer name vpn0-peer",
    "disk filled": "head -c 19M /dev/zero >/srv/scratch/more",
    "archive unmounted": "systemctl stop srv-archive.mount",
    "photos made writable": "mount -o remount,rw /srv/media",
    "backup scheduled": "@photo-backup.service photo-backup.timer",
    "backup timer started": "systemctl daemon-reload; systemctl start photo-backup.timer",
    "backup failed": "systemctl start photo-backup.service",
    "cache limited": "@quickstore.service.d/limits.conf",
    "cache limit taken": "systemctl daemon-reload; systemctl restart quickstore",
    "host renamed": "echo heron >/etc/hostname; hostname heron",
    "time zone changed": "ln -sfn /usr/share/zoneinfo/Asia/Tokyo /etc/localtime",
    "language changed": "echo LANG=de_DE.UTF-8 >/etc/default/locale",
    "badge reader stopped": "systemctl stop doorbadge.socket",
    "trimming masked": "systemctl mask --now fstrim.timer",
    "statistics unmasked": "systemctl unmask phonehome.service",
    "certificates renewed": "systemctl start renew-certificates.service",
    "ferry stopped": "systemctl stop oldferry",
    "ferry deleted": "rm /etc/systemd/system/oldferry.service; systemctl daemon-reload",
    "letters removed": "dpkg --remove inkwell",
    "adduser configured": "sed -i 's/^#*DSHELL=.*/DSHELL=\\/bin\\/zsh/' /etc/adduser.conf;"
    " echo >>/etc/adduser.conf",
    "log collector restarted": "systemctl restart logcatcher",
    "forwarding allowed": "@/etc/sysctl.d/90-routing.conf",
    "report scheduled": "@/etc/cron.d/sales-report",
    "database misconfigured": "@ledgerdb.service.d/tuning.conf",
    "database broken": "systemctl daemon-reload; systemctl restart ledgerdb; sleep 1",
}


def build(name: str, version: str) -> None:
    """Build a package in the folder of packages."""
    description, files = PACKAGES[name, version]
    folder = _DEBS / f"{name}_{version}"
    control = (
        f"Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: nobody <a@b.c>\n"
        f"Description: {description}\n"
    )
    conffiles = "".join(f"{path}\n" for path in files if path.startswith("/etc"))
    written = files | {"/DEBIAN/control": control, "/DEBIAN/conffiles": conffiles}
    for path, text in written.items():
        place = folder / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    command = ["dpkg-deb", "--build", str(folder), f"{folder}.deb"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _do(command: str) -> None:
    """Write files, or run a command; that of a service which is meant to fail may fail."""
    if not command.startswith("@"):
        subprocess.run(["sh", "-c", command], check=False, stdout=sys.stderr)
        return
    for name in command[1:].split():
        path = UNITS / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(FILES[path])


def main() -> None:
    """Do all of it."""
    for package in PACKAGES:
        build(*package)
    began = []
    for name, command in ACTS.items():
        began.append([name, time.time_ns() // 1000])
        _do(command)
        time.sleep(_PAUSE_SECONDS)
    json.dump(began, sys.stdout)


if __name__ == "__main__":
    main()
