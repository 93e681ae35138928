"""Chart of a comparison: bars of the best rates, lines over the batch size."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from matplotlib import rc_context
from matplotlib.figure import Figure as Canvas
from peer_processes import OURS

if TYPE_CHECKING:
    from peer_comparison import Comparison, PeerReport

# Colours of light pages, and the dark ones that replace them by the reader's preference in an SVG.
PAPER: Final = "#ffffff"
INK: Final = "#1f2328"
FAINT: Final = "#6e7781"
GRID: Final = "#d8dee4"
OURS_COLOUR: Final = "#0969da"
PEER_COLOUR: Final = "#afb8c1"
DARK: Final = {
    PAPER: "#0d1117",
    INK: "#e6edf3",
    FAINT: "#9198a1",
    GRID: "#30363d",
    OURS_COLOUR: "#4493f8",
    PEER_COLOUR: "#57606a",
}
# In inches: the picture's width, the height of one kind of texts, and the margins above and below.
_WIDTH: Final = 12.0
_ROW: Final = 3.4
_TOP: Final = 1.15
_BOTTOM: Final = 0.75
# Least distance of two labels as a share of the axis' height, and number of moves to reach it.
_GAP: Final = 0.07
_MOVES: Final = 500


def draw(report: PeerReport, level: str, folder: Path) -> tuple[Path, Path]:
    """Draw the comparison of a level into `folder` as `peers-LEVEL.svg` and `.png`.

    The same report gives the same SVG.
    """
    [comparison] = [found for found in report.comparisons if found.level == level]
    svg, png = folder / f"peers-{level}.svg", folder / f"peers-{level}.png"
    with rc_context({"svg.hashsalt": "op-dbus", "font.size": 9.5, "text.color": INK}):
        figure = _figure(comparison, report.headline)
        figure.savefig(png, dpi=144)
        figure.savefig(svg, metadata={"Date": None})
    svg.write_text(with_dark(svg.read_text(encoding="utf-8")), encoding="utf-8")
    return svg, png


def with_dark(svg: str) -> str:
    """Add the colours for dark pages; programs without CSS show the light ones."""
    rules = "".join(
        f'[style*="{part}: {light}"]{{{part}:{dark}!important}}'
        for light, dark in DARK.items()
        for part in ("fill", "stroke")
    )
    style = f"<style>@media (prefers-color-scheme: dark){{{rules}}}</style>"
    head, tag, rest = svg.partition("<defs>")
    return head + style + tag + rest


def _figure(comparison: Comparison, machine: str) -> Any:  # noqa: ANN401 -- untyped
    height = _ROW * len(comparison.tokens) + _TOP + _BOTTOM
    figure = Canvas(figsize=(_WIDTH, height), facecolor=PAPER)
    figure.subplots_adjust(
        left=0.215, right=0.79, top=1 - _TOP / height, bottom=_BOTTOM / height, hspace=0.3
    )
    axes = figure.subplots(len(comparison.tokens), 2, squeeze=False)
    for row, texts in zip(axes, comparison.tokens, strict=True):
        _bars(row[0], comparison, texts)
        _lines(row[1], comparison, texts)
    _write(figure, height, comparison, machine)
    return figure


def _write(figure: Any, height: float, comparison: Comparison, machine: str) -> None:  # noqa: ANN401
    """Write the title above, and the machine below."""
    title = f"Texts embedded a second by {comparison.model}, tokenizing included"
    figure.text(0.015, 1 - 0.2 / height, title, size=13, weight="bold", va="top")
    note = "\u00d7: how many times as fast op-dbus is at its best"
    figure.text(0.015, 1 - 0.5 / height, note, color=FAINT, va="top")
    figure.text(0.015, 0.15 / height, machine, size=8, color=FAINT)


def _bars(axes: Any, comparison: Comparison, texts: str) -> None:  # noqa: ANN401 -- untyped
    """Draw the best rate of each contender, the fastest on top; failed ones get no bar."""
    best = {entry.name: comparison.best(entry.name, texts) for entry in comparison.entries}
    names = sorted(best, key=best.__getitem__)
    rates = [best[name] for name in names]
    bars = axes.barh(names, rates, height=0.72, color=[_colour(name) for name in names])
    ratios = {ratio.contender: ratio for ratio in comparison.ratios() if ratio.texts == texts}
    labels = []
    for name, rate in zip(names, rates, strict=True):
        times = f"   \u00d7{ratios[name].best:.1f}" if name in ratios else ""
        labels.append(f"{rate:,.0f}{times}" if rate else "failed")
    axes.bar_label(bars, labels, padding=4, color=INK)
    axes.set_title(f"{texts} texts, {comparison.tokens[texts]:.0f} tokens: the best", loc="left")
    axes.set_xlim(0, max(rates, default=0.0) * 1.25 or 1)
    axes.xaxis.set_visible(False)
    _plain(axes)


def _lines(axes: Any, comparison: Comparison, texts: str) -> None:  # noqa: ANN401 -- untyped
    """Draw texts a second over texts a call, both on log2 axes, each line named at its end."""
    ends = {}
    for entry in comparison.entries:
        rates = comparison.of(entry.name, texts, whole=False)
        if rates:
            ours = entry.name == OURS
            axes.plot(
                list(rates),
                list(rates.values()),
                color=_colour(entry.name),
                linewidth=2.6 if ours else 1.6,
                zorder=3 if ours else 2,
            )
            ends[entry.name] = rates[max(rates)]
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted({figure.batch for figure in comparison.figures if not figure.whole}))
    axes.set_yscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_title("the same, by texts a call", loc="left")
    _plain(axes)
    _name_lines(axes, ends)


def _name_lines(axes: Any, ends: dict[str, float]) -> None:  # noqa: ANN401 -- untyped
    """Name each line at its end; push names apart if lines end close together."""
    heights = axes.transAxes.inverted().transform(
        axes.transData.transform([(1.0, end) for end in ends.values()])
    )[:, 1]
    placed = spread(dict(zip(ends, heights.tolist(), strict=True)), _GAP)
    for name, height in placed.items():
        colour = OURS_COLOUR if name == OURS else INK
        axes.text(1.01, height, name, transform=axes.transAxes, va="center", color=colour)


def spread(heights: dict[str, float], gap: float) -> dict[str, float]:
    """Push labels closer than `gap` apart, both equally, for a limited number of passes."""
    names = sorted(heights, key=heights.__getitem__)
    placed = dict(heights)
    for _ in range(_MOVES):
        for below, above in pairwise(names):
            lacking = max(0.0, gap - (placed[above] - placed[below])) / 2
            placed[below] -= lacking
            placed[above] += lacking
    return placed


def _colour(name: str) -> str:
    return OURS_COLOUR if name == OURS else PEER_COLOUR


def _plain(axes: Any) -> None:  # noqa: ANN401 -- untyped
    """Remove frame, ticks and minor ticks."""
    axes.set_facecolor(PAPER)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, colors=INK)
    axes.minorticks_off()
