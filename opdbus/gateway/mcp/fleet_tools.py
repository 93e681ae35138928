"""Tools about all hosts of a fleet: each is a question of `op-dbus fleet`."""

from typing import Annotated, Final

from mcp.types import CallToolResult
from pydantic import Field

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
from opdbus.fleet.questions.fleet_scope import Scope
from opdbus.gateway.fleet.fleet_link import FleetLink
from opdbus.gateway.mcp import fleet_rows
from opdbus.gateway.mcp.change_tools import Time
from opdbus.gateway.mcp.object_tools import Conditions, Limit
from opdbus.gateway.mcp.tool_answers import Result, make_page
from opdbus.gateway.mcp.tool_arguments import read_offset
from opdbus.platform import timestamps
from opdbus.state import conditions

Host = Annotated[str, Field(description="only hosts of this name: web*")]
Tag = Annotated[str, Field(description="only hosts with this tag")]
# Groups of changes that are read at most.
_MOST_CHANGES: Final = 1000


class FleetTools:
    """Questions over all hosts, each a tool: its docstring is its description."""

    def __init__(self, fleet: FleetLink) -> None:
        self._fleet = fleet

    async def fleet_ask(
        self,
        question: str,
        where: Conditions = "",
        host: Host = "",
        tag: Tag = "",
        at: Time = "",
        limit: Limit = 8,
        cursor: str = "",
    ) -> Result:
        """Find objects on all hosts in plain words: each with the hosts that have it."""
        offset, met, scope = read_offset(cursor), conditions.parse(where), _scope(host, tag)

        def answer_past(past: past_search.PastAnswer) -> CallToolResult:
            rows = [
                fleet_rows.where_row(hit.object_id, str(hit.where), hit.text)
                for hit in past.hits[offset:]
            ]
            names = ", ".join(past.not_reaching)
            lack = (
                f"the history of these does not go back so far, or is not all sent: {names}"
                if names
                else ""
            )
            note = fleet_rows.describe_hosts(past.hosts, lack)
            return make_page(rows, note, offset, limit, past.total)

        def answer(found: fleet_search.SearchAnswer) -> CallToolResult:
            spelt = (f"{asked} was looked for as {meant}" for asked, meant in found.corrected)
            none = "" if found.hits else "nothing fits on these hosts"
            said = (*found.notes, found.verdict, *spelt)
            note = fleet_rows.describe_hosts(found.hosts, none, quoted=said)
            rows = [fleet_rows.object_row(hit.found, hit.confidence) for hit in found.hits]
            return make_page(rows, note, offset, limit, found.total)

        if at:
            then = timestamps.moment_here(at)
            return await self._fleet.ask(
                lambda connection, _: past_search.search_past(
                    connection, question, then, where=met, scope=scope, limit=offset + limit
                ),
                answer_past,
            )
        window = {"limit": limit, "offset": offset}
        return await self._fleet.ask(
            lambda connection, embed: fleet_search.search(
                connection, question, embed=embed, where=met, scope=scope, **window
            ),
            answer,
        )

    async def fleet_show(
        self,
        object: Annotated[str, Field(description="plugin/kind/name, or short: nginx")],  # noqa: A002 -- the argument's name
        at: Time = "",
        host: Host = "",
        tag: Tag = "",
        cursor: str = "",
    ) -> Result:
        """Show an object on all hosts: who has it, in what hosts differ, the state of most."""
        offset, then = read_offset(cursor), timestamps.moment_here(at) if at else 0

        def answer(found: one_object.ObjectAnswer) -> CallToolResult:
            rows = [*fleet_rows.state_rows(found)]
            note = fleet_rows.describe_hosts(found.hosts, quoted=[one_object.name_others(found)])
            return make_page(rows[offset:], note, offset, len(rows), len(rows))

        return await self._fleet.ask(
            lambda connection, _: one_object.show(
                connection, object, scope=_scope(host, tag), at=then
            ),
            answer,
        )

    async def fleet_hosts(
        self,
        host: Host = "",
        tag: Tag = "",
        changed_since: Annotated[str, Field(description="the token of a note before")] = "",
        limit: Limit = 20,
        cursor: str = "",
    ) -> Result:
        """List hosts with ages, counts and faults; silent ones first."""
        offset = read_offset(cursor)

        def answer(found: fleet_scope.ListedHosts) -> CallToolResult:
            rows = [fleet_rows.host_row(each) for each in found.hosts[offset : offset + limit]]
            note = f'who changes from now on: `fleet_hosts` with changed_since "{found.cursor}"'
            return make_page(rows, note, offset, limit, len(found.hosts))

        return await self._fleet.ask(
            lambda connection, _: fleet_scope.list_changed_hosts(
                connection, changed_since, _scope(host, tag)
            ),
            answer,
        )

    async def fleet_changes(
        self,
        about: Annotated[str, Field(description="by meaning: name resolution")] = "",
        since: Time = "",
        before: Time = "",
        host: Host = "",
        tag: Tag = "",
        plugin: str = "",
        kind: str = "",
        limit: Limit = 10,
        cursor: str = "",
    ) -> Result:
        """List what changed on all hosts, the newest first; one change on many hosts is a row."""
        offset = read_offset(cursor)
        first, last = (timestamps.moment_here(text) if text else 0 for text in (since, before))
        if last and last < first:
            raise InvalidArgs("before: it is earlier than since")

        def answer(found: fleet_changes.ChangesAnswer) -> CallToolResult:
            groups = found.changes if about else found.changes[::-1]
            none = "" if groups else "nothing is known that answers this"
            new = found.listed
            listed = f"besides, {new:,} objects were listed for the first time" if new else ""
            cut = "older changes were not read: give `since`" if found.is_cut else ""
            note = fleet_rows.describe_hosts(found.hosts, none, listed, cut)
            rows = [fleet_rows.change_group_row(each) for each in groups[offset:]]
            return make_page(rows, note, offset, limit, min(found.total, _MOST_CHANGES))

        return await self._fleet.ask(
            lambda connection, embed: fleet_changes.find_changes(
                connection,
                about=about,
                between=fleet_changes.Between(first, last),
                scope=_scope(host, tag),
                plugin=plugin,
                kind=kind,
                limit=min(offset + limit, _MOST_CHANGES),
                embed=embed if about else None,
            ),
            answer,
        )

    async def fleet_drift(
        self,
        severity: Annotated[str, Field(description="least: info, notice, warning, error")] = "info",
        plugin: str = "",
        kind: str = "",
        host: Host = "",
        tag: Tag = "",
        limit: Limit = 10,
        cursor: str = "",
    ) -> Result:
        """List what is other than declared on all hosts, the worst first."""
        offset = read_offset(cursor)

        def answer(found: fleet_drift.DriftAnswer) -> CallToolResult:
            shown = found.drift[offset : offset + limit]
            drifted = f"{len(found.drifted):,} hosts drifted" if found.drift else "no host drifted"
            note = fleet_rows.describe_hosts(found.hosts, drifted)
            rows = [fleet_rows.drift_group_row(each) for each in shown]
            return make_page(rows, note, offset, limit, len(found.drift))

        return await self._fleet.ask(
            lambda connection, _: fleet_drift.find_drift(
                connection, severity=severity, scope=_scope(host, tag), plugin=plugin, kind=kind
            ),
            answer,
        )

    async def fleet_compare(
        self,
        first: str,
        second: str,
        kind: Annotated[str, Field(description="only this kind or plugin")] = "",
        limit: Limit = 20,
        cursor: str = "",
    ) -> Result:
        """Compare two hosts, the most telling first, without what always differs."""
        offset = read_offset(cursor)

        def answer(found: fleet_comparison.ComparisonAnswer) -> CallToolResult:
            differences = [each for group in found.kinds for each in group.differences]
            counts = (
                f"{len(differences):,} objects differ, {found.equal:,} are equal,"
                f" {found.identities:,} differ in identities only; values: {found.first} /"
                f" {found.second}"
            )
            shown = differences[offset : offset + limit]
            rows = [fleet_rows.difference_row(each, found) for each in shown]
            note = fleet_rows.describe_hosts(found.hosts, counts)
            return make_page(rows, note, offset, limit, len(differences))

        return await self._fleet.ask(
            lambda connection, _: fleet_comparison.compare(
                connection, first, second, [kind] if kind else []
            ),
            answer,
        )

    async def fleet_odd(
        self, tag: Tag = "", host: Host = "", limit: Limit = 5, cursor: str = ""
    ) -> Result:
        """Rank hosts by how unlike their peers they are, with the objects that make them so."""
        offset = read_offset(cursor)

        def answer(found: peers.OddAnswer) -> CallToolResult:
            said = f"{found.standing_out:,} stand out; the median host has {found.usual:.0f} bits"
            note = fleet_rows.describe_hosts(found.hosts, said)
            rows = [fleet_rows.odd_row(each) for each in found.odd[offset:]]
            return make_page(rows, note, offset, limit)

        return await self._fleet.ask(
            lambda connection, _: peers.find_odd(connection, _scope(host, tag), offset + limit + 1),
            answer,
        )

    async def fleet_missing(
        self,
        of: Annotated[str, Field(description="the host that lacks it; else any")] = "",
        tag: Tag = "",
        host: Host = "",
        limit: Limit = 20,
        cursor: str = "",
    ) -> Result:
        """List what most hosts have and one, or any, lacks."""
        offset = read_offset(cursor)

        def answer(found: peers.MissingAnswer) -> CallToolResult:
            shown = found.missing[offset : offset + limit]
            rows = [fleet_rows.where_row(each.object_id, str(each.where)) for each in shown]
            none = "" if found.missing else "nothing that most hosts have is missing"
            note = fleet_rows.describe_hosts(found.hosts, none)
            return make_page(rows, note, offset, limit, len(found.missing))

        return await self._fleet.ask(
            lambda connection, _: peers.find_missing(connection, _scope(host, tag), of), answer
        )


def _scope(host: str, tag: str) -> Scope:
    return Scope((host,) if host else (), (tag,) if tag else ())
