"""Tables of a report for the terminal: the engine's figures, and comparisons with peers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rich.table import Table

    from opdbus.bench.figures import EngineFigures
    from opdbus.bench.report import Comparison, Entry, Report

_MIB: Final = 1 << 20
_QUICK: Final = (
    "A quick look: one round over few texts, which another program on this machine can distort."
    " Left out: long streams, the ceilings of other precisions and runtimes, threads on one"
    " processor."
)


def headline(report: Report) -> str:
    """Return the machine and the date in one line."""
    return f"{report.machine.line}, {report.date}"


def everything(report: Report) -> Iterator[Table | str]:
    """Yield rich's tables of all measurements, after the machine's line."""
    yield _escaped(headline(report))
    if report.quick:
        yield _QUICK
    for engine in report.engines:
        yield from _of_engine(engine)
    for comparison in report.comparisons:
        yield from tables(comparison)


def _of_engine(engine: EngineFigures) -> Iterator[Table | str]:
    yield ""
    weights = ", random weights" if engine.random and "random" not in engine.model else ""
    yield _escaped(f"{engine.level}: {engine.model}{weights}, on {engine.provider}")
    if engine.failure:
        yield _escaped(f"failed: {engine.failure}")
    if engine.rates:
        yield _escaped(
            f"{engine.hardware}, {engine.precision}, loaded in {engine.load_seconds:.1f} s,"
            f" {engine.rss / _MIB:.0f} MiB"
        )
        yield from (_rates(engine), _latencies(engine), _streams(engine), _ceilings(engine))
    if engine.one_cpu:
        rates = ", ".join(f"{name}: {rate:,.0f}" for name, rate in engine.one_cpu.rates.items())
        share = f"{engine.one_cpu.share:.0%} of the best set by hand"
        yield f"texts/s on one processor by threads: {rates} ({share})"
    if engine.gate:
        yield _gate(engine.gate)


def _rates(engine: EngineFigures) -> Table:
    batches = list(dict.fromkeys(rate.batch for rate in engine.rates))
    headings = [str(batch) if batch else "all" for batch in batches]
    rows = [
        (texts, f"{tokens:.0f}", *(_rate(engine.rate(texts, batch)) for batch in batches))
        for texts, tokens in (engine.tokens or {}).items()
    ]
    return _table("texts/s by texts a call", ("", "tokens", *headings), rows)


def _latencies(engine: EngineFigures) -> Table:
    rows = []
    for each in engine.latencies:
        name = "single text" if each.texts == 1 else f"{each.texts} texts"
        name += ", beside a bulk stream" if each.beside_bulk else ""
        points = (f"{point:.2f}" for point in (each.p50, each.p95, each.p99))
        rows.append((name, f"{each.tokens:.0f}", str(each.calls), *points))
    return _table("ms a call", ("", "tokens", "calls", "p50", "p95", "p99"), rows)


def _streams(engine: EngineFigures) -> Table:
    rows = [
        (
            f"{each.count:,}",
            f"{each.seconds:.2f}",
            f"{each.microseconds_per_text:.0f}",
            f"{each.rss / _MIB:.0f}",
        )
        for each in engine.streams
    ]
    return _table("streamed", ("texts", "seconds", "us a text", "memory MiB"), rows)


def _ceilings(engine: EngineFigures) -> Table:
    """Return the table of ceilings, with the engine's share of its own."""
    title = f"bare matrix products, GFLOP/s; the engine's best: {engine.best_gflops:,.0f}"
    rows = []
    for each in engine.ceilings:
        share = f"{engine.share:.0%}" if each == engine.ceiling and engine.share else ""
        rows.append((f"{each.provider} {each.precision}", _rate(each.gflops), share))
    return _table(title, ("", "GFLOP/s", "the engine's share"), rows)


def _gate(gate: Mapping[str, Any]) -> Table:
    columns = ("", "cosine to fp32, mean", "least", "retrieval MRR", "texts/s", "")
    rows = []
    for grade in gate["grades"]:
        cosines = (f"{grade[key]:.4f}" for key in ("mean_cosine", "min_cosine"))
        cells = (*cosines, f"{grade['rank']:.4f}", _rate(grade["texts_per_second"]))
        provider, precision = grade["provider"], grade["precision"]
        is_chosen = (provider, precision) == (gate["provider"], gate["chosen"])
        chosen = "chosen" if is_chosen else _escaped(grade["refused"])
        rows.append((f"{precision} on {provider}", *cells, chosen))
    return _table("the accuracy gate", columns, rows)


def tables(comparison: Comparison) -> Iterator[Table]:
    """Yield rich's tables: the contenders, then one for each kind of texts."""
    yield _entries(comparison)
    for texts in comparison.tokens:
        yield _figures(comparison, texts)


def _entries(comparison: Comparison) -> Table:
    columns = ("", "precision", "cosine to fp32, worst", "load s", "memory MiB", "with")
    rows = [(entry.name, *_cells(entry)) for entry in comparison.entries]
    return _table(f"{comparison.level}: {comparison.model}", columns, rows)


def _cells(entry: Entry) -> tuple[str, ...]:
    if entry.failure:
        return ("failed", "", "", "", _escaped(entry.failure))
    cosine = "" if entry.cosine_min is None else f"{entry.cosine_min:.5f}"
    versions = ", ".join(f"{name} {version}" for name, version in entry.versions.items())
    settings = f"{entry.settings}, {entry.threads} threads; {versions}"
    load, rss = f"{entry.load_seconds:.1f}", f"{entry.rss / _MIB:.0f}"
    return (entry.precision, cosine, load, rss, _escaped(settings))


def _figures(comparison: Comparison, texts: str) -> Table:
    """Return the table of texts a second by texts a call, with ratios to op-dbus."""
    batches = sorted(
        {each.batch for each in comparison.figures if each.texts == texts and not each.whole}
    )
    title = f"{texts} texts of {comparison.tokens[texts]:.0f} tokens, texts/s by texts a call"
    rows = []
    ratios = {ratio.contender: ratio for ratio in comparison.ratios() if ratio.texts == texts}
    for entry in comparison.entries:
        rates = comparison.of(entry.name, texts, whole=False)
        cells = [_rate(rates.get(batch, 0.0)) for batch in batches]
        ratio = ratios.get(entry.name)
        cells += [_rate(comparison.best(entry.name, texts)), f"{ratio.best:.2f}x" if ratio else ""]
        rows.append((entry.name, *cells))
    return _table(title, ("", *map(str, batches), "best", "op-dbus is"), rows)


def _rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate else "-"


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    # imported late, because rich takes a third of the allowed start-up time of a command
    from rich import table

    made = table.Table(
        title=f"\n{title}", title_justify="left", box=None, pad_edge=False, min_width=len(title)
    )
    for number, column in enumerate(columns):
        words = number == 0 or column in {"precision", "with"}
        made.add_column(column, justify="left" if words else "right", overflow="fold")
    for row in rows:
        made.add_row(*row)
    return made


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)
