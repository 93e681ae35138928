"""Topics in the format of the bus (State1.Clusters)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, TypeAlias

from opdbus.bus import paths
from opdbus.bus.service import sorts
from opdbus.bus.service.object import FILTERS
from opdbus.bus.service.options import Options, page, require_range
from opdbus.bus.transport.values import Typed
from opdbus.errors import InvalidArgs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opdbus.bus.service.options import Given
    from opdbus.bus.transport.values import Plain
    from opdbus.index.state_store.state_store import StateStore
    from opdbus.insight.insight import Insight
    from opdbus.insight.topics import Topic

    # name, size, details
    WireCluster: TypeAlias = tuple[str, int, dict[str, Plain]]

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
    await sorts.require(memory, **checked.wanted("plugin", "kind"))
    found = list(enumerate(await insight.topics(asked), 1))
    if topic := checked.get("topic", ""):
        found = [_meant(topic, found)]
    part = found[asked.offset : asked.offset + asked.limit]
    return [_wire(number, each, objects) for number, each in part]


def _meant(said: str, found: Sequence[tuple[int, Topic]]) -> tuple[int, Topic]:
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


def _wire(number: int, topic: Topic, objects: int) -> WireCluster:
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
