"""Write the README's generated parts: settings, figures and the map of modules."""

import ast
import json
import re
from collections.abc import Iterable
from pathlib import Path

from opdbus import config
from opdbus.bench import contenders, report, table
from opdbus.bench.figures import EngineFigures
from opdbus.bench.report import Comparison

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
RESULTS = ROOT / "benchmarks" / "results"


def generated() -> str:
    """Give the README with its generated parts as they must be."""
    text = README.read_text(encoding="utf-8")
    for name, make in PARTS.items():
        pattern = rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"
        part = make()
        text, count = re.subn(
            pattern, lambda m, part=part: m[1] + part + "\n" + m[2], text, flags=re.DOTALL
        )
        if count != 1:
            raise ValueError(f"README.md must have one part marked {name}")
    return text


def settings() -> str:
    """Make a row of each setting."""
    rows = [
        f"| `{s.variable}` | {f'`{s.default}`' if s.default else ''} | {s.doc} |"
        for s in config.SETTINGS
    ]
    return "\n".join(["| variable | default | meaning |", "|---|---|---|", *rows])


_FIGURES = """\
From `benchmarks/results/{file}`; `make bench` makes such a report. Measured on {processors}
processors of {processor} ({features}), Python {python}, {packages}.

Search quality on the check set: {questions} questions about `state.example.json`, more than half of
which share no content word with their object; mean reciprocal rank. The example's descriptions, the
texts and the weight were chosen with this set in view, so new questions will do worse.

| lexical (BM25) | vector (cosine) | hybrid | hybrid, no shared word |
|---|---|---|---|
| {lexical:.3f} | {vector:.3f} | **{hybrid:.3f}** | {unshared:.3f} |

What is embedded decides; by vector alone, on the same questions:

| text | mean reciprocal rank |
|---|---|
{texts}

With {objects:,} objects and the medium model:

| | |
|---|---|
{rows}"""


def figures() -> str:
    """Make the tables of the newest committed benchmark report."""
    newest = max(RESULTS.glob("????-??-??.json"))
    report = json.loads(newest.read_text(encoding="utf-8"))
    quality, scale, machine = report["quality"], report["scale"], report["machine"]
    return _FIGURES.format(
        file=newest.name,
        processors=machine["processors"],
        processor=machine["processor"],
        features=", ".join(machine["features"]),
        python=machine["python"],
        packages=", ".join(f"{name} {version}" for name, version in machine["packages"].items()),
        questions=quality["questions"],
        lexical=quality["lexical"],
        vector=quality["vector"],
        hybrid=quality["hybrid"],
        unshared=quality["hybrid, no shared word"],
        texts=_rows((name, f"{mrr:.3f}") for name, mrr in quality["vector by text"].items()),
        objects=scale["objects"],
        rows=_rows(_scale_rows(scale)),
    )


def _rows(cells: Iterable[tuple[str, str]]) -> str:
    return "\n".join(f"| {left} | {right} |" for left, right in cells)


def _scale_rows(scale: dict) -> list[tuple[str, str]]:
    search, change = scale["search"], scale["one change"]
    command = scale["command line"]
    return [
        ("first start, all vectors computed", f"{scale['first start s']} s"),
        ("restart, nothing computed, until ready", f"{scale['restart s']} s"),
        ("`Search` over D-Bus", f"p50 {search['p50 ms']} ms, p99 {search['p99 ms']} ms"),
        ("one object changed in the file, until `Vectorized`", f"{change['median ms']} ms"),
        ("resident memory", f"{scale['steady memory MiB']} MiB"),
        ("SIGTERM until gone", f"{scale['stop s']} s"),
        ("`op-dbus --help`, whole process", f"{command['help median ms']} ms"),
        ("`op-dbus status`, whole process", f"{command['status median ms']} ms"),
    ]


_ENGINE = """\
From `benchmarks/results/{file}`; `make bench-engine` makes such a report. Measured on {machine}.

{parts}"""
_NO_ENGINE = "No report of `make bench-engine` is committed yet."
_BATCHES = (1, 8, 32, 256)


def engine(results: Path = RESULTS) -> str:
    """Make the tables of the newest committed report of `op-dbus bench`."""
    newest = max(results.glob("*-engine.json"), default=None)
    if newest is None:
        return _NO_ENGINE
    found = report.from_json(newest.read_text(encoding="utf-8"))
    parts = [part for figures in found.engines for part in _engine_parts(figures)]
    parts += [
        part
        for comparison in found.comparisons
        for part in [
            *(_compared(comparison, texts) for texts in comparison.tokens),
            *_chart(comparison.level, results),
        ]
    ]
    return _ENGINE.format(file=newest.name, machine=table.headline(found), parts="\n\n".join(parts))


