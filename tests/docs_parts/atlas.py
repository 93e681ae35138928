"""What a map costs, and how true it is."""

from docs_parts.tables import newest, table

_TEXT = """\
From `benchmarks/results/{file}` (`benchmarks/map.py`), on {machine}: descriptions of packages of
the distribution. Kept are those of the 10 nearest of each object that are among its 10 nearest on
the map.

{rows}"""


def map_figures() -> str:
    """Make the table of the newest report of benchmarks/map.py."""
    found = newest("map")
    assert found, "no report of benchmarks/map.py is committed"
    file, report = found
    rows = (
        (
            f"{level}: {one['objects']:,} objects",
            f"{one['map.html']['s']:.1f} s",
            f"{one['map.html']['MB']} MB",
            f"{one['map.svg']['MB']} MB",
            f"{one['10 nearest kept']:.0%}",
            f"{one['trustworthiness']:.3f}",
        )
        for level, one in report["levels"].items()
    )
    head = ("", "written in", "page", "picture", "of the 10 nearest kept", "trustworthiness")
    return _TEXT.format(file=file, machine=report["machine"], rows=table(head, rows))
