"""How many texts a second reach a model, and how many the level static embeds."""

from typing import Any

from docs_parts.tables import newest, table

_TEXT = """\
From `benchmarks/results/{file}` (`benchmarks/pipeline.py`), on {machine}, in texts a second. The
model that takes no time shows what everything else allows: {cpu} us of a core for a line, from text
to vector.

{rates}

The tokenizer's ids were the library's for {alike:,} of {texts:,} texts. The vectors of the level
static differ from double precision by {deviation:.0e} at most; a single question takes it
{single:.0f} us, and opening it {load:.0f} ms. A file of {bulk:,} lines takes it {seconds:.1f} s by
`VectorizeBulk`, {rate:,.0f} a second; the daemon had {before:.0f} MiB after the first thousand, and
{after:.0f} MiB after all."""


def pipeline() -> str:
    """Make the table of the newest report of benchmarks/pipeline.py."""
    found = newest("pipeline")
    assert found, "no report of benchmarks/pipeline.py is committed"
    file, report = found
    machine, static, bulk = report["machine"], report["static"], report["bulk"]
    kinds = [report["tokenizer"][kind] for kind in ("object", "short")]
    return _TEXT.format(
        file=file,
        machine=f"{machine['processors']} processors of {machine['processor']}",
        cpu=report["pipeline"]["short"]["cpu_us"],
        rates=table(("", "objects, 56 tokens", "lines, 19 tokens"), _rows(report)),
        alike=sum(kind["alike"] for kind in kinds),
        texts=sum(kind["texts"] for kind in kinds),
        deviation=max(static[kind]["deviation"] for kind in ("object", "short")),
        single=static["single_us"],
        load=static["load_ms"],
        bulk=bulk["texts"],
        seconds=bulk["texts"] / bulk["texts per second"]["bus"],
        rate=bulk["texts per second"]["bus"],
        before=bulk["daemon MiB after 1,000"],
        after=bulk["daemon MiB after all"],
    )


def _rows(report: dict[str, Any]) -> list[list[str]]:
    peer = f"model2vec {report['model2vec']['version']} with the same table, one core"
    ways = {
        "tokenizer, one core": ("tokenizer", "texts_per_second"),
        "its library, one core": ("tokenizer", "library"),
        "all of op-dbus, with a model that takes no time": ("pipeline", "texts_per_second"),
        "level static, one thread": ("static", "one_thread"),
        "two threads": ("static", "two_threads"),
        "two processes": ("static", "two_processes"),
        "one thread, all words new": ("static", "new_words"),
    }
    rows = [
        [name, *(f"{report[part][kind][figure]:,}" for kind in ("object", "short"))]
        for name, (part, figure) in ways.items()
    ]
    return [*rows, [peer, *(f"{report['model2vec'][kind]:,}" for kind in ("object", "short"))]]
