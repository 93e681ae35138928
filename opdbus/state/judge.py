"""Check of a state file without storing it: objects, names, redacted fields and warnings."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, TypeAlias

from opdbus.state.flatten import Reader, flatten
from opdbus.state.object import Json, ObjectId, StateObject, is_hash_name
from opdbus.state.redact import redact_text
from opdbus.state.secret_text import REDACTED

Content: TypeAlias = Mapping[str, Json]

_ORDINAL: Final = re.compile(r"#\d+\Z")
# Longer names are cut in sentences.
_MAX_SHOWN: Final = 64


@dataclass(frozen=True, slots=True)
class Judgement:
    """The findings on a valid state file; they hold no secret.

    `objects` has counts by (plugin, kind), `hidden` counts of redacted fields by (plugin, kind,
    field).
    """

    objects: Mapping[tuple[str, str], int]
    hidden: Mapping[tuple[str, str, str], int]
    # objects whose names were generated, cut or redacted
    made: Sequence[ObjectId]
    cut: Sequence[ObjectId]
    redacted: Sequence[ObjectId]
    warnings: Sequence[str]


def judge(
    content: Content, warn: Callable[[Sequence[StateObject]], Iterable[str]] = lambda _: ()
) -> Judgement:
    """Return the findings on a valid state file; `warn` returns further warnings."""
    plugins = content["plugins"]
    _, objects = Reader().read(plugins)
    object_ids = [ObjectId(*item.identity[1:]) for item in objects]
    given = {(plugin, kind, name) for plugin, kind, name, _ in flatten(plugins)}
    changed = sorted(object_id for object_id in object_ids if object_id not in given)
    known = set(object_ids)
    again = {
        object_id
        for object_id in changed
        if _first(object_id) != object_id and _first(object_id) in known
    }
    others = [object_id for object_id in changed if object_id not in again]
    return Judgement(
        Counter((object_id.plugin, object_id.kind) for object_id in sorted(object_ids)),
        Counter(sorted(chain.from_iterable(map(_hidden_fields, objects)))),
        made=[object_id for object_id in others if is_hash_name(object_id.name)],
        cut=[t for t in others if not is_hash_name(t.name) and REDACTED not in "".join(t)],
        redacted=[object_id for object_id in others if REDACTED in "".join(object_id)],
        warnings=[
            *_warnings(content, objects),
            *_repetitions(Counter(map(_first, sorted(again)))),
            *warn(objects),
        ],
    )


def _first(object_id: ObjectId) -> ObjectId:
    """Return the id of the first object of a name: others have an ordinal such as #2."""
    return object_id._replace(name=_ORDINAL.sub("", object_id.name))


def _repetitions(repeated: Mapping[ObjectId, int]) -> Iterator[str]:
    for object_id, more in repeated.items():
        name = "/".join(object_id)
        yield f"{_short(name)} is declared {more + 1} times: the others are {_short(name)}#2 and on"


def _hidden_fields(item: StateObject) -> set[tuple[str, str, str]]:
    return {(item.plugin, item.kind, field) for field in _fields(item.properties, "")}


def _fields(value: Json, at: str) -> Iterator[str]:
    """Yield the paths of redacted values and keys, without list indexes."""
    if isinstance(value, str) and REDACTED in value:
        yield at
    elif isinstance(value, dict):
        for key, inner in value.items():
            below = f"{at}.{_short(key)}" if at else _short(key)
            if REDACTED in key:
                yield below
            yield from _fields(inner, below)
    elif isinstance(value, list):
        for inner in value:
            yield from _fields(inner, f"{at}[]")


def _warnings(content: Content, objects: Sequence[StateObject]) -> Iterator[str]:
    """Yield warnings on what is valid but probably a mistake."""
    for key in sorted(content.keys() - {"version", "plugins"}):
        yield f'the key {_named(key)} beside "plugins" is not read'
    if not objects:
        yield "the file declares nothing"
    for name, plugin in content["plugins"].items():
        if not any(True for _ in flatten({name: plugin})):
            yield f"the plugin {_named(name)} is empty"
        yield from _mixed(name, plugin)
    unnamed = [item for item in objects if not item.name]
    yield from _some(unnamed, "without a name: give it one")
    yield from _some([i for i in objects if not i.properties], "without properties")


def _mixed(name: str, plugin: Content) -> Iterator[str]:
    for key, value in plugin.items():
        kinds = {isinstance(element, dict) for element in value} if isinstance(value, list) else ()
        if len(kinds) > 1:
            yield (
                f"{_named(name)}.{_named(key)} lists objects and other values, so it is kept as a"
                " setting of the plugin: no object is made of its elements"
            )


def _some(objects: Sequence[StateObject], what: str) -> Iterator[str]:
    if objects:
        first = _short("/".join(objects[0].identity[1:]))
        more = f" and {len(objects) - 1} more are" if len(objects) > 1 else " is"
        yield f"{first}{more} {what}"


def _named(key: str) -> str:
    return f'"{_short(redact_text(key))}"'


def _short(name: str) -> str:
    return name if len(name) <= _MAX_SHOWN else f"{name[:_MAX_SHOWN]}..."
