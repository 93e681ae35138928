"""Measure what redaction costs an object, here and in another checkout, each in its turn.

python tests/secret_corpus/cost.py OTHER_CHECKOUT [ROUNDS]
"""

import gc
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final

_ROOT: Final = Path(__file__).parents[2]
_PASSES: Final = {"state.example.json": 60, "recorded hosts": 5}


def _objects(which: str) -> list[Any]:
    from opdbus.state.flatten import flatten
    from opdbus.state.object import FILE, Identity

    if which in _PASSES and which != "recorded hosts":
        plugins = json.loads((_ROOT / which).read_text())["plugins"]
        rows: list[Any] = [(p, kind, name or "-", more) for p, kind, name, more in flatten(plugins)]
    else:
        found = [json.loads(path.read_text()) for path in HOSTS]
        rows = [
            row[-4:] for data in found for row in (data if type(data) is list else data["first"])
        ]
    return [(Identity(FILE, *names), properties) for *names, properties in rows]


def _least(work: Callable[[], object], before: Callable[[], object], passes: int) -> float:
    """Return the least processor time of some passes, each after another work."""
    times = []
    for _ in range(passes):
        before()
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def _measure() -> None:
    """Print microseconds an object: of a first reading, of another, and with its record."""
    from opdbus.state import secret_text

    try:
        records = import_module("opdbus.index.database.records")
    except ModuleNotFoundError:
        # an older checkout
        records = import_module("opdbus.index.records")
    draft = records.draft
    from opdbus.state.redact import redact_object

    # an older redaction remembers no texts
    clean = getattr(secret_text, "CLEAN", None)
    forget = clean.hashes.clear if clean else bool
    figures = {}
    for which, passes in _PASSES.items():
        items, recorder = _objects(which), records.Recorder()

        def read(items: list[Any] = items) -> list[Any]:
            return [redact_object(*item) for item in items]

        def record(recorder: Any = recorder, read: Callable[[], list[Any]] = read) -> None:
            recorder.records([draft(item) for item in read()])

        record()
        gc.freeze()
        gc.disable()
        for name, work, before in (("first", read, forget), ("again", read, bool),
                                   ("first, with its record", record, forget)):  # fmt: skip
            figures[f"{which}: {name}"] = _least(work, before, passes) / len(items) * 1e6
    print(json.dumps(figures))


def main(other: str, rounds: int = 9) -> None:
    """Print for both checkouts the medians of all rounds, their ratio, and its 95% interval."""
    trees = [str(Path(other).resolve()), str(_ROOT)]
    found: dict[str, list[dict[str, float]]] = {tree: [] for tree in trees}
    for number in range(rounds):
        for tree in trees[:: 1 if number % 2 else -1]:
            command = [sys.executable, __file__, "--measure", tree]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found[tree].append(json.loads(done.stdout))
    rng = random.Random(0)  # noqa: S311 -- the same each time
    for name in found[trees[0]][0]:
        before, after = ([figures[name] for figures in found[tree]] for tree in trees)
        ratios = [new / old for old, new in zip(before, after, strict=True)]
        drawn = sorted(statistics.median(rng.choices(ratios, k=rounds)) for _ in range(2000))
        row = (statistics.median(before), statistics.median(after), statistics.median(ratios))
        print(name, *(f"{value:.2f}" for value in (*row, drawn[50], drawn[1949])), sep="\t")


if __name__ == "__main__":
    if sys.argv[1] == "--measure":
        sys.path[:0] = [sys.argv[2], str(_ROOT / "tests")]
        from secret_corpus.places import HOSTS

        _measure()
    else:
        main(sys.argv[1], *map(int, sys.argv[2:]))
