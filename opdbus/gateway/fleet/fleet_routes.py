"""Routes of the fleet: the questions of `op-dbus fleet`, over all hosts."""

from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import APIRouter, Depends, Query, Request, Response

from opdbus.errors import InvalidArgs
from opdbus.fleet.questions import (
    fleet_changes,
    fleet_comparison,
    fleet_drift,
    fleet_scope,
    fleet_search,
    one_object,
    past_search,
    peers,
)
from opdbus.gateway.fleet import fleet_models as models
from opdbus.gateway.fleet.fleet_link import NO_FLEET, FleetLink
from opdbus.gateway.http_errors import HttpError
from opdbus.gateway.request_parameters import read_time
from opdbus.state import conditions

if TYPE_CHECKING:
    import asyncpg

router: Final = APIRouter(prefix="/fleet", tags=["fleet"])


def _fleet_of(request: Request) -> FleetLink:
    fleet: FleetLink | None = request.app.state.fleet
    if not fleet:
        raise HttpError(404, NO_FLEET)
    return fleet


# The link to the fleet's database; 404 where no fleet is set up.
Fleet = Annotated[FleetLink, Depends(_fleet_of)]


@router.get("/search", response_model=models.SEARCH | models.PAST)
async def search_fleet(
    asked: Annotated[models.FleetSearchRequest, Query()], fleet: Fleet
) -> Response:
    """Return the objects that answer a question, each with the hosts that have it.

    With `at`, of what was then; a weak hit is left out.
    """
    where = conditions.parse(asked.where)
    if not asked.q.strip() and not where:
        raise InvalidArgs("q: the question is empty: ask in words, or by conditions")
    if asked.at:
        at = read_time("at", asked.at)
        past = await fleet.ask(
            lambda connection, _: past_search.search_past(
                connection, asked.q, at, where=where, scope=asked.scope, limit=asked.limit
            ),
            models.as_text,
        )
        return models.respond(past)
    found = await fleet.ask(
        lambda connection, embed: fleet_search.search(
            connection,
            asked.q,
            embed=embed,
            where=where,
            scope=asked.scope,
            limit=asked.limit,
            offset=asked.offset,
        ),
        models.as_text,
    )
    return models.respond(found)


@router.get("/hosts", response_model=models.FleetHostsAnswer)
async def fleet_hosts(
    asked: Annotated[models.FleetHostsRequest, Query()], fleet: Fleet
) -> Response:
    """Return the hosts with their ages and faults; silent ones come first."""
    found = await fleet.ask(
        lambda connection, _: _read_hosts(connection, asked.changed_since, asked.scope),
        models.as_text,
    )
    return models.respond(found)


async def _read_hosts(
    connection: "asyncpg.Connection", cursor: str, scope: fleet_scope.Scope
) -> dict[str, Any]:
    found = await fleet_scope.list_changed_hosts(connection, cursor, scope)
    return {"hosts": [each.as_dict() for each in found.hosts], "cursor": found.cursor}


@router.get("/changes", response_model=models.CHANGES)
async def fleet_changes_(
    asked: Annotated[models.FleetChangesRequest, Query()], fleet: Fleet
) -> Response:
    """Return what changed on all hosts, the newest last: a change on many hosts is one row.

    With `about`, what answers the question, the best first. Times are those of the hosts' clocks.
    """
    since, until = (
        read_time(name, text) if text else 0
        for name, text in (("since", asked.since), ("until", asked.until))
    )
    if until and until < since:
        raise InvalidArgs("until: it is earlier than since")
    found = await fleet.ask(
        lambda connection, embed: fleet_changes.find_changes(
            connection,
            about=asked.about,
            between=fleet_changes.Between(since, until),
            scope=asked.scope,
            plugin=asked.plugin,
            kind=asked.kind,
            limit=asked.limit,
            embed=embed if asked.about else None,
        ),
        models.as_text,
    )
    return models.respond(found)


@router.get("/drift", response_model=models.DRIFT)
async def fleet_drift_(
    asked: Annotated[models.FleetDriftRequest, Query()], fleet: Fleet
) -> Response:
    """Return what is not as declared on all hosts, by object and fields, the worst first."""
    found = await fleet.ask(
        lambda connection, _: fleet_drift.find_drift(
            connection,
            severity=asked.severity,
            scope=asked.scope,
            plugin=asked.plugin,
            kind=asked.kind,
        ),
        models.part_as_text("drift", asked.limit, asked.offset),
    )
    return models.respond(found)


@router.get("/compare", response_model=models.COMPARISON)
async def compare_hosts(
    asked: Annotated[models.FleetCompareRequest, Query()], fleet: Fleet
) -> Response:
    """Return in what two hosts differ, the most telling first; `counts` are of all objects."""
    found = await fleet.ask(
        lambda connection, _: fleet_comparison.compare(
            connection, asked.first, asked.second, asked.kind
        ),
        models.lists_cut("kinds", "differences", asked.limit),
    )
    return models.respond(found)


@router.get("/odd", response_model=models.ODD)
async def odd_hosts(asked: Annotated[models.FleetOddRequest, Query()], fleet: Fleet) -> Response:
    """Return the hosts unlike their peers, the oddest first, with the objects that make them so."""
    found = await fleet.ask(
        lambda connection, _: peers.find_odd(connection, asked.scope, asked.limit),
        models.lists_cut("odd", "oddities", asked.objects),
    )
    return models.respond(found)


@router.get("/missing", response_model=models.MISSING)
async def missing_objects(
    asked: Annotated[models.FleetMissingRequest, Query()], fleet: Fleet
) -> Response:
    """Return what most hosts have and one, or any, lacks: what nearly all have first."""
    found = await fleet.ask(
        lambda connection, _: peers.find_missing(connection, asked.scope, asked.of),
        models.part_as_text("missing", asked.limit, asked.offset),
    )
    return models.respond(found)


@router.get("/object", response_model=models.OBJECT)
async def fleet_object(
    asked: Annotated[models.FleetObjectRequest, Query()], fleet: Fleet
) -> Response:
    """Return an object's states on all hosts, that of most hosts first, and where hosts differ."""
    at = read_time("at", asked.at) if asked.at else 0
    found = await fleet.ask(
        lambda connection, _: one_object.show(connection, asked.name, scope=asked.scope, at=at),
        models.part_as_text("states", asked.limit),
    )
    return models.respond(found)
