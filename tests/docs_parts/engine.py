"""The figures of `make bench-engine`: each engine by itself, and beside its peers."""

from pathlib import Path

from docs_parts.tables import RESULTS, table
from opdbus.bench import contenders, report
from opdbus.bench.figures import EngineFigures
from opdbus.bench.report import Comparison
from opdbus.bench.table import headline

_ENGINE = """\
From `benchmarks/results/{file}`; `make bench-engine` makes such a report. Measured on {machine}.

{parts}"""
_NO_ENGINE = "No report of `make bench-engine` is committed yet."
_BATCHES = (1, 8, 32, 256)


def engine(results: Path = RESULTS) -> str:
    """Make the tables of the newest committed report of `op-dbus bench`."""
    path = max(results.glob("*-engine.json"), default=None)
    if path is None:
        return _NO_ENGINE
    found = report.from_json(path.read_text(encoding="utf-8"))
    parts = [part for figures in found.engines for part in _engine_parts(figures)]
    parts += [
        part
        for comparison in found.comparisons
        for part in [
            *(_compared(comparison, texts) for texts in comparison.tokens),
            *_chart(comparison.level, results),
        ]
    ]
    return _ENGINE.format(file=path.name, machine=headline(found), parts="\n\n".join(parts))


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
    heads = ("precision", "cosine to fp32, mean", "least", "retrieval MRR", "texts/s", "")
    rows = []
    for grade in found.gate["grades"]:
        chosen = "chosen" if grade["precision"] == found.gate["chosen"] else grade["refused"]
        cosines = (f"{grade[key]:.4f}" for key in ("mean_cosine", "min_cosine"))
        rate = f"{grade['texts_per_second']:,.0f}"
        rows.append((grade["precision"], *cosines, f"{grade['rank']:.4f}", rate, chosen))
    return [table(heads, rows)]


def _compared(found: Comparison, texts: str) -> str:
    """Make the table of everybody's texts a second, by texts a call and at the best."""
    batches = [n for n in _BATCHES if n in found.of(contenders.OURS, texts, whole=False)]
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
