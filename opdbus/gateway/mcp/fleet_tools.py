"""Tools about all hosts of a fleet: each is a question of `op-dbus fleet`."""

from typing import Annotated, Final

from pydantic import Field

from opdbus.errors import InvalidArgs
from opdbus.fleet import host_overview
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
from opdbus.gateway.mcp.host_text import clean, mark, shorten
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
        if at:
            then = timestamps.moment_here(at)
            past = await self._fleet.ask(
                lambda connection, _: past_search.search_past(
                    connection, question, then, where=met, scope=scope, limit=offset + limit
                )
            )
            rows = [fleet_rows.past_row(h.object_id, str(h.where), h.text) for h in past.hits]
            missing = ", ".join(past.not_reaching)
            lack = f"the history of these does not go back so far: {missing}" if missing else ""
            note = fleet_rows.describe_hosts(past.hosts, shorten(lack))
            return make_page(rows[offset:], note, offset, limit, past.total)
        found = await self._fleet.ask(
            lambda connection, embed: fleet_search.search(
                connection, question, embed=embed, where=met, scope=scope, limit=limit,
                offset=offset,
            )
        )  # fmt: skip
        spelt = [clean(f"{asked} was looked for as {meant}") for asked, meant in found.corrected]
        none = "" if found.hits else "nothing fits on these hosts"
        note = fleet_rows.describe_hosts(
            found.hosts, *found.notes, mark(spelt) if spelt else "", none
        )
        rows = [fleet_rows.object_row(hit.found) for hit in found.hits]
        return make_page(rows, note, offset, limit, found.total)

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
        found = await self._fleet.ask(
            lambda connection, _: one_object.show(
                connection, object, scope=_scope(host, tag), at=then
            )
        )
        others = clean(one_object.name_others(found))
        note = fleet_rows.describe_hosts(found.hosts, mark([shorten(others)]) if others else "")
        rows = [*fleet_rows.state_rows(found)]
        return make_page(rows[offset:], note, offset, len(rows), len(rows))

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

        async def read(connection, _embed):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
            changed = await fleet_scope.hosts_changed_since(
                connection, changed_since, _scope(host, tag)
            )
            return changed, await host_overview.list_hosts(connection)

        changed, hosts = await self._fleet.ask(read)
        names = set(changed.hosts)
        rows = [fleet_rows.host_row(each) for each in hosts if each.name in names]
        note = f'hosts that change from now on: `fleet_hosts` with changed_since "{changed.cursor}"'
        return make_page(rows[offset:], note, offset, limit, len(rows))

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
        found = await self._fleet.ask(
            lambda connection, embed: fleet_changes.find_changes(
                connection,
                about=about,
                between=fleet_changes.Between(first, last),
                scope=_scope(host, tag),
                plugin=plugin,
                kind=kind,
                limit=min(offset + limit, _MOST_CHANGES),
                embed=embed if about else None,
            )
        )
        groups = found.changes if about else found.changes[::-1]
        none = "" if groups else "no change answers this" if about else "nothing is known to change"
        listed = (
            f"besides, {found.listed:,} objects were listed for the first time"
            if found.listed
            else ""
        )
        cut = "older changes were not read: give `since`" if found.is_cut else ""
        note = fleet_rows.describe_hosts(found.hosts, none, listed, cut)
        rows = [fleet_rows.change_group_row(each) for each in groups[offset:]]
        return make_page(rows, note, offset, limit, min(found.total, _MOST_CHANGES))

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
        found = await self._fleet.ask(
            lambda connection, _: fleet_drift.find_drift(
                connection, severity=severity, scope=_scope(host, tag), plugin=plugin, kind=kind
            )
        )
        rows = [fleet_rows.drift_group_row(each) for each in found.drift]
        drifted = f"{len(found.drifted):,} hosts drifted" if rows else "no host drifted"
        note = fleet_rows.describe_hosts(found.hosts, drifted)
        return make_page(rows[offset:], note, offset, limit, len(rows))

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
        found = await self._fleet.ask(
            lambda connection, _: fleet_comparison.compare(
                connection, first, second, [kind] if kind else []
            )
        )
        rows = [*fleet_rows.difference_rows(found)]
        counts = (
            f"{len(rows):,} objects differ, {found.equal:,} are equal, {found.identities:,} differ"
            " in identities only; values are those of the first host / of the second"
        )
        note = fleet_rows.describe_hosts(found.hosts, counts)
        return make_page(rows[offset:], note, offset, limit, len(rows))

    async def fleet_odd(
        self, tag: Tag = "", host: Host = "", limit: Limit = 5, cursor: str = ""
    ) -> Result:
        """Rank hosts by how unlike their peers they are, with the objects that make them so."""
        offset = read_offset(cursor)
        found = await self._fleet.ask(
            lambda connection, _: peers.find_odd(connection, _scope(host, tag), offset + limit + 1)
        )
        said = f"{found.standing_out:,} stand out; the median host has {found.usual:.0f} bits"
        note = fleet_rows.describe_hosts(found.hosts, said)
        rows = [fleet_rows.odd_row(each) for each in found.odd]
        return make_page(rows[offset:], note, offset, limit)

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
        found = await self._fleet.ask(
            lambda connection, _: peers.find_missing(connection, _scope(host, tag), of)
        )
        rows = [fleet_rows.past_row(each.object_id, str(each.where), "") for each in found.missing]
        none = "" if rows else "nothing that most hosts have is missing"
        note = fleet_rows.describe_hosts(found.hosts, none)
        return make_page(rows[offset:], note, offset, limit, len(rows))


def _scope(host: str, tag: str) -> Scope:
    return Scope((host,) if host else (), (tag,) if tag else ())
