"""Measure which secrets of the corpus are hidden, and which harmless values change."""

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from opdbus.index.database.records import Recorder, draft
from opdbus.state.object import Identity
from opdbus.state.redact import redact_object
from secret_corpus.kinds import kinds
from secret_corpus.places import HOSTS, SOURCE, Planted, is_held, plant, shapes

HARMLESS: Final = Path(__file__).parent.parent / "data" / "harmless.tsv"
# Characters of a secret that may be seen in a row: any more give it away.
_SEEN: Final = 5


def planted() -> Iterator[tuple[str, Planted]]:
    """Yield all objects with secrets, by the names of their kinds."""
    for kind in kinds():
        for each in plant(kind):
            yield kind.name, each
    yield from shapes()


def leaks(each: Planted, recorder: Recorder) -> list[str]:
    """Return the parts of an object's secrets that are in what is stored of it."""
    item = redact_object(each.identity, each.properties)
    record = recorder.records([draft(item)])[0]
    stored = "\n".join([*item.identity, item.json(), *(str(part) for part in record)]).lower()
    found = []
    for secret in {part.lower() for whole in each.secrets for part in whole.split()}:
        rows = [secret[at : at + _SEEN + 1] for at in range(len(secret) - _SEEN)]
        found += [row for row in rows if row in stored][:1]
    return found


def measure_secrets(every: int = 1) -> dict[str, dict[str, list[str]]]:
    """Return by part, then kind, the places at which something of it is seen (or "")."""
    recorder = Recorder()
    found: dict[str, dict[str, list[str]]] = {"open": defaultdict(list), "held": defaultdict(list)}
    for number, (kind, each) in enumerate(planted()):
        if number % every:
            continue
        part = "held" if is_held(kind) else "open"
        found[part][kind].append(each.place if leaks(each, recorder) else "")
    return found


def harmless() -> list[tuple[str, str, Any]]:
    """Return the fields and values of real hosts: of this file, and of the recorded hosts."""
    lines = (row.partition("\t") for row in HARMLESS.read_text(encoding="utf-8").splitlines())
    found: dict[tuple[str, str, str], Any] = {
        (field, "", value): value for field, _, value in lines
    }
    for path in HOSTS:
        data = json.loads(path.read_text(encoding="utf-8"))
        for rows in [data] if isinstance(data, list) else [data["first"]]:
            for *_, plugin, kind, name, properties in rows:
                found[f"{plugin}/{kind}/name", "", name] = name
                for key, value in properties.items():
                    if "[redacted]" not in (written := str(value)):
                        found[f"{plugin}/{kind}/{key}", type(value).__name__, written] = value
    return [(field, written, value) for (field, _, written), value in found.items()]


def changed(rows: list[tuple[str, str, Any]]) -> list[tuple[str, str, str]]:
    """Return fields, values, and what became of those that changed."""
    found = []
    for field, written, value in rows:
        plugin, kind, name = field.split("/", 2)
        clean = redact_object(Identity(SOURCE, plugin, kind, "x"), {name: value}).properties
        if clean != {name: value}:
            found.append((field, written, str(clean)))
    return found
