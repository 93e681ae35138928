"""A report as tables for the terminal: the engine's figures, and how much faster we are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from opdbus.bench.contenders import OURS

if TYPE_CHECKING:
    from opdbus.bench.figures import EngineFigures
    from opdbus.bench.report import Comparison, Entry, Report

_MIB: Final = 1 << 20
_QUICK: Final = (
    "A quick look: one round over few texts, which another program on this machine can distort."
    " Left out: long streams, the ceilings of other precisions and runtimes, threads on one"
    " processor."
)


def headline(report: Report) -> str:
    """Describe the machine in a line."""
    return f"{report.machine.line}, {report.date}"


def everything(report: Report) -> Iterator[Any]:
    """Yield rich's tables of all that was measured, and the machine's line before them."""
    yield _escaped(headline(report))
    if report.quick:
        yield _QUICK
    for engine in report.engines:
        yield from _of_engine(engine)
    for comparison in report.comparisons:
        yield from tables(comparison)


def _of_engine(engine: EngineFigures) -> Iterator[Any]:
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
        yield _gate(engine)


def _rates(engine: EngineFigures) -> Any:  # noqa: ANN401 -- a table of rich
    batches = list(dict.fromkeys(rate.batch for rate in engine.rates))
    headings = [str(batch) if batch else "all" for batch in batches]
    table = _table("texts/s by texts a call", ("", "tokens", *headings))
    for texts, tokens in (engine.tokens or {}).items():
        cells = [_rate(engine.rate(texts, batch)) for batch in batches]
        table.add_row(texts, f"{tokens:.0f}", *cells)
    return table


def _latencies(engine: EngineFigures) -> Any:  # noqa: ANN401 -- a table of rich
    table = _table("ms a call", ("", "tokens", "calls", "p50", "p95", "p99"))
    for each in engine.latencies:
        name = "single text" if each.texts == 1 else f"{each.texts} texts"
        name += ", beside a bulk stream" if each.beside_bulk else ""
        points = (f"{point:.2f}" for point in (each.p50, each.p95, each.p99))
        table.add_row(name, f"{each.tokens:.0f}", str(each.calls), *points)
    return table


def _streams(engine: EngineFigures) -> Any:  # noqa: ANN401 -- a table of rich
    table = _table("streamed", ("texts", "seconds", "us a text", "memory MiB"))
    for each in engine.streams:
        cost = f"{each.microseconds_per_text:.0f}"
        table.add_row(f"{each.count:,}", f"{each.seconds:.2f}", cost, f"{each.rss / _MIB:.0f}")
    return table


def _ceilings(engine: EngineFigures) -> Any:  # noqa: ANN401 -- a table of rich
    """Show what bare products reached here, and what the engine makes of it."""
    title = f"bare matrix products, GFLOP/s; the engine's best: {engine.best_gflops:,.0f}"
    table = _table(title, ("", "GFLOP/s", "the engine's share"))
    for each in engine.ceilings:
        share = f"{engine.share:.0%}" if each == engine.ceiling and engine.share else ""
        table.add_row(f"{each.provider} {each.precision}", _rate(each.gflops), share)
    return table


def _gate(engine: EngineFigures) -> Any:  # noqa: ANN401 -- a table of rich
    columns = ("", "cosine to fp32, mean", "least", "retrieval MRR", "texts/s", "")
    table = _table("the accuracy gate", columns)
    for grade in (engine.gate or {})["grades"]:
        cosines = (f"{grade[key]:.4f}" for key in ("mean_cosine", "min_cosine"))
        cells = (*cosines, f"{grade['rank']:.4f}", _rate(grade["texts_per_second"]))
        chosen = "chosen" if grade["precision"] == (engine.gate or {})["chosen"] else ""
        table.add_row(grade["precision"], *cells, chosen or _escaped(grade["refused"]))
    return table


def tables(comparison: Comparison) -> Iterator[Any]:
    """Yield rich's tables: the contenders, then one for each kind of texts."""
    yield _entries(comparison)
    for texts in comparison.tokens:
        yield _figures(comparison, texts)


def _entries(comparison: Comparison) -> Any:  # noqa: ANN401 -- a table of rich
    table = _table(
        f"{comparison.level}: {comparison.model}",
        ("", "precision", "cosine to fp32, worst", "load s", "memory MiB", "with"),
    )
    for entry in comparison.entries:
        table.add_row(entry.name, *_cells(entry))
    return table


def _cells(entry: Entry) -> tuple[str, ...]:
    if entry.failure:
        return ("failed", "", "", "", _escaped(entry.failure))
    cosine = "" if entry.cosine_min is None else f"{entry.cosine_min:.5f}"
    versions = ", ".join(f"{name} {version}" for name, version in entry.versions.items())
    settings = f"{entry.settings}, {entry.threads} threads; {versions}"
    load, rss = f"{entry.load_seconds:.1f}", f"{entry.rss / _MIB:.0f}"
    return (entry.precision, cosine, load, rss, _escaped(settings))


def _figures(comparison: Comparison, texts: str) -> Any:  # noqa: ANN401 -- a table of rich
    """Make the table of texts a second by texts a call, and of how we compare."""
    batches = list(comparison.of(OURS, texts, whole=False)) or _batches(comparison, texts)
    title = f"{texts} texts of {comparison.tokens[texts]:.0f} tokens, texts/s by texts a call"
    table = _table(title, ("", *map(str, batches), "best", "op-dbus is"))
    ratios = {ratio.contender: ratio for ratio in comparison.ratios() if ratio.texts == texts}
    for entry in comparison.entries:
        rates = comparison.of(entry.name, texts, whole=False)
        cells = [_rate(rates.get(batch, 0.0)) for batch in batches]
        ratio = ratios.get(entry.name)
        cells += [_rate(comparison.best(entry.name, texts)), f"{ratio.best:.2f}x" if ratio else ""]
        table.add_row(entry.name, *cells)
    return table


def _batches(comparison: Comparison, texts: str) -> list[int]:
    found = {
        batch
        for entry in comparison.entries
        for batch in comparison.of(entry.name, texts, whole=False)
    }
    return sorted(found)


def _rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate else "-"


def _table(title: str, columns: tuple[str, ...]) -> Any:  # noqa: ANN401 -- a table of rich
    # rich takes a third of the time that a command may start in, so only this one pays it
    from rich.table import Table

    table = Table(
        title=f"\n{title}", title_justify="left", box=None, pad_edge=False, min_width=len(title)
    )
    for number, column in enumerate(columns):
        words = number == 0 or column in {"precision", "with"}
        table.add_column(column, justify="left" if words else "right", overflow="fold")
    return table


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)
