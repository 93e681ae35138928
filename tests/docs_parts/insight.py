"""What topics and odd objects cost, how topics are named, and what is found of what was planted."""

from typing import Any

from docs_parts.tables import newest, table

_TEXT = """\
From `benchmarks/results/{file}` (`benchmarks/insight.py`), on {machine}:
{packages:,} packages of the distribution with static vectors, and the same again with a word more.
Times are those of one core.

{costs}

Of more and fewer topics, at {size:,} packages:

{names}

One of fifty packages got a value in one field that no other had. Of these planted values,
{found_small:.0%} were found at {small} packages, and {found_large:.0%} at {large:,}. Of the
others, {others:.1%} were called odd. On a host of {objects} objects without planted values, {odd}
were."""


def insight() -> str:
    """Make the tables of the newest report of benchmarks/insight.py."""
    found = newest("insight")
    assert found, "no report of benchmarks/insight.py is committed"
    file, report = found
    small, large = report["odd"]
    size = max((size for size, one in report["sizes"].items() if "named" in one), key=int)
    return _TEXT.format(
        file=file,
        machine=report["machine"],
        packages=report["packages"],
        costs=table(
            ("", "topics", "odd", "again", "memory while they are computed"),
            map(_cost, report["sizes"].items()),
        ),
        size=int(size),
        names=table(
            ("topics", "members with a word of the name", "members of the most frequent section"),
            map(_named, report["sizes"][size]["named"].values()),
        ),
        small=int(small),
        large=int(large),
        found_small=report["odd"][small]["planted found"],
        found_large=report["odd"][large]["planted found"],
        others=report["odd"][large]["others called odd"],
        **report["of a host"],
    )


def _cost(row: tuple[str, dict[str, Any]]) -> list[str]:
    size, one = row
    kept = max(one["topics, kept ms"], one["odd, kept ms"])
    return [
        f"{int(size):,} objects",
        *(f"{one[f'{name}, first cpu ms'] / 1000:.2f} s" for name in ("topics", "odd")),
        f"{kept:.1f} ms",
        f"{max(one['topics, peak MiB more'], one['odd, peak MiB more'])} MiB",
    ]


def _named(one: dict[str, Any]) -> list[str]:
    having, pure = (
        one["members with a word of the name"],
        one["members of the most frequent section"],
    )
    return [str(one["topics"]), f"{having:.0%}", f"{pure:.0%}"]
