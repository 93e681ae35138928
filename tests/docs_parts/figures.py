"""The figures of `make bench`: search quality, and the daemon with many objects."""

from typing import Any

from docs_parts.tables import newest, table

_FIGURES = """\
From `benchmarks/results/{file}`; `make bench` makes such a report. Measured on {processors}
processors of {processor} ({features}), Python {python}, {packages}.

Search quality on the check set: {questions} questions about `state.example.json`, more than half of
which share no content word with their object; mean reciprocal rank. The example's descriptions, the
texts and the weight were chosen with this set in view, so new questions will do worse.

| lexical (BM25) | vector (cosine) | hybrid | hybrid, no shared word |
|---|---|---|---|
| {lexical:.3f} | {vector:.3f} | **{hybrid:.3f}** | {unshared:.3f} |

What is embedded decides; by vector alone, on the same questions:

{texts}

With {objects:,} objects and the medium model:

{rows}"""


def figures() -> str:
    """Make the tables of the newest report of `make bench`."""
    file, report = _report()
    quality, scale, machine = report["quality"], report["scale"], report["machine"]
    texts = quality["vector by text"].items()
    return _FIGURES.format(
        file=file,
        processors=machine["processors"],
        processor=machine["processor"],
        features=", ".join(machine["features"]),
        python=machine["python"],
        packages=", ".join(f"{name} {version}" for name, version in machine["packages"].items()),
        questions=quality["questions"],
        lexical=quality["lexical"],
        vector=quality["vector"],
        hybrid=quality["hybrid"],
        unshared=quality["hybrid, no shared word"],
        texts=table(("text", "mean reciprocal rank"), ((n, f"{mrr:.3f}") for n, mrr in texts)),
        objects=scale["objects"],
        rows=table(("", ""), _scale_rows(scale)),
    )


def cost() -> str:
    """Make the table of what op-dbus takes of a host, for the README."""
    (_, report), (_, sizes) = _report(), _sizes()
    scale, objects = report["scale"], f"{report['scale']['objects']:,} objects"
    rows = [
        ("disk", _disk(sizes)),
        ("memory", f"{scale['steady memory MiB']:.0f} MiB with {objects}"),
        ("first start", f"{scale['first start s']:.0f} s for {objects}"),
        ("restart", f"{scale['restart s']} s, nothing is computed again"),
        ("a search", f"{scale['search']['p50 ms']:.0f} ms among {objects}"),
        ("an edit of the state file", f"{scale['one change']['median ms']:.0f} ms until found"),
    ]
    return table(("it costs", f"measured on {report['machine']['processors']} processors"), rows)


_SIZES = """\
From `benchmarks/results/{file}` (`.ci/measure-install`): {total} MiB in all on a {machine} host,
with the extras `{extras}` and Python {python}. The largest parts:

{rows}"""


def _disk(sizes: Any) -> str:
    more = sizes["with openvino MiB"]
    return (
        f"{sizes['MiB']} MiB, the model included ([parts](docs/operating.md#size)); {more} MiB"
        " where OpenVINO is installed too, for processors with AMX or the level high"
    )


def install() -> str:
    """Make the table of what an installation consists of."""
    file, sizes = _sizes()
    rows = ((f"`{name}`", str(size)) for name, size in sizes["parts"].items())
    return _SIZES.format(
        file=file,
        total=sizes["MiB"],
        machine=sizes["machine"],
        extras=sizes["extras"],
        python=sizes["python"],
        rows=table(("part", "MiB"), rows),
    )


def packages() -> str:
    """Make the table of what the packages take and how fast they serve."""
    found = newest("packages")
    assert found, "no result of `python -m system.packaged` is committed"
    file, hosts = found
    rows = [
        (
            f"Debian {host['suite']}",
            " + ".join(f"{size:.0f}" for size in host["packages MB"].values()),
            f"{host['installed MiB']} MiB",
            f"{host['first right answer s']} s",
            f"{host['ready s']:.0f} s",
            f"{host['memory MiB']['now']} MiB, at most {host['memory MiB']['most']}",
        )
        for host in hosts
    ]
    heads = "on", "download, MB", "on disk", "first right answer", "final vectors", "memory"
    parts = ", ".join(f"{name} {size}" for name, size in hosts[0]["parts MiB"].items())
    return (
        f"From `benchmarks/results/{file}` (`system.packaged`), {hosts[0]['machine']}; times"
        f" are from the first start:\n\n{table(heads, rows)}\n\nThe largest parts, in MiB: {parts}."
    )


def _report() -> tuple[str, Any]:
    found = newest()
    assert found, "no report of `make bench` is committed"
    return found


def _sizes() -> tuple[str, Any]:
    found = newest("install")
    assert found, "no result of .ci/measure-install is committed"
    return found


def _scale_rows(scale: dict) -> list[tuple[str, str]]:
    search, change = scale["search"], scale["one change"]
    command = scale["command line"]
    return [
        ("first start, all vectors computed", f"{scale['first start s']} s"),
        ("restart, nothing computed, until ready", f"{scale['restart s']} s"),
        ("`Search` over D-Bus", f"p50 {search['p50 ms']} ms, p99 {search['p99 ms']} ms"),
        ("one object changed in the file, until `Vectorized`", f"{change['median ms']} ms"),
        ("resident memory", f"{scale['steady memory MiB']} MiB"),
        ("SIGTERM until gone", f"{scale['stop s']} s"),
        ("`op-dbus --help`, whole process", f"{command['help median ms']} ms"),
        ("`op-dbus status`, whole process", f"{command['status median ms']} ms"),
    ]
