# ruff: noqa: E501 -- a row of a table each, in all scripts
"""Collect harmless values of this host: names, versions, paths, digests, public keys.

    python tests/secret_corpus/collect.py > tests/data/harmless.tsv

A row is `plugin/kind/field`, a tab, and the value. A bounded sample, drawn the same way each time.
"""

import base64
import hashlib
import random
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

_MAX_VALUE: Final = 300
_MARK = re.compile(r"[\t\r\n]")
Row = tuple[str, Iterable[str], int]


def run(*command: str) -> list[str]:
    """Return the lines that a program prints; none where it is missing."""
    if not shutil.which(command[0]):
        return []
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    return done.stdout.splitlines()


def lines(*patterns: str, root: str = "/") -> Iterator[str]:
    """Yield the lines of all files that match."""
    for pattern in patterns:
        for path in sorted(Path(root).glob(pattern)):
            try:
                yield from path.read_text(errors="strict").splitlines()
            except (OSError, UnicodeDecodeError):
                continue


def column(rows: Iterable[str], number: int) -> list[str]:
    """Return one word of each line."""
    return [words[number] for row in rows if len(words := row.split()) > number]


def after(rows: Iterable[str], *names: str) -> Iterator[str]:
    """Yield what stands after a name at the beginning of a line."""
    for row in rows:
        for name in names:
            if row.startswith(name):
                yield row[len(name) :].strip()


def listed() -> list[str]:
    """Return the list of all packages that the package manager has."""
    return run("apt-cache", "dumpavail")


def public_keys() -> tuple[list[str], list[str]]:
    """Return public keys and fingerprints of new host keys."""
    keys: list[str] = []
    prints: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(30):
            kind = ("ed25519", "rsa", "ecdsa")[number % 3]
            path = f"{folder}/{number}"
            run("ssh-keygen", "-q", "-t", kind, "-N", "", "-C", f"root@host{number}", "-f", path)
            keys += Path(f"{path}.pub").read_text().splitlines()
            for form in ("sha256", "md5"):
                prints += run("ssh-keygen", "-l", "-E", form, "-f", path)
    return keys, prints


def certificates() -> tuple[list[str], list[str], list[str], list[str]]:
    """Return the serials, fingerprints, subjects and public keys of trusted certificates."""
    serials, prints, subjects, keys = [], [], [], []
    for path in sorted(Path("/etc/ssl/certs").glob("*.pem"))[:140]:
        found = run("openssl", "x509", "-in", str(path), "-noout", "-serial", "-fingerprint", "-subject")  # fmt: skip
        serials += after(found, "serial=")
        prints += after(found, "sha1 Fingerprint=", "SHA1 Fingerprint=")
        subjects += after(found, "subject=")
        pem = run("openssl", "x509", "-in", str(path), "-noout", "-pubkey")
        keys.append("".join(pem[1:-1])[:_MAX_VALUE])
        keys.append(" ".join(pem)[:_MAX_VALUE])
    return serials, prints, subjects, keys


def build_ids() -> Iterator[str]:
    """Yield the build ids of programs."""
    for path in sorted(Path("/usr/bin").iterdir())[:400]:
        for row in run("readelf", "-n", str(path)):
            if "Build ID:" in row:
                yield row.split()[-1]


