"""Topics and outliers in the format of the bus (State1.Clusters, State1.Outliers)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, TypeAlias

from opdbus.bus import paths
from opdbus.bus.service import call_options
from opdbus.bus.service.call_options import Given, Options, page, require_range
from opdbus.bus.service.object1 import FILTERS
from opdbus.bus.transport.values import Plain, Typed
from opdbus.errors import InvalidArgs
from opdbus.index.state_store.state_store import StateStore
from opdbus.insight.insight import Insight
from opdbus.insight.kind_survey import Odd
from opdbus.insight.topics import Topic

# name, size, details
WireCluster: TypeAlias = tuple[str, int, dict[str, Plain]]

# path, score, details
WireOutlier: TypeAlias = tuple[str, float, dict[str, Plain]]

# The default number of objects of a topic.
_OBJECTS: Final = 5


async def clusters(
    insight: Insight, memory: StateStore, limit: int, options: Given
) -> list[WireCluster]:
    """Return the topics of the objects that match, the largest first."""
    checked = Options(options, {**FILTERS, "topic": str, "objects": int})
    asked = page(limit, checked)
    objects = checked.get("objects", _OBJECTS)
    require_range("objects", objects, 0)
    await call_options.require_kind(memory, **checked.wanted("plugin", "kind"))
    found = list(enumerate(await insight.topics(asked), 1))
    if topic := checked.get("topic", ""):
        found = [_find_topic(topic, found)]
    part = found[asked.offset : asked.offset + asked.limit]
    return [_topic_row(number, each, objects) for number, each in part]


def _find_topic(said: str, found: Sequence[tuple[int, Topic]]) -> tuple[int, Topic]:
    """Return the topic of a number, a name or a word of it; raise InvalidArgs unless it is one."""
    wanted = said.strip().lower()
    ways = (
        [each for each in found if wanted == str(each[0])],
        [each for each in found if wanted == each[1].name.lower()],
        [each for each in found if wanted in map(str.lower, each[1].words)],
        [each for each in found if wanted in each[1].name.lower()],
    )
    meant = next(filter(None, ways), [])
    if len(meant) == 1:
        return meant[0]
    if meant:
        names = "; ".join(f"{number} {topic.name}" for number, topic in meant)
        raise InvalidArgs(f"{said!r} may be any of these topics: {names}")
    raise InvalidArgs(f"there is no topic {said!r}; there are {len(found)}: `op-dbus topics`")


def _topic_row(number: int, topic: Topic, objects: int) -> WireCluster:
    kinds = Counter((object_id.plugin, object_id.kind) for object_id, _ in topic.members)
    rows = [(*kind, count) for kind, count in kinds.most_common()]
    members = [(paths.of(*object_id), cosine) for object_id, cosine in topic.members[:objects]]
    details = {
        "number": number,
        "words": list(topic.words),
        "kinds": Typed("a(ssu)", rows),
        "objects": Typed("a(od)", members),
    }
    return topic.name, len(topic.members), details


async def outliers(
    insight: Insight, memory: StateStore, limit: int, options: Given
) -> list[WireOutlier]:
    """Return the objects that are unlike their kind, the worst first."""
    checked = Options(options, FILTERS)
    asked = page(limit, checked)
    await call_options.require_kind(memory, **checked.wanted("plugin", "kind"))
    found = await insight.outliers(asked)
    part = found[asked.offset : asked.offset + asked.limit]
    return [
        _outlier_row(odd, is_declared=not memory.catalogue.is_observed(odd.object_id))
        for odd in part
    ]


def _outlier_row(odd: Odd, *, is_declared: bool) -> WireOutlier:
    fields = [(quirk.field, quirk.value, quirk.having, quirk.usual) for quirk in odd.quirks]
    details: dict[str, Plain] = {
        **odd.object_id._asdict(),
        "objects": odd.objects,
        "declared": is_declared,
        "fields": Typed("a(ssua(su))", fields),
    }
    if odd.nearest is not None:
        details |= {
            "distance": odd.distance,
            "usual_distance": odd.usual_distance,
            "nearest": paths.of(*odd.nearest),
        }
    return paths.of(*odd.object_id), odd.score, details
