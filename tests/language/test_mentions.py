"""What a unit's files name: paths, ports, users, addresses and folders, read within bounds."""

import asyncio
import os
from pathlib import Path

import pytest

from opdbus.index.query import config_mentions
from opdbus.index.query.config_mentions import Mentions
from opdbus.observe.systemd import unit_mentions
from opdbus.state.object import ObjectId


@pytest.mark.parametrize(
    ("line", "paths"),
    [
        ("ExecStart=/usr/sbin/nginx -c /etc/nginx/x", "/usr/sbin/nginx /etc/nginx/x"),
        ("run --config=/etc/app/a.toml -f'/etc/b.ini'", "/etc/app/a.toml /etc/b.ini"),
        ("ReadWritePaths=-/var/lib/redis +/srv/x", "/var/lib/redis /srv/x"),
        ("!includedir /etc/mysql/conf.d/", "/etc/mysql/conf.d"),
        ("include /etc/nginx/conf.d/*.conf;", "/etc/nginx/conf.d"),
        ("AssertPathExists=/etc/postgresql/%I/postgresql.conf", "/etc/postgresql"),
        ("ssl_cert = </etc/ssl/mail/imap.pem", "/etc/ssl/mail/imap.pem"),
        ('alias_maps = "hash:/etc/aliases",', "/etc/aliases"),
        ("Include ${CONF}/a.conf http://example.org/x/y ldap:/// a/b 10.0.0.0/8", ""),
        ("# see /etc/other", ""),
        ("; /etc/other", ""),
        ("StateDirectory=shop cache", "/var/lib/shop /var/lib/cache"),
        ("RuntimeDirectory=redis", "/run/redis"),
    ],
)  # fmt: skip
def test_paths_of_a_line(line: str, paths: str) -> None:
    """Absolute paths are named, up to what is open, and neither comments nor parts of URLs."""
    assert config_mentions.in_text(line).paths == set(paths.split())


@pytest.mark.parametrize(
    ("line", "ports"),
    [
        ("listen 80;", {80}),
        ("listen [::]:443 ssl;", {443}),
        ("bind *:8443 ssl crt /etc/x", {8443}),
        ('ARGS="--web.listen-address=0.0.0.0:9090"', {9090}),
        ("port = 5432", {5432}),
        ("HOST = 127.0.0.1:3306", {3306}),
        ("Port 99999", set()),
        ("worker_connections 1024;", set()),
    ],
)
def test_ports_of_a_line(line: str, ports: set[int]) -> None:
    """Numbers are ports where a line is about ports or addresses."""
    assert config_mentions.in_text(line).ports == ports


def test_users_and_addresses_of_lines() -> None:
    """Names are users where a line is about users or groups; addresses are found as such."""
    text = "user www-data;\nSLAPD_USER='openldap'\nOPTIONS=-u bind\nlog mail\nlisten 192.0.2.7:80\n"
    found = config_mentions.in_text(text)
    assert found.users == {"www-data", "openldap", "bind"}
    assert found.addresses == {"192.0.2.7"}
    assert found.has(ObjectId("net", "address", "192.0.2.7/24 on lan0"))
    assert not found.has(ObjectId("net", "address", "192.0.2.70/24 on lan0"))


@pytest.mark.parametrize(
    ("object_id", "is_named"),
    [
        ("files/file//etc/nginx/conf.d/offers.conf", True),
        ("files/file//etc/default/nginx", True),
        ("files/file//etc/apparmor.d/usr.sbin.nginx", True),
        ("files/file//etc/tls/shop/cert.pem", True),
        ("files/file//etc/tls/shop/other.pem", False),
        ("files/file//etc/nginx-extras/x", False),
        ("files/file//etc/hosts", False),
        ("net/listener/tcp [::]:80", True),
        ("net/listener/udp 127.0.0.1:8080", False),
        ("users/account/www-data", True),
        ("users/account/root", False),
        ("mounts/mount//srv", True),
        ("mounts/mount//", True),
        ("mounts/mount//srv/www2", False),
        ("packages/package/nginx", True),
        ("packages/package/nginx-common", True),
        ("packages/package/nginxdoc", False),
        ("systemd/unit/nginx.socket", False),
    ],
)
def test_what_a_unit_names(object_id: str, *, is_named: bool) -> None:
    """Files, ports, users, mounts and packages are named by what they are, not by a beginning."""
    text = (
        "user www-data;\nlisten 80;\nroot /srv/www/shop;\nssl_certificate /etc/tls/shop/cert.pem;"
    )
    found = config_mentions.in_text(text) | config_mentions.of_names("nginx.service")
    assert found.has(ObjectId(*object_id.split("/", 2))) is is_named


def test_programs_that_run_others_name_nothing() -> None:
    """A unit has no part in all that is called python because an interpreter runs it."""
    found = config_mentions.of_names("shop.service", "python3", "sh")
    assert found == config_mentions.of_names("shop.service")


def test_files_are_read_within_bounds(tmp_path: Path) -> None:
    """Follow includes, and read neither pipes, links in a circle, nor more than there may be."""
    etc = tmp_path / "etc/app"
    (etc / "conf.d").mkdir(parents=True)
    (tmp_path / "etc/systemd/system").mkdir(parents=True)
    unit = tmp_path / "etc/systemd/system/app.service"
    unit.write_text("[Service]\nExecStart=/usr/bin/app --config /etc/app/app.conf\nUser=app\n")
    (etc / "app.conf").write_text("include /etc/other/more.conf\ninclude /etc/app/pipe\n")
    (etc / "conf.d/deep.conf").write_text("listen 7001\n")
    (etc / "circle").symlink_to(etc)
    (tmp_path / "etc/other").mkdir()
    (tmp_path / "etc/other/more.conf").write_text("data = /srv/data\n")
    os.mkfifo(etc / "pipe")
    for number in range(500):
        (etc / f"z{number:03}").write_text(f"port {9000 + number}\n" * 10_000)
    fields = {
        "fragment_path": "/etc/systemd/system/app.service",
        "exec": "",
        "requires": ["db.service"],
    }
    look = unit_mentions.find_mentions("app.service", fields, [], tmp_path)
    found: Mentions = asyncio.run(look)
    assert found.units == {"db.service"}
    assert found.users == {"app"}
    assert {"/etc/app/app.conf", "/srv/data"} <= found.paths
    assert 7001 in found.ports
    assert 9499 not in found.ports


def test_a_package_names_what_it_depends_on(tmp_path: Path) -> None:
    """Read the dependencies of the unit's package without their versions and architectures."""
    status = tmp_path / "var/lib/dpkg/status"
    status.parent.mkdir(parents=True)
    status.write_text(
        "Package: app-doc\nDepends: nothing\n\nPackage: app\nVersion: 1\nPre-Depends: init (>= 1)\n"
        "Depends: libc6 (>= 2.34), libssl3:any, mail | postfix (= 2-1+b3), adduser\nX: libx\n\n"
    )
    found = asyncio.run(
        unit_mentions.find_mentions("app.service", {"package": "app"}, [], tmp_path)
    )
    assert found.packages == {"init", "libc6", "libssl3", "mail", "postfix", "adduser"}
    assert found.is_of_need(ObjectId("packages", "package", "libssl3"))
    assert not found.is_of_need(ObjectId("packages", "package", "app-common"))
