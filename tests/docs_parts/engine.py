"""The figures of `make bench-engine`: each engine by itself, and beside its peers."""

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from docs_parts.tables import RESULTS, table
from opdbus.bench.figures import EngineFigures
from opdbus.bench.report_tables import headline

sys.path.append(str(Path(__file__).parents[2] / "benchmarks/engine"))
from peer_comparison import OURS, REFERENCE, Comparison, PeerReport, from_json

_ENGINE = """\
From {files}; `make bench-engine` makes such a report. Measured on {machine}.

{parts}"""
_NO_ENGINE = "No report of `make bench-engine` is committed yet."
_BATCHES = (1, 8, 32, 64, 256)
_BF16 = "sentence-transformers bf16"


def engine(results: Path = RESULTS) -> str:
    """Make the tables of each level's newest committed report of `op-dbus bench`."""
    reports = _reports(results)
    if not reports:
        return _NO_ENGINE
    engines, comparisons = _newest(reports)
    parts = [
        part
        for level, found in engines.items()
        for figures in found.engines
        if figures.level == level
        for part in _engine_parts(figures)
    ]
    parts += [
        part
        for comparison in _compared_levels(comparisons)
        for part in [
            *(_compared(comparison, texts) for texts in comparison.tokens),
            *_chart(comparison.level, results),
        ]
    ]
    told = [
        (name, found)
        for name, found in reports.items()
        if any(found is used for used in (*engines.values(), *comparisons.values()))
    ]
    files = " and ".join(f"`benchmarks/results/{name}`" for name, _ in told)
    machine = ", then ".join(dict.fromkeys(headline(found) for _, found in told))
    return _ENGINE.format(files=files, machine=machine, parts="\n\n".join(parts))


def peers(results: Path = RESULTS) -> str:
    """Make the README's table: object texts a second, beside the fastest of the others."""
    rows = [_beside(each) for each in _compared_levels(_newest(_reports(results))[1])]
    heads = ("texts a call", *map(str, _BATCHES))
    return table(heads, rows)


def _reports(results: Path) -> dict[str, PeerReport]:
    """Read the reports of all levels and of one (`-engine-high`), the oldest first."""
    paths = sorted(results.glob("*-engine*.json"), key=lambda path: path.stem)
    return {path.name: from_json(path.read_text(encoding="utf-8")) for path in paths}


def _newest(
    reports: Mapping[str, PeerReport],
) -> tuple[dict[str, PeerReport], dict[str, PeerReport]]:
    """Return the newest report of each level's engines, and of its comparison."""
    found = reports.values()
    return (
        {each.level: report for report in found for each in report.engines},
        {each.level: report for report in found for each in report.comparisons},
    )


def _compared_levels(newest: Mapping[str, PeerReport]) -> Iterable[Comparison]:
    return (
        each for level, found in newest.items() for each in found.comparisons if each.level == level
    )


def _beside(found: Comparison) -> tuple[str, ...]:
    """Give rates by texts a call: of op-dbus, of the fastest other, and of _BF16."""
    ours = {OURS, REFERENCE}
    others = [entry.name for entry in found.entries if entry.name not in ours]
    own = found.of(OURS, "object", whole=False)
    rates = [found.of(name, "object", whole=False) for name in others]
    highest = {n: max(each.get(n, 0) for each in rates) for n in own}
    bf16 = found.of(_BF16, "object", whole=False)
    cells = (
        f"**{own[n]:,.0f}** / {highest[n]:,.0f} / {bf16[n]:,.0f}" if n in own else ""
        for n in _BATCHES
    )
    return (found.level, *cells)


def _chart(level: str, results: Path) -> list[str]:
    path = results / f"peers-{level}.svg"
    alt = f"Texts a second by {level}: op-dbus and its peers"
    return [f"![{alt}](../benchmarks/results/{path.name})"] if path.is_file() else []


def _engine_parts(found: EngineFigures) -> list[str]:
    """Make what is known of one model on one provider; nothing where it failed."""
    if not found.rates:
        return []
    title = f"{found.level.capitalize()} ({found.model}), {found.precision} on `{found.provider}`"
    part = table(("", ""), _engine_rows(found))
    return [f"{title}:", part, *_precisions(found)]


def _engine_rows(found: EngineFigures) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for texts, tokens in (found.tokens or {}).items():
        best = max(rate.rate for rate in found.rates if rate.texts == texts)
        rows.append((f"{texts} texts of {tokens:.0f} tokens", f"{best:,.0f} a second"))
    for each in found.latencies:
        name = "a single text" if each.texts == 1 else f"{each.texts} texts"
        where = ", beside a bulk stream" if each.beside_bulk else ""
        points = f"p50 {each.p50:.1f} ms, p95 {each.p95:.1f} ms, p99 {each.p99:.1f} ms"
        rows.append((f"{name} of {each.tokens:.0f} tokens{where}", points))
    for each in found.streams:
        spent = f"{each.microseconds_per_text:,.0f} us a text, {each.rss / 2**20:.0f} MiB"
        rows.append((f"{each.count:,} texts streamed", spent))
    if found.ceiling:
        reached = f"{found.best_gflops:,.0f} of {found.ceiling.gflops:,.0f} GFLOP/s"
        share = f"{reached} ({found.share:.0%})"
        rows.append(("arithmetic, of what bare matrix products reach", share))
    if found.one_cpu:
        rows.append(("on one processor, of the best threads by hand", f"{found.one_cpu.share:.0%}"))
    return rows


def _precisions(found: EngineFigures) -> list[str]:
    """Make the table of what the accuracy gate saw."""
    if not found.gate:
        return []
    heads = ("precision", "cosine to fp32, mean", "least", "change of MRR (95%)", "texts/s", "")
    rows = []
    for grade in found.gate["grades"]:
        provider = grade.get("provider", found.provider)
        place = f"{grade['precision']} on `{provider}`"
        is_chosen = (provider, grade["precision"]) == (found.provider, found.gate["chosen"])
        chosen = "chosen" if is_chosen else grade["refused"]
        cosines = (f"{grade[key]:.4f}" for key in ("mean_cosine", "min_cosine"))
        rate = f"{grade['texts_per_second']:,.0f}"
        rows.append((place, *cosines, _change(grade), rate, chosen))
    return [table(heads, rows)]


def _change(grade: Mapping[str, Any]) -> str:
    """Tell the change against fp32; ranks themselves are of more questions in some rows."""
    if not grade["questions"]:
        return ""
    low, high = (f"{grade[key]:+.4f}" for key in ("change_low", "change_high"))
    return f"{grade['rank_change']:+.4f} ({low} to {high}), {grade['questions']:,} questions"


def _compared(found: Comparison, texts: str) -> str:
    """Make the table of everybody's texts a second, by texts a call and at the best."""
    batches = [n for n in _BATCHES if n in found.of(OURS, texts, whole=False)]
    ratios = {each.contender: each.best for each in found.ratios() if each.texts == texts}
    rows = []
    for entry in found.entries:
        rates = found.of(entry.name, texts, whole=False)
        cells = [f"{rates[batch]:,.0f}" if batch in rates else "-" for batch in batches]
        best = found.best(entry.name, texts)
        ratio = f"{ratios[entry.name]:.2f}x" if entry.name in ratios else ""
        whole = f"{best:,.0f}" if best else "failed"
        rows.append((entry.name, entry.precision, *cells, whole, ratio))
    heads = ("texts/s by texts a call", "precision", *map(str, batches), "best", "op-dbus is")
    title = f"{found.model}, {texts} texts of {found.tokens[texts]:.0f} tokens:"
    return f"{title}\n\n{table(heads, rows)}"
