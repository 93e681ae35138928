"""Check of a state file without storing it: objects, names, redacted fields and warnings."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from opdbus.state.flatten import Reader, find_claims, flatten
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
    object_ids = sorted(item.identity.object_id for item in objects)
    present = set(object_ids)
    declared = {(plugin, kind, name) for plugin, kind, name, _ in flatten(plugins)}
    renamed: list[ObjectId] = []
    # objects that repeat a name get ordinals such as #2
    repeated: Counter[ObjectId] = Counter()
    for object_id in object_ids:
        first = object_id._replace(name=_ORDINAL.sub("", object_id.name))
        if object_id not in declared and first != object_id and first in present:
            repeated[first] += 1
        elif object_id not in declared:
            renamed.append(object_id)
    hidden = [
        (item.plugin, item.kind, path)
        for item in objects
        for path in set(_redacted_paths(item.properties, ""))
    ]
    return Judgement(
        Counter((object_id.plugin, object_id.kind) for object_id in object_ids),
        Counter(sorted(hidden)),
        made=[each for each in renamed if is_hash_name(each.name)],
        cut=[t for t in renamed if not is_hash_name(t.name) and REDACTED not in "".join(t)],
        redacted=[each for each in renamed if REDACTED in "".join(each)],
        warnings=[*_warnings(content, objects), *map(_warn_of, repeated.items()), *warn(objects)],
    )


def _redacted_paths(value: Json, at: str) -> Iterator[str]:
    """Yield the paths of redacted values and keys, without list indexes."""
    if isinstance(value, str) and REDACTED in value:
        yield at
    elif isinstance(value, dict):
        for key, inner in value.items():
            below = f"{at}.{_shorten(key)}" if at else _shorten(key)
            if REDACTED in key:
                yield below
            yield from _redacted_paths(inner, below)
    elif isinstance(value, list):
        for inner in value:
            yield from _redacted_paths(inner, f"{at}[]")


def _warnings(content: Content, objects: Sequence[StateObject]) -> Iterator[str]:
    """Yield warnings on what is valid but probably a mistake."""
    for key in sorted(content.keys() - {"version", "plugins"}):
        yield f'the key {_quote(key)} beside "plugins" is not read'
    claims = find_claims(content["plugins"])
    if not objects and not claims:
        yield "the file declares nothing"
    claiming = {plugin for plugin, _ in claims}
    for name, plugin in content["plugins"].items():
        # an empty list that is complete declares that there is none
        if name not in claiming and not any(True for _ in flatten({name: plugin})):
            yield f"the plugin {_quote(name)} is empty"
        for key, value in plugin.items():
            if isinstance(value, list) and len({isinstance(each, dict) for each in value}) > 1:
                yield (
                    f"{_quote(name)}.{_quote(key)} lists objects and other values, so it is kept as"
                    " a setting of the plugin: no object is made of its elements"
                )
    for concerned, problem in (
        ([item for item in objects if not item.name], "without a name: give it one"),
        # of a complete list, the names alone have a meaning
        (
            [one for one in objects if not one.properties and (one.plugin, one.kind) not in claims],
            "without properties",
        ),
    ):
        if concerned:
            first = _shorten("/".join(concerned[0].identity[1:]))
            more = f" and {len(concerned) - 1} more are" if len(concerned) > 1 else " is"
            yield f"{first}{more} {problem}"


def _warn_of(repeated: tuple[ObjectId, int]) -> str:
    name = _shorten("/".join(repeated[0]))
    return f"{name} is declared {repeated[1] + 1} times: the others are {name}#2 and on"


def _quote(key: str) -> str:
    return f'"{_shorten(redact_text(key))}"'


def _shorten(name: str) -> str:
    return name if len(name) <= _MAX_SHOWN else f"{name[:_MAX_SHOWN]}..."
