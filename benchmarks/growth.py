"""Draws what searches, changes, starts and memory cost at each size, of a report of million.py.

`growth.py REPORT` writes `growth.svg` beside the report, and a PNG to look at into `PNG` if given.
The same report gives the same SVG.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

from matplotlib import rc_context
from matplotlib.figure import Figure

sys.path.append(str(Path(__file__).parent / "engine"))
from peer_chart import FAINT, GRID, INK, OURS_COLOUR, PAPER, PEER_COLOUR, spread, with_dark

# What is drawn: the axis' title, its unit, and each line's name with where its figure is.
PANELS: Final = (
    (
        "Calls over D-Bus, and a change until it is found",
        "ms",
        {
            "one change": ("one change ms",),
            "Search, p99": ("search", "p99 ms"),
            "Search with a condition, p50": ("search, where", "p50 ms"),
            "Search, p50": ("search", "p50 ms"),
            "status": ("status", "ms"),
        },
    ),
    ("Restart until ready", "s", {"ready": ("restart", "ready s")}),
    (
        "Memory added",
        "MiB",
        {"in the end": ("more private MiB",)},
    ),
)
# Of each panel, in shares of the picture's width; lines are named beside the first.
_PLACES: Final = ((0.045, 0.33), (0.59, 0.155), (0.82, 0.155))
_GAP: Final = 0.075
# From here on no decimals tell anything.
_WHOLE: Final = 100


def draw(report: dict[str, Any], svg: Path, png: Path | None) -> None:
    """Draw a report."""
    with rc_context({"svg.hashsalt": "op-dbus", "font.size": 9.5, "text.color": INK}):
        figure = Figure(figsize=(12, 4.6), facecolor=PAPER)
        for (left, width), (title, unit, lines) in zip(_PLACES, PANELS, strict=True):
            axes = figure.add_axes((left, 0.17, width, 0.62))
            _panel(axes, f"{title}, {unit}", lines, report["sizes"])
        figure.text(0.015, 0.96, "What more objects cost", size=13, weight="bold", va="top")
        figure.text(0.015, 0.02, report["machine"], size=8, color=FAINT)
        if png:
            figure.savefig(png, dpi=144)
        figure.savefig(svg, metadata={"Date": None})
    svg.write_text(with_dark(svg.read_text(encoding="utf-8")), encoding="utf-8")


def _panel(
    axes: Any,  # noqa: ANN401 -- untyped
    title: str,
    lines: dict[str, tuple[str, ...]],
    rows: list[dict[str, Any]],
) -> None:
    sizes = [row["fill"]["objects"] for row in rows]
    ends = {}
    for number, (name, path) in enumerate(lines.items()):
        values = [_at(row, path) for row in rows]
        is_ours = "Search, p" in name or len(lines) == 1
        axes.plot(
            sizes,
            values,
            color=OURS_COLOUR if is_ours else PEER_COLOUR,
            marker="o",
            markersize=4,
            linewidth=2.4 if is_ours else 1.6,
            zorder=3 + number,
        )
        for size, value in zip(sizes, values, strict=True) if len(lines) == 1 else ():
            axes.annotate(
                _short(value), (size, value), (0, 8), textcoords="offset points", ha="center"
            )
        ends[name] = values[-1]
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(sizes)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.set_xlabel("objects", color=INK)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_title(title, loc="left", pad=16)
    axes.margins(0.08, 0.18)
    axes.set_facecolor(PAPER)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, colors=INK)
    axes.minorticks_off()
    axes.autoscale_view()
    # the one line has its figures
    axes.yaxis.set_visible(len(lines) > 1)
    if len(lines) > 1:
        _name(axes, ends)


def _name(axes: Any, ends: dict[str, float]) -> None:  # noqa: ANN401 -- untyped
    """Name each line at its end, with its value there."""
    to_axes = axes.transData + axes.transAxes.inverted()
    heights = {name: float(to_axes.transform((1, end))[1]) for name, end in ends.items()}
    for name, height in spread(heights, _GAP).items():
        text = f"{name}: {_short(ends[name])}"
        axes.text(1.01, height, text, transform=axes.transAxes, va="center", color=INK)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= _WHOLE else f"{value:.3g}"


def _at(row: dict[str, Any], path: tuple[str, ...]) -> float:
    found: Any = row
    for key in path:
        found = found[key]
    return float(found)


def main() -> None:
    """Draw the report that the command line names."""
    report, *png = map(Path, sys.argv[1:])
    draw(json.loads(report.read_text()), report.with_name("growth.svg"), *(png or [None]))


if __name__ == "__main__":
    main()
