"""What searches in two stages cost, and what they lose."""

from docs_parts.tables import newest, table

_TEXT = """\
From `benchmarks/results/{file}` (`benchmarks/cascade.py`), on {machine}, with the level {level}:
two stages (`OP_DBUS_CASCADE=always`) beside the exact search, in turns. MRR is the mean reciprocal
rank of the right object; what two stages lose is given with its 95% interval. In the last three
columns no object has a vector of the level before each question.

{rows}

{objects:,} new objects were searched by meaning {first:.1f} s after they were stored, and all had
static vectors after {all:.1f} s."""
_THERE, _MISSING = "two stages", "two stages, vectors missing"


def two_stages() -> str:
    """Make the table of the newest report of benchmarks/cascade.py."""
    found = newest("cascade")
    assert found, "no report of benchmarks/cascade.py is committed"
    file, report = found
    rows = (
        (
            f"{name}: {one['objects']:,} objects, {one['questions']:,} questions",
            f"{one['exact']['MRR'][0]:.4f}",
            "{:+.4f} ({:+.4f} to {:+.4f})".format(*one[_THERE]["MRR - exact"]),
            f"{one['exact']['p50_ms']} ms",
            f"{one[_THERE]['p50_ms']} ms",
            "{:+.4f} ({:+.4f} to {:+.4f})".format(*one[_MISSING]["MRR - exact"]),
            f"{one[_MISSING]['p50_ms']} ms",
            str(one[_MISSING]["computed in time, of 24"]),
        )
        for name, one in report["sets"].items()
    )
    start = report["first start"]
    return _TEXT.format(
        file=file,
        machine=report["machine"],
        level=report["level"],
        objects=start["objects"],
        first=start["first answer by meaning s"],
        all=start["all static vectors s"],
        rows=table(
            (
                "",
                "MRR, exact",
                "two stages",
                "p50, exact",
                "two stages",
                "MRR, vectors missing",
                "p50",
                "computed in time, of 24",
            ),
            rows,
        ),
    )
