"""What hostile clients, the soak and the fuzzer found."""

from collections.abc import Iterable
from pathlib import Path

from docs_parts.tables import RESULTS, newest, table

_HOSTILE = """\
From `benchmarks/results/{file}` (`python -m robustness.hostile`), measured on {machine}: a friend's
searches over {objects:,} objects with the {model} model, while others attack. The ratio leaves out
what the bus daemon itself took for a call meanwhile, which no service behind it can give back.

{rows}"""
_SOURCES = """\
From `benchmarks/results/{file}` (`python -m robustness.sources`), measured on {machine}: the same
while what the daemon observes is hostile: fakes of PID 1 and logind on a system bus of their own, a
status of dpkg that is replaced again and again, by 100 MB, by noise, and by what is no file, and a
network with thousands of addresses that come and go. Memory after an attack is taken once all
objects are as before, or after three minutes. Secrets are planted in all of it, and at last in
{fields} fields that our observers read, in {forms} forms each: the run fails if one is in an
answer, a signal, the log, the database or what commands print.

{rows}"""
_SOAK = """\
From `benchmarks/results/{file}` (`make soak`), measured on {machine}:
{minutes:.0f} minutes of all these attacks and three friends together. The friends lost {lost} of
{count:,} replies, memory grew by {growth:.1%} from {megabytes:.0f} MiB after a warm-up of
{warm:.0f} minutes, and {before} open files were {after} in the end."""
_FUZZ = """\
From `benchmarks/results/{file}` (`make fuzz`), on {machine}:
{calls:,} random calls, of which {reached:.0%} reached a handler, {files:,} state files and
{broken:,} broken messages found {faults} faults."""


_ENDURANCE = """\
From `benchmarks/results/{file}` (`python -m robustness.endurance`), measured on {machine}:
{minutes:g} minutes of requests to switch the provider, at most one a second, and {kills} lost
providers, while the state file is rewritten, programs publish and others search. Resident memory
grew by {growth:.1%}.

{rows}"""
_STEPS = """\
From `benchmarks/results/{file}`, the last run of `make test-all`, on {machine}:

{rows}"""
_PARTS = """\
From `benchmarks/results/{file}` (`python -m robustness.hostile --without each`), measured on
{machine}: what each part of admission buys, as medians of a friend's searches under attack. A note
of the report: {note}.

{rows}"""


def endurance(results: Path = RESULTS) -> str:
    """Make what the newest committed reports of hostile clients, soak and fuzzer say."""
    parts = []
    for name, make in _MAKERS.items():
        if report := newest(name, results):
            parts.append(make(*report))
    return "\n\n".join(parts)


def _hostile(file: str, found: dict) -> str:
    return _HOSTILE.format(file=file, rows=_seen(found), **_only(found, "machine objects model"))


def _sources(file: str, found: dict) -> str:
    secrets = found["secrets"]
    return _SOURCES.format(
        file=file,
        rows=_seen(found),
        fields=secrets["kinds of fields"],
        forms=secrets["forms"],
        **_only(found, "machine"),
    )


def _seen(found: dict) -> str:
    """Make the table of what was seen of attacks."""
    heads = ("attack", "p99 quiet", "attacked", "ratio", "MiB before", "after", "files left")
    rows = []
    for each in found["attacks"]:
        points = (f"{each[when]['p99']:.0f} ms" for when in ("quiet", "attacked"))
        before, _, after = each["memory"]
        left = max(0, each["files"][-1] - each["files"][0])
        memory = (f"{before:.0f}", f"{after:.0f}")
        rows.append((each["name"], *points, f"{each['own_ratio']:.1f}", *memory, str(left)))
    return table(heads, rows)


def _soak(file: str, found: dict) -> str:
    friends, rounds = found["friends"].values(), found["MiB at the end of each round"]
    before, after = found["open files"]
    return _SOAK.format(
        file=file,
        machine=found["machine"],
        minutes=found["minutes"],
        lost=sum(friend["lost"] for friend in friends),
        count=sum(friend["count"] for friend in friends),
        growth=found["growth after warm-up"],
        warm=found["warm-up minutes"],
        megabytes=rounds[-1] / (1 + found["growth after warm-up"]),
        before=before,
        after=after,
    )


def _fuzz(file: str, found: dict) -> str:
    return _FUZZ.format(
        file=file,
        machine=found["machine"],
        calls=found["calls"],
        reached=found["reached a handler"],
        files=found["state files"]["files"],
        broken=found["broken messages"]["messages"],
        faults=len(found["faults"]) or "no",
    )


def _endurance(file: str, found: dict) -> str:
    rows = [
        (kind, f"{calls['answered']:,}", ", ".join(f"{n} {e}" for e, n in calls["errors"].items()))
        for kind, calls in found["calls"].items()
    ]
    return _ENDURANCE.format(
        file=file,
        growth=found["RSS"]["growth"],
        rows=table(("calls", "answered", "errors"), rows),
        **_only(found, "machine minutes kills"),
    )


def _steps(file: str, found: dict) -> str:
    rows = [
        (step["step"], f"{step['seconds']} s", "failed" if step["exit code"] else "passed")
        for step in found["steps"]
    ]
    rows_text = table(("step", "took", ""), rows)
    return _STEPS.format(file=file, machine=found["machine"], rows=rows_text)


def _parts(file: str, found: dict) -> str:
    heads = ("part of admission", "attack", "own p99 with it", "without it", "it is")
    rows = [
        (part["says"], name, *_times(each), "kept" if part.get("kept", True) else "removed")
        for part in found["parts"]
        for name, each in _by_attack(part["attacks"]).items()
    ]
    note = found.get("note", "medians")
    return _PARTS.format(file=file, machine=found["machine"], note=note, rows=table(heads, rows))


def _by_attack(summaries: Iterable[dict]) -> dict[str, dict]:
    """Put what was seen with a part beside what was seen without it."""
    found: dict[str, dict] = {}
    for each in summaries:
        found.setdefault(each["attack"], {}).update(each)
    return found


def _times(each: dict) -> tuple[str, ...]:
    """Give the median of each, and between what the runs were."""
    spans = (each[key]["own_ms"] for key in ("with", "without"))
    return tuple(f"{middle:,.0f} ms ({least:,.0f}-{most:,.0f})" for least, middle, most in spans)


_MAKERS = {
    "hostile": _hostile,
    "sources": _sources,
    "admission": _parts,
    "endurance": _endurance,
    "soak": _soak,
    "fuzz": _fuzz,
    "test-all": _steps,
}


def _only(found: dict, names: str) -> dict:
    return {name: found[name] for name in names.split()}
