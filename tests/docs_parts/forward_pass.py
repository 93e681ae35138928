"""What the time of a forward pass goes to, from benchmarks/engine/forward_pass.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from docs_parts.tables import newest, table

_TEXT = """\
From `benchmarks/results/{file}` (`python benchmarks/engine/forward_pass.py`), on {machine}: one
batch of texts of {tokens} tokens on one thread, {rows} texts, or 1 where a runtime takes one at a
time. Shares are of its CPU time; `outside` are the runtime and Python, beside all operators. The
rate is of the layers' arithmetic in the time of products. Runtimes fuse: int8 products
convert their input, OpenVINO's products contain GELU and sums, and attention contains softmax.
Shares with a ~ are of runs that other processes interrupted: OpenVINO tells only means of all runs.

{table}

Batches of op-dbus have texts of one length. Nothing is padded but in OpenVINO's graphs, which round
the tokens of a batch up ({rounded:.1%} here). Sorted texts in batches of 32, as others make them,
compute {padded:.2f} tokens for each real one."""
_GROUPS = ("products", "attention", "normalization", "GELU", "conversions", "copies")
# Operators that took this much longer than the run's CPU time were interrupted.
_INTERRUPTED = 0.9


def forward_pass() -> str:
    """Make the table of the newest report."""
    found = newest("forward-pass")
    assert found, "no report of benchmarks/engine/forward_pass.py is committed"
    file, report = found
    machine = report["machine"]
    features = " ".join(machine["features"])
    every = [one for level in report["levels"].values() for one in level["engines"]]
    paddings = [level["padding"]["batches of 32"] for level in report["levels"].values()]
    rounded = max(one["padded_tokens"] / (one["rows"] * one["tokens"]) for one in every)
    return _TEXT.format(
        file=file,
        machine=f"{machine['processors']} processors of {machine['processor']} ({features})",
        tokens=every[0]["tokens"],
        rows=max(one["rows"] for one in every),
        rounded=rounded,
        padded=max(paddings),
        table=table(_heads(), _rows(report["levels"])),
    )


def _heads() -> tuple[str, ...]:
    return ("level", "on", "in", "us a text", *_GROUPS, "other", "outside", "GFLOP/s in products")


def _rows(levels: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for name, level in levels.items():
        for one in sorted(level["engines"], key=lambda each: each["milliseconds"] / each["rows"]):
            groups, whole = one["groups"], sum(one["groups"].values()) + one["outside"]
            other = sum(spent for group, spent in groups.items() if group not in _GROUPS)
            parts = [*(groups.get(group, 0.0) for group in _GROUPS), other, one["outside"]]
            about = "~" if one["scaled_by"] < _INTERRUPTED else ""
            flops = level["flops_per_token"] * one["rows"] * one["tokens"]
            yield (
                name,
                one["runtime"].removeprefix("cpu:"),
                one["precision"],
                f"{1000 * one['milliseconds'] / one['rows']:,.0f}",
                *(f"{about}{spent / whole:.0%}" if spent else "" for spent in parts),
                f"{about}{flops / groups['products'] / 1e6:,.0f}",
            )
