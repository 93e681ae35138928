"""Odd unit files, and what a booted systemd says of them.

`PYTHONPATH=tests python tests/scripts/make_unit_files.py` boots one on these files and renews the
record, data/unit_files.json, which test_unit_files.py compares with what op-dbus reads.
"""

import json
import random
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

RECORD = (Path(__file__).parents[1] / "data") / "unit_files.json"
# the folders of files here, first one counts, beside where they are on a host
FOLDERS = {
    "etc": "/etc/systemd/system",
    "run": "/run/systemd/system",
    "lib": "/usr/lib/systemd/system",
}
LINK = b"link:"
UNIT = "org.freedesktop.systemd1.Unit"
SERVICE = "org.freedesktop.systemd1.Service"
READ = ("LoadState", "Description", "Documentation", "Wants", "Requires", "After")
# Thousands of calls on a busy machine.
_SECONDS = 600.0
# Dependencies that each service has.
_DEFAULT = "basic.target sysinit.target system.slice systemd-journald.socket".split()
# generated besides those that are written here
_GENERATED = 140
_SERVICE = "[Service]\nExecStart=/bin/true\n"
# Whole files.
_FILES = {
    "plain": "[Unit]\nDescription=A name\nDocumentation=man:a(8)\n" + _SERVICE,
    "comment in continuation": "[Unit]\n# old \\\nDescription=New name\n",
    "comment continued": "[Unit]\nDescription=One \\\n# two \\\n; three\n  four\n",
    "blank line in continuation": "[Unit]\nDescription=One \\\n\n   \ntwo\nDocumentation=man:b\n",
    "continued to the end": "[Unit]\nDescription=One \\\ntwo \\",
    "continued section": "[Un\\\nit]\nDescription=One\n",
    "continued key": "[Unit]\nDescri\\\nption=One\n[Unit]\nDescription\\\n=Two\n",
    "continued into a section": "[Unit]\nDescription=One \\\n[Service]\nUser=x\n",
    "two backslashes": "[Unit]\nDescription=One \\\\\nDocumentation=man:x(1)\n",
    "three backslashes": "[Unit]\nDescription=One \\\\\\\nDocumentation=man:x(1)\n",
    "backslash and blank": "[Unit]\nDescription=One \\ \nDocumentation=man:x(1)\n",
    "backslash inside": "[Unit]\nDescription=a\\b\\n\\x41 \\\nc\\\\d\n",
    "semicolon": "[Unit]\n; Description=No\nDescription=Yes ; still\n",
    "comment after a value": "[Unit]\nDescription=Yes # still\nDocumentation=man:a(1) # man:b(2)\n",
    "indented comment": "[Unit]\n   # Description=No\n\t;x=y\n  Description = Yes  \n",
    "crlf": "[Unit]\r\nDescription=One\r\nDocumentation=man:a(1)\r\n",
    "crlf continued": "[Unit]\r\nDescription=One \\\r\ntwo\r\n",
    "lfcr": "[Unit]\n\rDescription=One\n\r",
    "cr alone": "[Unit]\rDescription=One\rDocumentation=man:a(1)\r",
    "nul": "[Unit]\0Description=One\0two\0",
    "nul within": "[Unit]\nDescription=One\0Documentation=man:a(1)\n",
    "trailing blanks": "[Unit]  \t\nDescription=One  \t \nDocumentation=man:a(1)  \n",
    "leading blanks": "  [Unit]\n\tDescription=One\n   Documentation=man:a(1)\n",
    "blank before the sign": "[Unit]\nDescription  =  One\n",
    "blanks in a section": "[ Unit ]\nDescription=One\n",
    "comment after a section": "[Unit] # here\nDescription=One\n",
    "unclosed section": "[Unit]\nDescription=One\n[Service\nExecStart=/bin/true\n",
    "empty section": "[]\nDescription=One\n",
    "section in lower case": "[unit]\nDescription=One\n",
    "key in lower case": "[Unit]\ndescription=One\nDESCRIPTION=Two\n",
    "no section": "Description=One\n",
    "before a section": "Description=One\n[Unit]\nDocumentation=man:a(1)\n",
    "sections again": "[Unit]\nDescription=One\n[Service]\nUser=x\n[Unit]\nDescription=Two\n",
    "another section": "[Service]\nDescription=One\n[Unit]\n",
    "section of extensions": "[X-Mine]\nDescription=One\n[Unit]\nX-Description=Two\n",
    "unknown section": "[Mine]\nDescription=One\n[Unit]\nDocumentation=man:a(1)\n",
    "brackets in a section": "[Unit]]\nDescription=One\n[[Unit]\nDescription=Two\n",
    "control character in a section": "[Un\x01it]\nDescription=One\n[Unit]\nDescription=Two\n",
    "last of two": "[Unit]\nDescription=One\nDescription=Two\n",
    "reset": "[Unit]\nDescription=One\nDescription=\n",
    "reset and set": "[Unit]\nDescription=One\nDescription=\nDescription=Two\n",
    "lists add up": "[Unit]\nDocumentation=man:a(1) man:b(2)\nDocumentation=man:c(3)\n",
    "list reset": "[Unit]\nDocumentation=man:a(1)\nDocumentation=\nDocumentation=man:c(3)\n",
    "list reset last": "[Unit]\nDocumentation=man:a(1)\nDocumentation=\n",
    "list reset by blanks": "[Unit]\nDocumentation=man:a(1)\nDocumentation=   \n",
    "list twice": "[Unit]\nDocumentation=man:a(1) man:a(1)\n",
    "documents of no kind": "[Unit]\nDocumentation=README man:a ftp://x http://x mailto:a info:\n",
    "documents of all kinds": (
        "[Unit]\nDocumentation=https://a.b/c?d#e file:/x file:x info:a man:b HTTP://x\n"
    ),
    "documents not in ascii": "[Unit]\nDocumentation=https://ü.de man:ö(1) man:a(1)\n",
    "quoted documents": "[Unit]\nDocumentation=\"man:a(1)\" 'https://x/a b' man:'c'(2)\n",
    "unclosed quotes": '[Unit]\nDocumentation=man:a(1) "man:b(2) man:c(3)\nDescription=x\n',
    "escapes in documents": "[Unit]\nDocumentation=man:a\\x41 man:b\\\\c man:d\\ e\n",
    "quotes in a description": "[Unit]\nDescription=\"One 'two'\"\n",
    "equal signs": "[Unit]\nDescription==One=two\n",
    "no equal sign": "[Unit]\nDescription One\nDocumentation: man:a(1)\n",
    "no key": "[Unit]\n=One\n = two\nDescription=x\n",
    "colon": "[Unit]\nDescription: One\n",
    "bom": "\ufeff[Unit]\nDescription=One\n",
    "bom on a later line": "[Unit]\n\ufeffDescription=One\n\ufeffDescription=Two\n",
    "bom and comment": "\ufeff# a comment\n[Unit]\nDescription=One\n",
    "no final newline": "[Unit]\nDescription=One",
    "tabs inside": "[Unit]\nDescription=One\ttwo\n",
    "vertical tab and form feed": "[Unit]\nDescription=One\vtwo\fthree\n",
    "separators of unicode": "[Unit]\nDescription=One\x85two\u2028three\u2029four\x1cfive\n",
    "no-break space": "[Unit]\nDescription=\u00a0One\u00a0\nDocumentation=man:a(1)\u00a0man:b(1)\n",
    "control characters": "[Unit]\nDescription=One\x01\x1b[31mtwo\x7f\n",
    "not a character": "[Unit]\nDescription=One\ufdd0\nDocumentation=man:a(1)\n",
    "no character at the end": "[Unit]\nDescription=One\uffff\nDocumentation=man:a(1)\n",
    "emoji": "[Unit]\nDescription=One \U0001f600 two\n",
    "direction": "[Unit]\nDescription=One \u202etwo\n",
    "long value": f"[Unit]\nDescription={'x' * 5000}\n",
    "long comment": f"[Unit]\n# {'x' * 200_000}\nDescription=One\n",
    "longest line": f"[Unit]\n# {'x' * ((1 << 20) - 3)}\nDescription=One\n",
    "too long a line": f"[Unit]\nDescription=One\n# {'x' * (1 << 20)}\nDescription=Two\n",
    "far down": "[Unit]\n" + "# a line\n" * 10_000 + "Description=One\n",
    "names": "[Unit]\nDescription=%n|%N|%p|%P|%i|%I|%j|%J|%f\n",
    "folders": "[Unit]\nDescription=%C|%E|%L|%S|%t|%T|%V|%h|%u|%U|%g|%G\n",
    "path": "[Unit]\nDescription=%y|%Y\n",
    "percent": "[Unit]\nDescription=100%% of %%n|%!|% x|%\n",
    "percent at the end": "[Unit]\nDescription=100%\n",
    "percent and blank": "[Unit]\nDescription=100% sure\n",
    "percent and sign": "[Unit]\nDescription=100%! %- %= %1\n",
    "percent and letter": "[Unit]\nDescription=100 %z\n",
    "percent and letter of documents": "[Unit]\nDocumentation=man:a%z https://b/%20c/%3A man:b\n",
    "percent of credentials": "[Unit]\nDescription=One\nDescription=%d\n",
    "quotes in a section": "[Unit]\nDescription=One\n[X-'a']\n[Unit]\nDescription=Two\n",
    "specifiers of documents": "[Unit]\nDocumentation=man:%p(8) https://x/%%20 man:%N\n",
    "user": "[Unit]\nDescription=One\n[Service]\nUser=bin\nExecStart=/bin/true %n\n",
    "two commands": (
        "[Unit]\nDescription=One\n[Service]\nType=oneshot\nExecStart=/bin/true a \\\n# no\n'b c'\n"
        "ExecStart=/bin/false\n"
    ),
    "commands reset": (
        "[Unit]\nDescription=One\n[Service]\nExecStart=/bin/false\nExecStart=\nExecStart=-/bin/true\n"
    ),
    "dependencies": "[Unit]\nWants=a.service b.service\nWants=\nAfter=a.service \\\n b.target\n",
    "dependency names": "[Unit]\nWants=%p-x.service bad/name x\nRequires=d.service\n",
    "empty": "",
    "comments only": "# nothing\n\n; here\n",
    "blank": "\n\n",
    "control groups": "[Unit]\nDescription=%c|%r|%R\n",
}
_NOT_TEXT = {
    "latin 1": b"[Unit]\nDescription=caf\xe9\nDocumentation=man:a(1)\n",
    "latin 1 in a comment": b"[Unit]\n# caf\xe9\nDescription=One\n",
    "utf-16": "[Unit]\nDescription=One\n".encode("utf-16"),
    "surrogate": b"[Unit]\nDescription=One\xed\xa0\x80\nDocumentation=man:a(1)\n",
    "overlong": b"[Unit]\nDescription=One\xc0\xaf\nDocumentation=man:a(1)\n",
    "latin 1 in a key": b"[Unit]\nDescripti\xf6n=One\nDescription=Two\n",
}
# Names of units other than `NUMBER.service`: with their files by folder and path.
_NAMES = {
    "tt-a@.service": [
        "tt-a@b-c.service",
        "tt-a@.service",
        "tt-a@x\\x2dy.service",
        "tt-a@z@z.service",
    ],
    "pp-q-r.service": ["pp-q-r.service"],
    "pp\\x2dq-r.service": ["pp\\x2dq-r.service"],
    "ee@.service": ["ee@bad\\x2.service", "ee@.service"],
}
_DROPPED = "[Unit]\nDescription=%s\nDocumentation=man:%s(1)\n"
_TREES: dict[str, tuple[str, dict[str, str]]] = {
    "drop-in": ("d1.service", {"lib/d1.service": "main", "etc/d1.service.d/a.conf": "dropped"}),
    "drop-ins in order": (
        "d2.service",
        {
            "etc/d2.service": "main", "etc/d2.service.d/20.conf": "e20",
            "lib/d2.service.d/30.conf": "l30", "run/d2.service.d/10.conf": "r10",
        },
    ),
    "drop-in replaced": (
        "d3.service",
        {"lib/d3.service": "main", "lib/d3.service.d/a.conf": "l", "etc/d3.service.d/a.conf": "e"},
    ),
    "drop-in masked": (
        "d4.service",
        {"lib/d4.service": "main", "lib/d4.service.d/a.conf": "l", "etc/d4.service.d/a.conf": ""},
    ),
    "drop-in of another ending": (
        "d5.service", {"lib/d5.service": "main", "lib/d5.service.d/a.txt": "no"}
    ),
    "drop-in of a prefix": (
        "d6-a-b.service",
        {
            "lib/d6-a-b.service": "main", "lib/d6-.service.d/a.conf": "short",
            "lib/d6-a-.service.d/a.conf": "longer", "lib/d6-.service.d/b.conf": "b",
        },
    ),
    "drop-in of a prefix in an earlier folder": (
        "d7-a.service",
        {
            "lib/d7-a.service": "main", "etc/d7-.service.d/a.conf": "etc",
            "lib/d7-a.service.d/a.conf": "lib",
        },
    ),
    "drop-in of a template": (
        "d8@x.service",
        {
            "lib/d8@.service": "main %i", "lib/d8@.service.d/a.conf": "template %i",
            "lib/d8@.service.d/b.conf": "b", "lib/d8@x.service.d/b.conf": "instance %i",
        },
    ),
    "drop-in of a prefix of a template": (
        "d9-a@x.service",
        {"lib/d9-a@.service": "main", "lib/d9-@.service.d/a.conf": "prefix %i"},
    ),
    "earlier folder": ("f1.service", {"etc/f1.service": "etc", "lib/f1.service": "lib"}),
    "run before lib": ("f2.service", {"run/f2.service": "run", "lib/f2.service": "lib"}),
    "instance before template": (
        "f3@x.service", {"etc/f3@.service": "template", "lib/f3@x.service": "instance"}
    ),
    "drop-in without a unit": ("f4.service", {"etc/f4.service.d/a.conf": "alone"}),
    "sections of drop-ins": (
        "f5.service", {"lib/f5.service": "main", "etc/f5.service.d/a.conf": "raw:Description=No\n"}
    ),
    "reset by a drop-in": (
        "f6.service",
        {"lib/f6.service": "main", "etc/f6.service.d/a.conf": "raw:[Unit]\nDocumentation=\n"},
    ),
    "drop-in that is broken": (
        "f7.service",
        {
            "lib/f7.service": "main", "etc/f7.service.d/a.conf": "raw:[Unit\nDescription=No\n",
            "etc/f7.service.d/b.conf": "b",
        },
    ),
    "earlier folder says nothing": (
        "f8.service", {"etc/f8.service": f"raw:{_SERVICE}", "lib/f8.service": "lib"}
    ),
    "drop-in of an alias": (
        "i1.service",
        {
            "lib/i1.service": "main", "lib/i1-other.service": "link:i1.service",
            "etc/i1-other.service.d/b.conf": "alias", "etc/i1-.service.d/c.conf": "prefix",
        },
    ),
    "drop-in of an alias and of the name": (
        "i2.service",
        {
            "lib/i2.service": "main", "etc/other-i2.service": "link:/lib/systemd/system/i2.service",
            "etc/other-i2.service.d/a.conf": "alias", "lib/i2.service.d/a.conf": "own",
            "etc/other-.service.d/d.conf": "prefix %p", "lib/service.d/none.txt": "no",
        },
    ),
    "drop-in of an alias of an alias": (
        "i3.service",
        {
            "lib/i3.service": "main", "lib/i3b.service": "link:i3.service",
            "etc/i3c.service": "link:/lib/systemd/system/i3b.service",
            "run/i3c.service.d/a.conf": "far",
        },
    ),
    "drop-in of an alias of a template": (
        "i4@x.service",
        {
            "lib/i4@.service": "main %i", "lib/i5@.service": "link:i4@.service",
            "etc/i5@.service.d/a.conf": "template %p %i", "etc/i5@x.service.d/b.conf": "instance",
        },
    ),
    "drop-in of an alias of an instance": (
        "i6@x.service",
        {
            "lib/i6@.service": "main %i", "etc/i7.service": "link:/lib/systemd/system/i6@x.service",
            "etc/i7.service.d/a.conf": "alias %p %i",
        },
    ),
    "drop-in of an alias that is hidden": (
        "i8.service",
        {
            "lib/i8.service": "main", "lib/i9.service": "link:i8.service",
            "etc/i9.service": "another", "etc/i9.service.d/a.conf": "not ours",
        },
    ),
    "drop-in of a masked alias": (
        "j1.service",
        {
            "lib/j1.service": "main", "lib/j2.service": "link:j1.service",
            "etc/j2.service": "link:/dev/null", "etc/j2.service.d/a.conf": "not ours",
        },
    ),
    "masked by an empty file": ("f9.service", {"etc/f9.service": "raw:", "lib/f9.service": "lib"}),
}  # fmt: skip
# What generated files consist of.
_TOKENS = (
    *("[Unit]\n", "[Unit]\n", "[Service]\n", "[Unit", "[ Unit ]\n", "\n", "\n", "\\\n", "\\", " "),
    *("Description=", "Description =", "Documentation=", "Wants=", "User=", "=", "#", ";", "\t"),
    *("one", "two", "man:a(1)", "https://b/", "%p", "%i", "%%", "%", "'", '"', "\r\n", "\r", "\0"),
    *("\n# c \\\n", "\n; d\n", "\nDescription=", "\nDocumentation=", "ü", "\x0b", "\x85", "\ufeff"),
)


