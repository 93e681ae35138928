"""Metrics in Prometheus' text format, also as Prometheus' own promtool reads it."""

import re
import shutil
import subprocess

import pytest

from opdbus.platform.metrics import SECONDS, Definition, Family, Histogram, definitions, render

TABLE = {
    "lamps": Definition("gauge", ("in", "is"), "lamps"),
    "rooms_total": Definition("counter", (), "rooms\\\n"),
    "seconds": Definition("histogram", (), "time"),
    "each_seconds": Definition("histogram", ("in",), "time of each"),
}
needs_promtool = pytest.mark.skipif(
    not shutil.which("promtool"), reason="there is no promtool: apt install prometheus"
)


def test_a_sample_has_its_labels() -> None:
    """Write help, type and one line for each sample; a family without samples has the first two."""
    lamps = Family("lamps", {("hall", "on"): 2, ("", "off"): 1.5})
    assert render([lamps, Family("seconds", {}), Family("rooms_total", {(): 3})], TABLE) == (
        "# HELP opdbus_lamps lamps\n"
        "# TYPE opdbus_lamps gauge\n"
        'opdbus_lamps{in="hall",is="on"} 2\n'
        'opdbus_lamps{in="",is="off"} 1.5\n'
        "# HELP opdbus_seconds time\n"
        "# TYPE opdbus_seconds histogram\n"
        "# HELP opdbus_rooms_total rooms\\\\\\n\n"
        "# TYPE opdbus_rooms_total counter\n"
        "opdbus_rooms_total 3\n"
    )


def test_a_sample_needs_all_labels_of_the_table() -> None:
    """Refuse a sample with too few labels, and a metric that is not in the table."""
    with pytest.raises(ValueError, match="zip"):
        render([Family("lamps", {("hall",): 1})], TABLE)
    with pytest.raises(KeyError):
        render([Family("others", {})], TABLE)


def test_characters_with_a_meaning_are_escaped() -> None:
    """Escape backslashes, quotes and line breaks in the values of labels."""
    text = render([Family("lamps", {('a"\\\n', "\u00e4"): 1})], TABLE)
    assert text.splitlines()[2] == 'opdbus_lamps{in="a\\"\\\\\\n",is="\u00e4"} 1'


def test_buckets_of_a_histogram_add_up() -> None:
    """Count a value in each bucket whose bound it does not exceed, and all of them in +Inf."""
    histogram = Histogram((1, 2.5))
    for value, count in (1, 1), (1.5, 2), (9, 1):
        histogram.add(value, count)
    assert render([Family("seconds", {(): histogram})], TABLE).splitlines()[2:] == [
        'opdbus_seconds_bucket{le="1"} 1',
        'opdbus_seconds_bucket{le="2.5"} 3',
        'opdbus_seconds_bucket{le="+Inf"} 4',
        "opdbus_seconds_sum 13.0",
        "opdbus_seconds_count 4",
    ]
    lines = render([Family("each_seconds", {("hall",): histogram})], TABLE).splitlines()
    assert lines[2] == 'opdbus_each_seconds_bucket{in="hall",le="1"} 1'
    assert lines[-1] == 'opdbus_each_seconds_count{in="hall"} 4'


def test_bounds_of_durations_double() -> None:
    """Cover 0.5 ms to 4 s, which are written without an exponent."""
    assert (SECONDS[0], len(SECONDS), round(SECONDS[-1])) == (0.0005, 14, 4)
    assert not any("e" in str(bound) for bound in SECONDS)


def test_the_table_follows_the_rules_of_names() -> None:
    """End counters, and nothing else, in _total; no help has a character to escape."""
    for name, definition in definitions().items():
        assert (definition.kind == "counter") == name.endswith("_total"), name
        assert definition.kind in {"counter", "gauge", "histogram"}
        assert re.fullmatch(r"[^\"\\]+", definition.help)


@needs_promtool
def test_promtool_reads_it() -> None:
    """Write what promtool accepts, labels with any character included."""
    families = [
        Family("lamps", {('\n"\\', "\u00e4"): 1e-7}),
        Family("each_seconds", {("hall",): Histogram()}),
    ]
    done = subprocess.run(
        ["promtool", "check", "metrics"],
        input=render(families, TABLE),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
