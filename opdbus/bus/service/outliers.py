"""Objects that are unlike their kind, in the format of the bus (State1.Outliers)."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from opdbus.bus import paths
from opdbus.bus.service import sorts
from opdbus.bus.service.object import FILTERS
from opdbus.bus.service.options import Options, page
from opdbus.bus.transport.values import Typed

if TYPE_CHECKING:
    from opdbus.bus.service.options import Given
    from opdbus.bus.transport.values import Plain
    from opdbus.index.state_store.state_store import StateStore
    from opdbus.insight.insight import Insight
    from opdbus.insight.kind_survey import Odd

    # path, score, details
    WireOutlier: TypeAlias = tuple[str, float, dict[str, Plain]]


async def outliers(
    insight: Insight, memory: StateStore, limit: int, options: Given
) -> list[WireOutlier]:
    """Return the objects that are unlike their kind, the worst first."""
    checked = Options(options, FILTERS)
    asked = page(limit, checked)
    await sorts.require(memory, **checked.wanted("plugin", "kind"))
    found = await insight.outliers(asked)
    part = found[asked.offset : asked.offset + asked.limit]
    return [_wire(odd, is_declared=not memory.catalogue.is_observed(odd.object_id)) for odd in part]


def _wire(odd: Odd, *, is_declared: bool) -> WireOutlier:
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
