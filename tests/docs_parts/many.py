"""What ten thousand to a million objects cost, and the same vectors in other stores."""

from typing import Any

from docs_parts.tables import newest, table

_TEXT = """\
From `benchmarks/results/{file}` (`benchmarks/million.py`), on {machine}, with the
level {level}: objects published over D-Bus, whose vectors are mixed of real ones. Times are of one
caller over D-Bus; memory is private memory above that of a daemon without objects.

{rows}

![What more objects cost](../benchmarks/results/growth.svg)

A first start with a state file, from `benchmarks/results/{first_file}`:

{first}

A state file of {objects:,} small objects ({mib:.0f} MiB), read at a first start, and again when
all of them had changed, from `benchmarks/results/{reload_file}`. A ping is the simplest call that
there is, made all the time meanwhile:

{reload}

The same vectors in other stores, from `benchmarks/results/{beside_file}` (`benchmarks/beside.py`),
asked in turns: {vectors:,} of {dimension} numbers. Recall is that of the ten with the highest exact
products.

{beside}"""
_WAYS = {"Search": "search", "Search with a condition": "search, where"}
_MS = ("p50 ms", "p99 ms")


def many() -> str:
    """Make the tables of the newest reports of benchmarks/million.py and beside.py."""
    (file, report), (first_file, first), (reload_file, reload), (beside_file, beside) = map(
        _newest, _KINDS
    )
    sizes = report["sizes"]
    heads = ("", *(f"{one['fill']['objects']:,} objects" for one in sizes))
    rows = [(name, *map(read, sizes)) for name, read in _ROWS.items()]
    return _TEXT.format(
        file=file,
        machine=report["machine"],
        level=sizes[-1]["fill"]["level"],
        rows=table(heads, rows),
        first_file=first_file,
        first=table(
            ("", "first answer", "all stored", "all static vectors", "computed"),
            map(_first, first["starts"]),
        ),
        objects=reload["objects"],
        mib=reload["MiB"],
        reload_file=reload_file,
        reload=table(
            ("", "all stored", "all static vectors", "ping, p50", "p99", "longest"),
            _reloaded(reload),
        ),
        beside_file=beside_file,
        vectors=beside["vectors"],
        dimension=beside["dimension"],
        beside=table(
            ("", *_BESIDE, "recall@10", "with a condition", "memory", "files"),
            ((name, *_held(one)) for name, one in beside["ways"].items()),
        ),
    )


_KINDS = ("million", "first", "reload", "beside")
_BESIDE = ("p50", "p99")


def _newest(kind: str) -> tuple[str, Any]:
    found = newest(kind)
    assert found, f"no report of the kind {kind} is committed"
    return found


def _pair(one: Any) -> str:
    return " / ".join(f"{one[name]:.0f}" for name in _MS)


_ROWS = {
    **{
        f"{name}, p50 / p99 ms": lambda one, way=way: _pair(one[way]) for name, way in _WAYS.items()
    },
    **{
        f"{name}, in 2 GiB": lambda one, way=way: _pair(one["under 2G"][way])
        for name, way in _WAYS.items()
    },
    "status, ms": lambda one: f"{one['status']['ms']:.2f}",
    "one change until it is found, ms": lambda one: f"{one['one change ms']:.0f}",
    "restart until ready, s": lambda one: f"{one['restart']['ready s']:.1f}",
    "memory, MiB": lambda one: f"{one['more private MiB']:.0f}",
    "in 2 GiB, with the page cache, MiB": lambda one: (
        f"{one['under 2G']['peak with page cache MiB']:,.0f}"
    ),
}


def _first(one: Any) -> list[str]:
    times = (one[name]["s"] for name in ("first answer", "all stored", "all static vectors"))
    computed = one.get("settled, computed s", one["all static vectors"]["computed s"])
    name = f"{one['objects']:,} objects, level {one['level']}"
    return [name, *(f"{each:.1f} s" for each in times), f"{computed:.0f} s"]


def _reloaded(report: Any) -> list[list[str]]:
    first, changed = report["pings from serving on"], report["all changed"]
    starts = (report[name]["s"] for name in ("all stored", "all static vectors"))
    reloads = (changed[name] for name in ("stored s", "all vectors s"))
    pings = ("ping p50 ms", "ping p99 ms", "ping p100 ms")
    return [
        [name, *(f"{each:.0f} s" for each in seconds), *(f"{waits[one]:.1f} ms" for one in pings)]
        for name, seconds, waits in (
            ("first start", starts, first),
            ("all changed", reloads, changed),
        )
    ]


def _held(one: Any) -> list[str]:
    every, some = one["all"], one["a condition"]
    return [
        *(f"{every[name]:.0f} ms" for name in _MS),
        f"{every['recall@10']:.3f}",
        f"{some['p50 ms']:.0f} ms, {some['recall@10']:.3f}",
        f"{one['private MiB']:,.0f} MiB",
        f"{one['files MiB']:,.0f} MiB",
    ]