def words(language: str) -> Iterator[str]:
    """Yield the words of translated messages."""
    for path in sorted(Path(f"/usr/share/locale/{language}/LC_MESSAGES").glob("*.mo")):
        text = path.read_bytes().decode(errors="ignore")
        yield from set(re.findall(r"[^\W\d_]{4,}", text[len(text) // 2 :]))


def sources() -> Iterator[Row]:
    """Yield fields, their values on this host, and how many are taken at most."""
    available = listed()
    sums = list(lines("var/lib/dpkg/info/*.md5sums"))
    units = list(lines("usr/lib/systemd/system/*.service", "usr/lib/systemd/system/*.timer"))
    keys, prints = public_keys()
    serials, cert_prints, subjects, cert_keys = certificates()
    files = [str(path) for path in Path("/usr").rglob("*") if path.is_file()]
    yield "packages/package/version", after(available, "Version:"), 2500
    yield "packages/package/name", after(available, "Package:"), 2000
    yield "packages/package/source", after(available, "Source:"), 400
    yield "packages/package/filename", after(available, "Filename:"), 400
    yield "packages/package/sha256", after(available, "SHA256:"), 400
    yield "packages/package/homepage", after(available, "Homepage:"), 500
    yield "packages/package/depends", (d[:120] for d in after(available, "Depends:")), 250
    yield "packages/package/tags", after(available, "Tag:"), 80
    yield "packages/package/build_ids", (i for r in after(available, "Build-Ids:") for i in r.split()), 300  # fmt: skip
    yield "files/file/md5", column(sums, 0), 400
    yield "files/file/path", ("/" + name for name in column(sums, 1)), 1300
    yield "files/file/name", (path.rpartition("/")[2] for path in files), 1800
    yield "files/file/full_path", files, 700
    yield "files/file/digest", (row.split(",")[1] for row in lines("usr/**/*.dist-info/RECORD", "opt/**/*.dist-info/RECORD") if ",sha256=" in row), 400  # fmt: skip
    yield "files/file/build_id", build_ids(), 300
    yield "systemd/unit/line", (row for row in units if "=" in row), 1500
    yield "systemd/unit/name", (path.name for path in Path("/usr/lib/systemd/system").glob("*")), 300  # fmt: skip
    yield (
        "kernel/sysctl/line",
        (r for r in run("sysctl", "-a") if "name" not in r and "version" not in r),
        1000,
    )
    yield "kernel/cpu/line", lines("proc/cpuinfo"), 60
    yield "kernel/module/alias", lines("sys/devices/**/modalias", "lib/modules/*/modules.alias"), 300  # fmt: skip
    yield "devices/device/uevent", lines("sys/devices/**/uevent"), 400
    yield "devices/pci/id", lines("usr/share/misc/pci.ids", "usr/share/hwdata/pci.ids"), 300
    yield "ssh/key/public_key", keys, 30
    yield "ssh/key/line", keys, 30
    yield "ssh/key/fingerprint", prints, 60
    yield "tls/certificate/serial", serials, 140
    yield "tls/certificate/fingerprint", cert_prints, 140
    yield "tls/certificate/subject", subjects, 140
    yield "tls/certificate/public_key", cert_keys, 140
    yield "tls/certificate/path", (str(path) for path in Path("/etc/ssl/certs").iterdir()), 300
    yield "git/commit/revision", run("git", "rev-list", "HEAD"), 300
    yield "git/commit/line", run("git", "log", "--oneline"), 200
    yield "git/tree/line", run("git", "ls-tree", "-r", "HEAD"), 150
    yield "mime/type/name", column(lines("etc/mime.types"), 0), 900
    yield "fonts/font/line", run("fc-list"), 100
    yield "time/zone/name", run("timedatectl", "list-timezones") or (str(p) for p in Path("/usr/share/zoneinfo").rglob("*")), 300  # fmt: skip
    yield "network/service/line", lines("etc/services"), 300
    yield "network/protocol/line", lines("etc/protocols"), 60
    yield "users/account/line", lines("etc/passwd", "etc/group"), 100
    yield "system/config/line", (r for r in lines("etc/*.conf", "etc/*/*.conf", "etc/default/*") if r.strip() and not r.startswith("#")), 900  # fmt: skip
    yield "system/config/comment", (r for r in lines("etc/*.conf", "etc/default/*") if re.match(r"#\s?\w+\s?[=:]", r)), 300  # fmt: skip
    yield "python/package/line", run("python3", "-m", "pip", "list"), 200
    yield "languages/word/german", words("de"), 900
    yield "languages/word/french", words("fr"), 900
    yield "languages/word/polish", words("pl"), 300
    yield "languages/word/finnish", words("fi"), 300
    yield "languages/word/russian", words("ru"), 300
    yield from made()


def made() -> Iterator[Row]:
    """Yield values in the forms of identifiers that no two hosts share."""
    rng = random.Random("identifiers")  # noqa: S311 -- the same values each time

    def hexadecimal(count: int) -> str:
        return rng.randbytes((count + 1) // 2).hex()[:count]

    def uuid() -> str:
        return "-".join(hexadecimal(n) for n in (8, 4, 4, 4, 12))

    def encoded(data: str, kind: str) -> str:
        return base64.b64encode(hashlib.new(kind, data.encode()).digest()).decode()

    def upper(count: int) -> str:
        return "".join(rng.choices("ABCDEFGHJKLMNPQRSTVWXYZ0123456789", k=count))

    many = range(60)
    yield "system/fact/machine_id", (hexadecimal(32) for _ in many), 60
    yield "system/fact/boot_id", (uuid() for _ in many), 60
    yield "mounts/mount/source", (f"/dev/disk/by-uuid/{uuid()}" for _ in many), 60
    yield "mounts/mount/partition", (f"PARTUUID={hexadecimal(8)}-0{n % 4}" for n in many), 60
    yield "devices/disk/uuid", (f"{upper(4)}-{upper(4)}" for _ in many), 60
    yield "devices/disk/serial", (f"S{upper(4)}NX0{upper(7)}" for _ in many), 60
    yield "devices/disk/link", (f"ata-Samsung_SSD_870_EVO_1TB_S{upper(4)}NX0R{upper(6)}" for _ in many), 60  # fmt: skip
    yield "devices/disk/link", (f"nvme-WDC_WDS500G2B0C-00PXH0_{upper(12)}" for _ in many), 60
    yield "devices/disk/link", (f"nvme-eui.{hexadecimal(16)}" for _ in many), 60
    yield "devices/disk/link", (f"wwn-0x5000{hexadecimal(12)}" for _ in many), 60
    yield "devices/disk/link", (f"usb-SanDisk_Ultra_4C5300{hexadecimal(14).upper()}-0:0" for _ in many), 60  # fmt: skip
    yield "devices/disk/model", (f"INTEL SSDSC2K{upper(2)}{n}T8" for n in many), 60
    yield "devices/volume/id", (f"dm-uuid-LVM-{encoded(str(n), 'sha512').replace('+', 'a').replace('/', 'b')[:64]}" for n in many), 60  # fmt: skip
    yield "containers/image/digest", (f"sha256:{hexadecimal(64)}" for _ in many), 60
    yield "containers/image/name", (f"registry.example.com/team/app:v1.{n}@sha256:{hexadecimal(64)}" for n in many), 60  # fmt: skip
    yield "containers/container/id", (hexadecimal(64) for _ in many), 60
    yield "containers/mount/options", (f"lowerdir=/var/lib/docker/overlay2/l/{upper(26)}:/var/lib/docker/overlay2/l/{upper(26)},upperdir=/var/lib/docker/overlay2/{hexadecimal(64)}/diff" for _ in many), 60  # fmt: skip
    yield "containers/pod/name", (f"app-{n}-{hexadecimal(9)}-{upper(5).lower()}" for n in many), 60
    yield "nodes/package/integrity", (f"sha512-{encoded(str(n), 'sha512')}" for n in many), 60
    yield "go/module/sum", (f"h1:{encoded(str(n), 'sha256')}" for n in many), 60
    yield "tls/pin/line", (f'pin-sha256="{encoded(str(n), "sha256")}"; max-age=600' for n in many), 60  # fmt: skip
    yield "nix/path/path", (f"/nix/store/{upper(32).lower()}-glibc-2.{n}" for n in many), 60
    yield "wireguard/peer/public_key", (encoded(str(n), "sha256") for n in many), 60
    yield "wireguard/peer/line", (f"PublicKey = {encoded(str(n), 'sha256')}" for n in many), 60
    yield "net/interface/address", (":".join(hexadecimal(2) for _ in range(6)) for _ in many), 60
    yield "net/address/address", (":".join(hexadecimal(4) for _ in range(8)) for _ in many), 60
    yield "net/dns/key", (f"257 3 13 AwEAA{encoded(str(n), 'sha512')}" for n in many), 30
    yield "net/dns/dkim", (f"v=DKIM1; k=rsa; p=MIGfMA0GCSqGSIb3DQEBAQUAA4GN{encoded(str(n), 'sha512')}" for n in many), 30  # fmt: skip
    yield "systemd/unit/invocation_id", (hexadecimal(32) for _ in many), 60
    yield "systemd/unit/path", (f"/tmp/systemd-private-{hexadecimal(32)}-ntp.service-{upper(3)}x{n}" for n in many), 60  # noqa: S108 # fmt: skip
    yield "cloud/instance/id", (f"i-0{hexadecimal(16)}" for _ in many), 60
    yield "cloud/instance/arn", (f"arn:aws:iam::{rng.randrange(10**11, 10**12)}:role/web-{n}" for n in many), 60  # fmt: skip
    yield "kernel/parameter/line", (f"BOOT_IMAGE=/vmlinuz-6.1.0-{n}-amd64 root=UUID={uuid()} ro rd.luks.uuid=luks-{uuid()} console=ttyS0,115200n8 quiet" for n in many), 60  # fmt: skip
    yield "mounts/mount/line", (f"/dev/mapper/vg{n}-root / ext4 rw,relatime,errors=remount-ro,stripe=256 0 0" for n in many), 60  # fmt: skip
    yield "kernel/version/line", (f"6.1.0-{n}-cloud-amd64 #1 SMP PREEMPT_DYNAMIC Debian 6.1.{n}-1 (2026-01-02)" for n in many), 60  # fmt: skip
    yield "http/answer/etag", (f'W/"{hexadecimal(8)}-{hexadecimal(12)}"' for _ in many), 60
    yield "gpg/key/fingerprint", (hexadecimal(40).upper() for _ in many), 60
    yield "gpg/key/line", (" ".join(hexadecimal(4).upper() for _ in range(10)) for _ in many), 60
    yield "snap/package/revision", (f"{n}.0+git{n}.{hexadecimal(7)}" for n in many), 60


def main() -> None:
    """Print a sample of each field."""
    rng = random.Random("sample")  # noqa: S311 -- the same sample each time
    seen: set[str] = set()
    for field, values, most in sources():
        clean = sorted({_MARK.sub(" ", value).strip()[:_MAX_VALUE] for value in values} - {""})
        for value in sorted(rng.sample(clean, min(most, len(clean)))):
            row = f"{field}\t{value}"
            if row not in seen:
                seen.add(row)
                print(row)


if __name__ == "__main__":
    main()
