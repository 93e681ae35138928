"""Outages of a booted host: boots one, breaks nginx and others really, and asks for the cause.

As root: `python benchmarks/host/failing.py NGINX_DEB... [--json FILE]`, with Debian's packages
nginx and nginx-common (`apt-get download nginx nginx-common`). Asked are `op-dbus changes --before
"UNIT failed"` and `op-dbus changes --around UNIT --within 5m`, by a member of the group op-dbus.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from inside import ASKER, asked_by_a_member, parser, python, report, start

if TYPE_CHECKING:
    from argparse import Namespace

    from system.host import Host

_FIRST = 3
# Unit files that are not loaded are listed so long after the start.
_FILES_AFTER = 12.0
_SOON = 6.0
# How full file systems are is read once a minute.
_GAUGED = 65.0
_SITE = """server {{
 listen 8093 ssl;
 root /srv/spool;
 ssl_certificate /etc/tls/site.pem;
 ssl_certificate_key /etc/tls/site.key;
 {more}
}}
"""
_SPOOLER = """[Unit]
Description=Takes orders
RequiresMountsFor=/srv/spool
[Service]
User=orders
ExecStart=/bin/sh -c 'dd if=/dev/zero of=$$(mktemp -p /srv/spool) bs=64k count=4 && sleep infinity'
"""
_HOLD = (
    "import socket, time; s = socket.socket(); s.setsockopt(1, 2, 1); s.bind(('0.0.0.0', 80));"
    " s.listen(); time.sleep(1e6)"
)


class _Outage(NamedTuple):
    """What is done, how long it takes to be seen, the unit that fails, the cause, and the cure."""

    name: str
    unit: str
    cause: str
    broken: str
    mended: str
    seconds: float = _SOON


OUTAGES = (
    _Outage(
        "a broken file in conf.d",
        "nginx",
        "files/file//etc/nginx/conf.d/offers.conf",
        "printf 'server { listen 80; offers on; }\\n' > /etc/nginx/conf.d/offers.conf",
        "rm /etc/nginx/conf.d/offers.conf",
    ),
    _Outage(
        "a certificate that was deleted",
        "nginx",
        "files/file//etc/tls/site.pem",
        "mv /etc/tls/site.pem /root/",
        "mv /root/site.pem /etc/tls/",
    ),
    _Outage(
        "a port that somebody took",
        "nginx",
        "net/listener/tcp 0.0.0.0:80",
        "systemctl stop nginx; systemd-run --quiet --scope --unit=run-u9 setsid python3 -c"
        f' "{_HOLD}" > /dev/null 2>&1 &',
        "systemctl kill --signal=KILL run-u9.scope; sleep 1",
    ),
    _Outage(
        "a file system that ran full",
        "spooler",
        "mounts/mount//srv/spool",
        "dd if=/dev/zero of=/srv/spool/fill bs=64k || true",
        "rm /srv/spool/fill",
        _GAUGED,
    ),
    _Outage(
        "a user who was deleted",
        "spooler",
        "users/account/orders",
        "systemctl stop spooler; userdel orders",
        "useradd --system orders",
    ),
)


def measure(host: Host, packages: list[Path]) -> dict[str, Any]:
    """Break services one after the other, ask, and mend them."""
    service = asked_by_a_member(host)
    python(host, "populate.py")
    for package in packages:
        shutil.copy(package, host.path("/root"))
    host.ask("sh", "-c", "dpkg -i /root/nginx*.deb && mkdir -p /etc/tls /srv/spool")
    host.ask(
        *"openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=x -days 9".split(),
        *"-keyout /etc/tls/site.key -out /etc/tls/site.pem".split(),
    )
    host.write("/etc/nginx/conf.d/site.conf", _SITE.format(more=""))
    host.ask("useradd", "--system", "orders")
    host.ask("mount", "-t", "tmpfs", "-o", "size=2m,mode=1777", "tmpfs", "/srv/spool")
    host.write("/etc/systemd/system/spooler.service", _SPOOLER)
    host.ask("systemctl", "daemon-reload")
    host.ask("systemctl", "restart", "nginx", "spooler")
    service.configure(OBSERVE="auto", VECTOR_LEVEL="static")
    start(service)
    time.sleep(_FILES_AFTER)
    python(host, "until_ready.py", user=ASKER)
    rows = {outage.name: _lived(host, outage) for outage in OUTAGES}
    return {"outages": len(rows), **_figures(rows), "rows": rows}


def _lived(host: Host, outage: _Outage) -> dict[str, Any]:
    host.ask("sh", "-c", outage.broken)
    # what happens besides
    host.ask("useradd", "--no-create-home", f"trainee{int(time.time())}")
    host.ask("sh", "-c", f"echo {time.time()} >> /etc/motd; echo {time.time()} >> /etc/cron.d/x")
    time.sleep(outage.seconds)
    host.ask("systemctl", "restart", "stockroom")
    host.run("systemctl", "restart", outage.unit)
    time.sleep(_SOON)
    if host.show(outage.unit, "ActiveState") != "failed":
        sys.exit(f"{outage.name}: {outage.unit} did not fail\n{host.log()}")
    before = _asked(host, "--before", f"{outage.unit} failed", "--limit", "10")
    around = _asked(host, "--around", f"{outage.unit}.service", "--within", "5m")
    # 5 minutes have the outage before this one, too
    begun = max((n for n, name in enumerate(around) if name == outage.cause), default=-1)
    print(outage.name, before[:_FIRST], around, file=sys.stderr)
    host.ask("sh", "-c", outage.mended)
    host.ask("systemctl", "restart", outage.unit)
    time.sleep(_SOON)
    return {
        "before": before.index(outage.cause) + 1 if outage.cause in before else 0,
        "around": begun >= 0,
        "best": before[:_FIRST],
        "rows around": len(around),
    }


def _asked(host: Host, *options: str) -> list[str]:
    lines = host.ask("op-dbus", "changes", *options, "--json", user=ASKER).splitlines()
    rows = [json.loads(line) for line in lines]
    return ["/".join((row["plugin"], row["kind"], row["name"])) for row in rows]


def _figures(rows: dict[str, dict[str, Any]]) -> dict[str, int]:
    return {
        "before: in the first three": sum(0 < row["before"] <= _FIRST for row in rows.values()),
        "before: first": sum(row["before"] == 1 for row in rows.values()),
        "around: found": sum(row["around"] for row in rows.values()),
    }


def main() -> None:
    """Boot, break, ask, and write the report."""
    options = parser(__doc__)
    options.add_argument("packages", nargs="+", type=Path)
    given: Namespace = options.parse_args()
    if missing := [path for path in given.packages if not path.is_file()]:
        sys.exit(f"there is no {missing[0]}")
    report(given, lambda host: measure(host, given.packages))


if __name__ == "__main__":
    main()
