"""What a fleet's server takes: measured for simulated hosts, computed for ten thousand."""

from typing import Any, Final

from docs_parts.tables import newest, table

_TEXT: Final = """\
From `benchmarks/results/{file}` (`benchmarks/fleet.py`), on {machine}, shared by all: the server
(`fleet serve`), {hosts} simulated hosts with {objects:,} objects each, all connected by TLS all the
time, a host booted with systemd that has a daemon of level medium and its own sender, and the
questions.

{load}

| milliseconds | at rest, p50 | p99 | under {rate:.0f} changes/s, p50 | p99 |
|---|---|---|---|---|
{questions}

A question's own vector is computed meanwhile by the daemon. `objects for each text` is how often an
equal text is stored once.

### Ten thousand hosts

Computed from these figures, for {wanted_hosts:,} hosts with {wanted_objects:,} objects and
{rows_a_day:,} changes a day each, history of {days} days:

{computed}"""
_HOSTS: Final = 10_000
_OBJECTS: Final = 3_000
_ROWS_A_DAY: Final = 2_000
_DAYS: Final = 90
_SECONDS_A_DAY: Final = 86_400
_MIB: Final = 2**20
_GIB: Final = 2**30


def fleet() -> str:
    """Make the tables of the newest report of benchmarks/fleet.py."""
    found = newest("fleet")
    assert found
    file, report = found
    return _TEXT.format(
        file=file,
        machine=report["machine"],
        hosts=report["hosts"],
        objects=report["objects of each"],
        load=table(("", ""), _measured(report)),
        rate=report["under changes"]["changes/s wanted"],
        questions="\n".join(_questions(report)),
        wanted_hosts=_HOSTS,
        wanted_objects=_OBJECTS,
        rows_a_day=_ROWS_A_DAY,
        days=_DAYS,
        computed=table(("", "", "from"), _computed(report)),
    )


def _measured(report: dict[str, Any]) -> list[tuple[str, str]]:
    load, changes = report["initial load"], report["under changes"]
    stored = report["stored after the load"]
    wait, unit = changes["change to commit"], changes["unit started to stored"]
    return [
        ("initial load", f"{load['seconds']:.0f} s, {load['objects/s']:,} objects a second"),
        ("objects for each stored state", f"{stored['objects for each stored state']}"),
        ("objects for each text", f"{stored['objects for each stored text']}"),
        ("disk after the load", f"{stored['MiB']['database']:.0f} MiB"),
        (
            "changes stored",
            (
                f"{changes['changes/s stored']:.0f} a second; from the change to the commit"
                f" {wait['p50 ms']:.0f} ms (p50), {wait['p99 ms']:.0f} ms (p99)"
            ),
        ),
        (
            "a unit started on the booted host is stored after",
            f"{unit['p50 ms']:,.0f} ms (p50), {unit['p99 ms']:,.0f} ms (p99)",
        ),
        (
            "objects of the booted host in the end",
            f"{report['objects of the booted host, all equal']:,}, equal by digests",
        ),
        ("the server meanwhile", f"{changes['server, processors']} processors"),
        (
            "the server's memory",
            (
                f"{report['memory of the server, MiB']:,.0f} MiB, shared buffers and"
                f" {report['hosts']} connections"
            ),
        ),
        ("start after kill -9", f"{report['start after kill -9, seconds']} s"),
    ]


def _questions(report: dict[str, Any]) -> list[str]:
    both = report["questions at rest"], report["under changes"]["questions"]
    return [
        " | ".join(
            [f"| {name}", *(f"{each[name][key]:.0f}" for each in both for key in _MS), ""]
        ).rstrip()
        for name in both[0]
    ]


_MS: Final = ("p50 ms", "p99 ms")


def _computed(report: dict[str, Any]) -> list[tuple[str, str, str]]:
    stored, after = report["stored after the load"], report["stored after the changes"]
    rows, mib = stored["rows"], stored["MiB"]

    def row_bytes(name: str) -> float:
        return float(mib[name] * _MIB / rows[name])

    def own(name: str) -> float:
        """Return rows of each host alone, as if all other rows were shared by all."""
        return float(rows[name] / report["hosts"] * _OBJECTS / report["objects of each"])

    objects = _HOSTS * _OBJECTS
    changes = _HOSTS * _ROWS_A_DAY * _DAYS
    change_bytes = after["MiB"]["change"] * _MIB / after["rows"]["change"]
    a_second = _HOSTS * _ROWS_A_DAY / _SECONDS_A_DAY
    of_change = (
        report["under changes"]["server, processors"]
        / (report["under changes"]["changes/s stored"])
    )
    gib = {
        "objects": objects * row_bytes("object") / _GIB,
        "states": own("content") * _HOSTS * row_bytes("content") / _GIB,
        "texts": own("text") * _HOSTS * row_bytes("text") / _GIB,
        "vectors": own("text") * _HOSTS * row_bytes("vector") / _GIB,
        "changes": changes * change_bytes / _GIB,
    }
    each = "bytes of a row"
    hours = objects / report["initial load"]["objects/s"] / 3600
    return [
        ("objects", f"{objects / 1e6:.0f} million rows, {gib['objects']:.0f} GiB", each),
        (
            "states, texts, vectors",
            (
                f"{own('content') * _HOSTS / 1e6:.1f} million states,"
                f" {own('text') * _HOSTS / 1e6:.1f} million texts,"
                f" {gib['states'] + gib['texts']:.0f} + {gib['vectors']:.0f} GiB"
            ),
            f"rows of each host, {each}",
        ),
        ("changes", f"{changes / 1e9:.1f} billion rows, {gib['changes']:.0f} GiB", each),
        (
            "writes",
            (
                f"{a_second:.0f} changes a second, {a_second * of_change:.1f} processors with the"
                " questions of this benchmark"
            ),
            "processors for a change",
        ),
        ("initial load", f"{hours:.1f} hours on two such cores", "objects a second"),
    ]