def _chart(level: str, results: Path) -> list[str]:
    path = results / f"peers-{level}.svg"
    alt = f"Texts a second by {level}: op-dbus and its peers"
    return [f"![{alt}](benchmarks/results/{path.name})"] if path.is_file() else []


def _engine_parts(found: EngineFigures) -> list[str]:
    """Make what is known of one model on one provider; nothing where it failed."""
    if not found.rates:
        return []
    title = f"{found.level.capitalize()} ({found.model}), {found.precision} on `{found.provider}`"
    part = _table(("", ""), _engine_rows(found))
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
    return [_table(heads, rows)]


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
    return f"{title}\n\n{_table(heads, rows)}"


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(heads), *map(list, rows)]
    written = [f"| {' | '.join(cells)} |" for cells in lines]
    return "\n".join([written[0], "|" + "---|" * len(lines[0]), *written[1:]])


_HOSTILE = """\
From `benchmarks/results/{file}` (`python benchmarks/hostile.py`), measured on {machine}: a friend's
searches over {objects:,} objects with the {model} model, while others attack. The ratio is without
what the bus daemon itself took for a call meanwhile, which no service behind it can give back.

{rows}"""
_SOAK = """\
From `benchmarks/results/{file}` (`make soak`), measured on {machine}:
{minutes:.0f} minutes of all these attacks and three friends together. The friends lost {lost} of
{count:,} replies, memory grew by {growth:.1%} from {megabytes:.0f} MiB after a warm-up of
{warm:.0f} minutes, and {before} open files were {after} in the end."""
_FUZZ = """\
From `benchmarks/results/{file}` (`make fuzz`), on {machine}:
{calls:,} random calls, of which {reached:.0%} reached a handler, {files:,} state files and
{broken:,} broken messages found {faults} faults."""


def endurance(results: Path = RESULTS) -> str:
    """Make what the newest committed reports of hostile clients, soak and fuzzer say."""
    parts = []
    for name, make in (("hostile", _hostile), ("soak", _soak), ("fuzz", _fuzz)):
        if newest := max(results.glob(f"????-??-??-{name}.json"), default=None):
            parts.append(make(newest.name, json.loads(newest.read_text(encoding="utf-8"))))
    return "\n\n".join(parts)


def _hostile(file: str, found: dict) -> str:
    heads = ("attack", "p99 quiet", "attacked", "ratio", "MiB before", "after", "files left")
    rows = []
    for each in found["attacks"]:
        points = (f"{each[when]['p99']:.0f} ms" for when in ("quiet", "attacked"))
        before, _, after = each["memory"]
        left = max(0, each["files"][1] - each["files"][0])
        memory = (f"{before:.0f}", f"{after:.0f}")
        rows.append((each["name"], *points, f"{each['own_ratio']:.1f}", *memory, str(left)))
    return _HOSTILE.format(
        file=file, rows=_table(heads, rows), **_only(found, "machine objects model")
    )


def _soak(file: str, found: dict) -> str:
    friends, rounds = found["friends"].values(), found["MiB at the end of each round"]
    before, after = found["open files"]
    return _SOAK.format(
        file=file,
        machine=found["machine"],
        minutes=found["minutes"],
        lost=sum(friend["lost"] for friend in friends),
        count=sum(friend["count"] for friend in friends),
        growth=found["growth after warm-up"],
        warm=found["warm-up minutes"],
        megabytes=rounds[-1] / (1 + found["growth after warm-up"]),
        before=before,
        after=after,
    )


def _fuzz(file: str, found: dict) -> str:
    return _FUZZ.format(
        file=file,
        machine=found["machine"],
        calls=found["calls"],
        reached=found["reached a handler"],
        files=found["state files"]["files"],
        broken=found["broken messages"]["messages"],
        faults=len(found["faults"]) or "no",
    )


def _only(found: dict, names: str) -> dict:
    return {name: found[name] for name in names.split()}


def module_map() -> str:
    """List every module with its first line."""
    lines = []
    for path in sorted((ROOT / "opdbus").rglob("*.py")):
        first = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split("\n")[
            0
        ]
        name = path.relative_to(ROOT).as_posix().removesuffix("__init__.py")
        lines.append(f"    {name:<32} {first}")
    return "\n".join(lines)


PARTS = {
    "settings": settings,
    "figures": figures,
    "endurance": endurance,
    "engine": engine,
    "map": module_map,
}

if __name__ == "__main__":
    README.write_text(generated(), encoding="utf-8")
