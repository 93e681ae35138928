"""Formatting of hits: name, matching fields, and reasons for the rank."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from opdbus.cli import output
from opdbus.cli.oddities import value_of, words_of
from opdbus.cli.rows import name_of
from opdbus.state.object import FILE

if TYPE_CHECKING:
    from opdbus.cli.rows import Row

_HEADINGS: Final = ("score", "object", "text")
# Fields that every hit shows.
_SHOWN: Final = frozenset({"plugin", "kind", "name"})
# Number of fields to show that are observed otherwise than declared.
_MOST_DECLARED: Final = 2
_FLAGS: Final = frozenset({"no", "yes"})


def show(hits: Sequence[Row], *, is_explained: bool) -> None:
    """Print hits: one line each; on a terminal or with reasons, a block each."""
    for asked, meant in dict.fromkeys(tuple(p) for hit in hits for p in _why(hit)["corrected"]):
        output.note(f"{asked} was looked for as {meant}")
    if not is_explained and not sys.stdout.isatty():
        cells = [(_score(hit), name_of(hit), "; ".join(_lines(hit))) for hit in hits]
        output.table(_HEADINGS, cells)
        return
    print(output.style("  ".join(_HEADINGS[:2]), "bold"))
    for hit in hits:
        _print(hit, is_explained=is_explained)


def _print(hit: Row, *, is_explained: bool) -> None:
    score = _score(hit)
    output.labelled(score, len(score), name_of(hit), "" if hit["weak"] else "bold")
    reasons = dict(_reasons(hit)) if is_explained else {}
    for line in [_text(hit)] if is_explained else _lines(hit):
        output.labelled(" " * len(score), len(score), line)
    output.pairs({" " * (len(score) + 2) + name: said for name, said in reasons.items() if said})


def _score(hit: Row) -> str:
    return f"{hit['score']:.3f}"


def _text(hit: Row) -> str:
    return f"(weak) {hit['snippet']}" if hit["weak"] else str(hit["snippet"])


def _lines(hit: Row) -> list[str]:
    """Return the text of a hit, and one matching field or meaning that the text does not show."""
    why, seen = _why(hit), set[str]()
    for name, value, words in why["fields"]:
        # match a whole word; `no`, as in check-no-failures, means something else in a name
        is_word = value not in _FLAGS and re.search(
            rf"(?<!\w){re.escape(value)}(?!\w)", hit["snippet"]
        )
        if name in _SHOWN or is_word:
            seen.update(words)
    is_declared = "declared " if hit.get("source") == FILE else ""
    fields = [field for field in why["fields"] if not seen.issuperset(field[2])]
    more = [is_declared + _said(*field[:2]) for field in fields]
    more += [gloss for gloss in why["glosses"] if not why["fields"] and gloss not in hit["snippet"]]
    return [_text(hit), *more[:1], *_otherwise(hit), *_alike(hit.get("alike", {}))]


def _otherwise(hit: Row) -> Iterator[str]:
    """Yield the declared values of an object that is observed otherwise."""
    for name in list(hit.get("observed", {}))[:_MOST_DECLARED]:
        yield f"declared {_said(name, output.said(hit['declared'].get(name)))}"


def _alike(why: Mapping[str, Any]) -> Iterator[str]:
    """Yield a hit's common and differing fields, compared with the object it is similar to."""
    if not why:
        return
    fields = [f"{words_of(field)} {value_of(value)}" for field, value in why["fields"]]
    if both := [part for part in (", ".join(why["words"]), ", ".join(fields)) if part]:
        yield f"both: {'; '.join(both)}"
    if why["differs"]:
        other = (
            f"{words_of(f)} {value_of(there)}, not {value_of(own)}"
            for f, own, there in why["differs"]
        )
        yield f"but: {'; '.join(other)}"


def _said(name: str, value: str) -> str:
    # values that are only declared have this prefix
    own = name.removeprefix("declared.")
    marked = name if own == name else f"declared {own}"
    return f"{marked}: {' '.join(value.split())}"


def _reasons(hit: Row) -> Iterator[tuple[str, str]]:
    """Yield the parts of a hit's score, each with a label; absent parts are empty."""
    why, cosine, stage = _why(hit), hit["vector"], hit["stage"]
    is_compared = stage and not math.isnan(cosine)
    yield "meaning", f"{cosine:.3f}, the cosine at level {stage}" if is_compared else ""
    missing = f"; not here: {', '.join(why['missing'])}" if why["missing"] else ""
    yield "words", f"{hit['lexical']:.3f}, the share of the question's{missing}"
    yield "values", f"{hit['values']:+.3f} for {', '.join(why['values'])}" if why["values"] else ""
    reasons = "its sort, its name and how much of it the question says"
    yield "raised", f"{why['raised']:+.3f} for {reasons}" if why["raised"] else ""
    yield "in all", f"{why['total']:.3f}, by which it is ranked"
    found = [f"{_said(name, value)} ({', '.join(words)})" for name, value, words in why["fields"]]
    yield "matched", "\n".join(found)
    yield "glosses", "\n".join(why["glosses"])
    yield "conditions", ", ".join(why["conditions"])


def _why(hit: Row) -> Mapping[str, Any]:
    return hit.get("why") or {"fields": (), "glosses": (), "corrected": ()}
