"""Exams about whole hosts, most of strangers about hosts of theirs, asked without these hosts.

`OP_DBUS_MODEL_DIR=... python benchmarks/answers/exams.py` prints figures of each exam, half and
level; with `--misses` also which questions of the open half had no right answer first. Of the held
half, which nothing is fitted to, questions are never shown. `--json FILE` writes the figures of
the last level. `--take FOLDER NAME` adds an exam to data/ from a folder with objects.json,
questions_open.json and questions_held.json.

The exam cluster is about a node with databases, message queues and monitoring, the exam office
about the only server of a small company: files, printing, web. Both were populated on a booted
Debian 12, observed at the level medium, and asked 130 questions each, 20 of them about what is not
there. Their authors had not read the program, its vocabulary, or other questions.

The exam agency is about a web agency's server, which is its router and build host too: packages of
Debian that really run, the agency's own units, containers, declared certificates and clients. It
was observed at the level static and asked 160 questions, 20 of them about what is not there, by
somebody who had read how the program is used, not the program. Three entries of the open half got
answers that had been overlooked; then, before anything was changed for it, MRR was 0.669 and 0.674.

The exam quarry is about a site's server with databases, mail, files and its own units: Debian
packages that really run, observed at the level medium in a booted host. An administrator who knew
only the README and what it names wrote 120 questions as colleagues ask them before any was asked,
ten of them about what is not there, and corrected none: MRR was 0.919 and 0.902. Then the glossary
grew by 2,400 rows that were written without this exam; of three versions the one was taken that was
best on the open halves and refused most, which the totals of held halves were seen to agree with.

The exam home is ours: a family's server with mail, music, pictures and sensors, populated and
observed in the same way, without a model. All its questions were written before any of them was
asked; a part of the open half only after how others of it were answered had been looked at.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import structlog
from asking import DATA, EXAMS, HALVES, Answer, answers
from measure import best, is_refused, ranks

# What lies beneath a host that was booted for an exam.
_BENEATH: Final = re.compile(r"((?:lower|upper|work)dir)=[^,\"]*")
# What halves are called, as of HALVES.
NAMES: Final = ("open", "held")
_DIGEST: Final = "sha256"
# Packages that nobody asks for, as on every host that compiles.
_LEFT_OUT: Final = "libdevel"


def take(folder: Path, name: str) -> None:
    """Add an exam to the data: without digests, and without places of the machine it ran on."""
    rows = map(_row, json.loads((folder / "objects.json").read_text()))
    rows = [row for row in rows if row[-1].get("section") != _LEFT_OUT]
    lines = (json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows)
    text = "[\n" + ",\n".join(lines) + "\n]\n"
    (DATA / f"{name}.json").write_text(_BENEATH.sub(r"\1=/beneath", text))
    asked = [
        {**row, "half": half}
        for part, half in zip(NAMES, HALVES, strict=True)
        for row in json.loads((folder / f"questions_{part}.json").read_text())
    ]
    found = json.dumps(asked, ensure_ascii=False, indent=0)
    (DATA / f"{name}_questions.json").write_text(f"{found}\n")


def _row(item: dict[str, Any]) -> list[Any]:
    fields = item.get("properties") or item["observed"]
    kept = {key: value for key, value in fields.items() if key != _DIGEST}
    return [*(item[key] for key in ("origin", "plugin", "kind", "name")), kept]


def figures(found: Sequence[Answer]) -> dict[str, Any]:
    """Return how well some questions were answered."""
    there = [each for each in found if each.kind == "answerable"]
    absent = [each for each in found if each.kind == "absent"]
    refused = {"absent": len(absent), "absent, refused": sum(map(is_refused, absent))}
    return {**ranks(there), "answerable, refused": sum(map(is_refused, there)), **refused}


def line(given: dict[str, Any]) -> str:
    """Return figures in a line."""
    return (
        f"MRR {given['MRR']:.3f} (none refused {given['MRR, none refused']:.3f}),"
        f" in ten {given['recall@10']:.3f},"
        f" absent refused {given['absent, refused']} of {given['absent']},"
        f" answerable refused {given['answerable, refused']} of {given['questions']}"
    )


def show(found: Sequence[Answer]) -> None:
    """Print questions that were not answered as they should, of the open half."""
    for each in found:
        is_right = is_refused(each) if each.kind == "absent" else each.rank == 1
        if not is_right or is_refused(each) != (each.kind == "absent"):
            said = "refused" if is_refused(each) else f"{each.rank or '-'}. {best(each):.3f}"
            print(f"  {each.kind}: {said}: {each.question}: {', '.join(each.names[:3])}")


def main() -> None:
    """Ask the exams, or take one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--levels", nargs="+", default=["medium"])
    parser.add_argument("--exams", nargs="+", default=EXAMS)
    parser.add_argument("--misses", action="store_true", help="show those of the open half")
    parser.add_argument("--take", nargs=2, metavar=("FOLDER", "NAME"))
    parser.add_argument("--scratch", type=Path, help="where vectors are kept for the next time")
    parser.add_argument("--json", type=Path, help="where the figures are written")
    given = parser.parse_args()
    if given.take:
        return take(Path(given.take[0]), given.take[1])
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    with tempfile.TemporaryDirectory() as folder:
        for level in given.levels:
            report: dict[str, Any] = {"date": f"{datetime.now(UTC):%F}", "level": level}
            for exam in given.exams:
                scratch = given.scratch or Path(folder)
                found = asyncio.run(answers(exam, level, scratch, ("hybrid",)))
                for half, name in zip(HALVES, NAMES, strict=True):
                    some = [a for a in found if (a.host, a.half) == (exam, half)]
                    some = [each for each in some if each.kind != "foreign"]
                    report[exam] = {**report.get(exam, {}), name: figures(some)}
                    print(f"{exam}, {name}, {level}: {line(report[exam][name])}", flush=True)
                    if given.misses and name == "open":
                        show(some)
    if given.json:
        given.json.write_text(f"{json.dumps(report, indent=1)}\n")
    return None


if __name__ == "__main__":
    main()
