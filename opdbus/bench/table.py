"""A comparison as tables for the terminal: what was measured, and how much faster we are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from opdbus.bench.contenders import OURS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opdbus.bench.report import Comparison, Entry, Report

_MIB: Final = 1 << 20


def headline(report: Report) -> str:
    """Describe the machine in a line."""
    machine = report.machine
    features = " ".join(machine.features) or "no vector extensions known"
    return (
        f"{machine.processors} processors of {machine.processor} ({features}),"
        f" {machine.kernel}, {report.date}"
    )


def tables(comparison: Comparison) -> Iterator[Any]:
    """Yield rich's tables: who took part, then one for each kind of texts."""
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

    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for number, column in enumerate(columns):
        words = number == 0 or column in {"precision", "with"}
        table.add_column(column, justify="left" if words else "right", overflow="fold")
    return table


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)
