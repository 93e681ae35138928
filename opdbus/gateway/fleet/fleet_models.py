"""Requests and answers of the fleet's routes, from which the OpenAPI file is made."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, Final

from fastapi import Response
from pydantic import Field

from opdbus.errors import LimitsExceeded
from opdbus.fleet.host_overview import HostOverview
from opdbus.fleet.questions.fleet_changes import ChangesAnswer
from opdbus.fleet.questions.fleet_comparison import ComparisonAnswer
from opdbus.fleet.questions.fleet_drift import DriftAnswer
from opdbus.fleet.questions.fleet_scope import Scope
from opdbus.fleet.questions.fleet_search import SearchAnswer
from opdbus.fleet.questions.one_object import ObjectAnswer
from opdbus.fleet.questions.past_search import PastAnswer
from opdbus.fleet.questions.peers import MissingAnswer, OddAnswer
from opdbus.fleet.questions.plain_values import plain
from opdbus.gateway.fleet.answer_schemas import schema_of
from opdbus.gateway.host_models import Answer, Level, Limit, Offset, Request, Text, Where

MOST_CHARACTERS: Final = 32 << 20
# Names of hosts, tags or kinds that a question may give.
_MOST_NAMES: Final = 100
_TIME: Final = "`yesterday`, `-2h`, `2026-11-22 03:10`, or microseconds."
_Time = Annotated[Text, Field(description=_TIME)]
_Texts = Annotated[tuple[Text, ...], Field(max_length=_MOST_NAMES)]
_Host = Annotated[Text, Field(description="The name of a host.")]


class FleetRequest(Request):
    """The hosts that a question is about."""

    host: Annotated[_Texts, Field(description="Only hosts of this name, with *; repeatable.")] = ()
    tag: Annotated[_Texts, Field(description="Only hosts with this tag; repeatable.")] = ()

    @property
    def scope(self) -> Scope:
        """The hosts, as a question takes them."""
        return Scope(self.host, self.tag)


class FleetSearchRequest(FleetRequest):
    """Parameters of `/fleet/search`."""

    q: Annotated[
        Text,
        Field(description="A question in plain words, with `host:`, `tag:` and conditions too."),
    ]
    where: Where = ""
    at: Annotated[Text, Field(description=f"Search in what was then: {_TIME}")] = ""
    limit: Limit = 10
    offset: Offset = 0


class FleetHostsRequest(FleetRequest):
    """Parameters of `/fleet/hosts`."""

    changed_since: Annotated[
        Text, Field(description="Only hosts that changed since an answer with this `cursor`.")
    ] = ""


class FleetChangesRequest(FleetRequest):
    """Parameters of `/fleet/changes`."""

    about: Annotated[Text, Field(description="A question: what answers it, best first.")] = ""
    since: _Time = ""
    until: Annotated[Text, Field(description="The same, exclusive.")] = ""
    plugin: Text = ""
    kind: Text = ""
    limit: Limit = 50


class FleetDriftRequest(FleetRequest):
    """Parameters of `/fleet/drift`."""

    severity: Annotated[Level, Field(description="This one or worse.")] = "info"
    plugin: Text = ""
    kind: Text = ""
    limit: Limit = 50
    offset: Offset = 0


class FleetCompareRequest(Request):
    """Parameters of `/fleet/compare`."""

    first: _Host
    second: _Host
    kind: Annotated[_Texts, Field(description="Only this kind or plugin; repeatable.")] = ()
    limit: Annotated[int, Field(ge=1, le=1000, description="Objects of each kind.")] = 50


class FleetOddRequest(FleetRequest):
    """Parameters of `/fleet/odd`."""

    limit: Annotated[int, Field(ge=1, le=1000, description="Hosts.")] = 10
    objects: Annotated[int, Field(ge=1, le=1000, description="Objects of each host.")] = 10


class FleetMissingRequest(FleetRequest):
    """Parameters of `/fleet/missing`."""

    of: Annotated[Text, Field(description="What this host lacks; otherwise, any host.")] = ""
    limit: Limit = 50
    offset: Offset = 0


class FleetObjectRequest(FleetRequest):
    """Parameters of `/fleet/object`."""

    name: Annotated[Text, Field(description="PLUGIN/KIND/NAME, or a name such as `nginx`.")]
    at: Annotated[Text, Field(description=f"As it was then: {_TIME}")] = ""
    limit: Annotated[int, Field(ge=1, le=1000, description="Different states.")] = 20


HOST = schema_of(HostOverview, findings=list[str])


class FleetHostsAnswer(Answer):
    """The hosts: silent ones first, then those with findings, each by name."""

    hosts: list[HOST]  # type: ignore[valid-type]
    cursor: Annotated[str, Field(description="To ask later for what changed: `changed_since`.")]


SEARCH = schema_of(SearchAnswer)
PAST = schema_of(PastAnswer)
CHANGES = schema_of(ChangesAnswer)
COMPARISON = schema_of(ComparisonAnswer)
ODD = schema_of(OddAnswer)
DRIFT = schema_of(DriftAnswer, total=int)
MISSING = schema_of(MissingAnswer, total=int)
OBJECT = schema_of(ObjectAnswer, total=int)


def as_text(value: object, **more: Any) -> str:  # noqa: ANN401 -- JSON
    """Return an answer as JSON, with further keys; raises LimitsExceeded if it is too large."""
    content = json.dumps({**plain(value), **more}, ensure_ascii=False, separators=(",", ":"))
    if len(content) > MOST_CHARACTERS:
        raise LimitsExceeded(
            f"the answer has {len(content):,} characters, of at most {MOST_CHARACTERS:,}: ask for"
            " less by `limit`, `host` or `tag`"
        )
    return content


def part_as_text(of: str, limit: int, offset: int = 0) -> Callable[[Any], str]:
    """Return what makes JSON of an answer with some rows of a field; all count in `total`."""

    def convert(value: Any) -> str:  # noqa: ANN401 -- any of the answers
        rows = getattr(value, of)
        return as_text(replace(value, **{of: rows[offset : offset + limit]}), total=len(rows))

    return convert


def lists_cut(of: str, key: str, most: int) -> Callable[[object], str]:
    """Return what makes JSON of an answer whose rows `of` have lists `key`, cut to a length."""

    def convert(value: object) -> str:
        whole = plain(value)
        for each in whole[of]:
            del each[key][most:]
        return as_text(whole)

    return convert


def respond(content: str) -> Response:
    """Return JSON over HTTP."""
    return Response(content, media_type="application/json")