class Case(NamedTuple):
    """A unit and its files, by folder and name."""

    about: str
    unit: str
    files: dict[str, bytes]


def cases() -> Iterator[Case]:
    """Yield all cases, the same in each run."""
    for number, (about, text) in enumerate(_FILES.items()):
        unit = f"c{number:03}.service"
        yield Case(about, unit, {f"etc/{unit}": text.encode()})
    for number, (about, content) in enumerate(_NOT_TEXT.items()):
        unit = f"n{number:03}.service"
        yield Case(about, unit, {f"etc/{unit}": content})
    text = "[Unit]\nDescription=%n|%N|%p|%P|%i|%j|%J\nDocumentation=man:%p(8) https://x/%i\n"
    for file, units in _NAMES.items():
        for unit in units:
            yield Case(f"names {unit}", unit, {f"etc/{file}": text.encode()})
    unescaped = b"[Unit]\nDescription=One\nDescription=%I|%f\n"
    for unit in ("uu@a-b.service", "uu@a\\x2db.service", "uu@bad\\x2.service", "uu@-.service"):
        yield Case(f"unescaped {unit}", unit, {"etc/uu@.service": unescaped})
    for about, (unit, files) in _TREES.items():
        yield Case(about, unit, {path: _tree_file(text) for path, text in files.items()})
    generator = random.Random(34)  # noqa: S311 -- the same files each time
    for number in range(_GENERATED):
        unit = f"g{number:03}.service"
        tokens = [generator.choice(_TOKENS) for _ in range(generator.randrange(6, 40))]
        yield Case("generated", unit, {f"etc/{unit}": "".join(["[Unit]\n", *tokens]).encode()})


