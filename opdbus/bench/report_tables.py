"""Tables of a report for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rich.table import Table

    from opdbus.bench.figures import EngineFigures, Report

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
    yield escape_markup(headline(report))
    if report.quick:
        yield _QUICK
    for engine in report.engines:
        yield from _of_engine(engine)


def _of_engine(engine: EngineFigures) -> Iterator[Table | str]:
    yield ""
    weights = ", random weights" if engine.random and "random" not in engine.model else ""
    yield escape_markup(f"{engine.level}: {engine.model}{weights}, on {engine.provider}")
    if engine.failure:
        yield escape_markup(f"failed: {engine.failure}")
    if engine.rates:
        yield escape_markup(
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
        (texts, f"{tokens:.0f}", *(show_rate(engine.rate(texts, batch)) for batch in batches))
        for texts, tokens in (engine.tokens or {}).items()
    ]
    return make_table("texts/s by texts a call", ("", "tokens", *headings), rows)


def _latencies(engine: EngineFigures) -> Table:
    rows = []
    for each in engine.latencies:
        name = "single text" if each.texts == 1 else f"{each.texts} texts"
        name += ", beside a bulk stream" if each.beside_bulk else ""
        points = (f"{point:.2f}" for point in (each.p50, each.p95, each.p99))
        rows.append((name, f"{each.tokens:.0f}", str(each.calls), *points))
    return make_table("ms a call", ("", "tokens", "calls", "p50", "p95", "p99"), rows)


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
    return make_table("streamed", ("texts", "seconds", "us a text", "memory MiB"), rows)


def _ceilings(engine: EngineFigures) -> Table:
    """Return the table of ceilings, with the engine's share of its own."""
    title = f"bare matrix products, GFLOP/s; the engine's best: {engine.best_gflops:,.0f}"
    rows = []
    for each in engine.ceilings:
        share = f"{engine.share:.0%}" if each == engine.ceiling and engine.share else ""
        rows.append((f"{each.provider} {each.precision}", show_rate(each.gflops), share))
    return make_table(title, ("", "GFLOP/s", "the engine's share"), rows)


def _gate(gate: Mapping[str, Any]) -> Table:
    # ranks themselves are of more questions in some rows; the change is on the same ones
    columns = ("", "cosine to fp32, mean", "least", "change of MRR", "questions", "texts/s", "")
    rows = []
    for grade in gate["grades"]:
        cosines = (f"{grade[key]:.4f}" for key in ("mean_cosine", "min_cosine"))
        change = f"{grade['change_low']:+.4f}..{grade['change_high']:+.4f}"
        cells = (*cosines, change, f"{grade['questions']}", show_rate(grade["texts_per_second"]))
        provider, precision = grade["provider"], grade["precision"]
        is_chosen = (provider, precision) == (gate["provider"], gate["chosen"])
        chosen = "chosen" if is_chosen else escape_markup(grade["refused"])
        rows.append((f"{precision} on {provider}", *cells, chosen))
    return make_table("the accuracy gate", columns, rows)


def show_rate(rate: float) -> str:
    """Return a rate as text, a dash for none."""
    return f"{rate:,.0f}" if rate else "-"


def make_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Make one of rich's tables; the first column and those of words are left-justified."""
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


def escape_markup(text: str) -> str:
    """Return text that rich prints unchanged."""
    from rich.markup import escape

    return escape(text)