def _tree_file(text: str) -> bytes:
    if text.startswith("link:"):
        return text.encode()
    if text.startswith("raw:"):
        return text.removeprefix("raw:").encode()
    word = text.split(maxsplit=1)[0] if text else ""
    return (_DROPPED % (text, word)).encode() if text else b""


def write(folder: Path, files: dict[str, bytes]) -> None:
    """Write the files of a case below a folder that stands for all folders of units."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content.startswith(LINK):
            path.symlink_to(content.removeprefix(LINK).decode())
        else:
            path.write_bytes(content)


def _object(unit: str) -> str:
    escaped = "".join(c if c.isascii() and c.isalnum() else f"_{ord(c):02x}" for c in unit)
    if escaped[:1].isdigit():
        escaped = f"_{ord(escaped[0]):02x}{escaped[1:]}"
    return f"/org/freedesktop/systemd1/unit/{escaped}"


def record() -> dict[str, Any]:
    """Boot a systemd with all files, and return what it says of the units."""
    from system.booting import booted

    found: dict[str, Any] = {}
    with booted("dbus-broker") as host:
        every = list(cases())
        for case in every:
            for folder, there in FOLDERS.items():
                files = {n: c for n, c in case.files.items() if n.startswith(f"{folder}/")}
                write(host.path(there), {n.partition("/")[2]: c for n, c in files.items()})
        host.ask("systemctl", "daemon-reload")
        calls = ["busctl --json=short call org.freedesktop.systemd1"]
        manager = "/org/freedesktop/systemd1 org.freedesktop.systemd1.Manager LoadUnit s"
        get = "org.freedesktop.DBus.Properties Get ss"
        script = []
        for case in every:
            script.append(f"{calls[0]} {manager} {shlex.quote(case.unit)} >/dev/null 2>&1")
            for face, names in ((UNIT, READ), (SERVICE, ("User", "ExecStart"))):
                script += [
                    f"{calls[0]} {shlex.quote(_object(case.unit))} {get} {face} {name}"
                    " 2>/dev/null || echo null"
                    for name in names
                ]
        text = host.run("sh", stdin="\n".join(script), seconds=_SECONDS).stdout.strip()
        version = host.ask("systemctl", "--version").split("\n")[0]
    lines = map(json.loads, text.split("\n"))
    values = (line and line["data"][0]["data"] for line in lines)
    for case in every:
        state, description, documentation, wants, requires, after, user, commands = (
            next(values) for _ in range(len(READ) + 2)
        )
        says: dict[str, Any] = {"state": state, "description": description}
        says |= {"documentation": documentation, "wants": sorted(wants or [])}
        says |= {"requires": sorted(requires or []), "after": sorted(after or []), "user": user}
        says["commands"] = [command[1] for command in commands or []]
        usual = {"requires": ["sysinit.target", "system.slice"]}
        usual["after"] = [
            "basic.target",
            "sysinit.target",
            "system.slice",
            "systemd-journald.socket",
        ]
        for key, names in usual.items():
            says[key] = [name for name in says[key] if name not in names]
        found[case.unit] = {key: value for key, value in says.items() if value}
    return {"systemd": version, "units": found}


if __name__ == "__main__":
    recorded = record()
    lines = ",\n".join(
        f"{json.dumps(unit)}: {json.dumps(says, separators=(',', ':'))}"
        for unit, says in recorded["units"].items()
    )
    RECORD.write_text(
        f'{{"systemd": {json.dumps(recorded["systemd"])}, "units": {{\n{lines}\n}}}}\n'
    )
    sys.stdout.write(f"{len(recorded['units'])} units, {recorded['systemd']}\n")
