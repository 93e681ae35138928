"""Requests and answers of the host's routes, from which the OpenAPI file is made."""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, Self, TypeAlias

from fastapi import Response
from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from opdbus.bus import paths
from opdbus.wording.change_lines import describe_origin, group_into_lines, user_name
from opdbus.wording.change_words import describe_cause, describe_difference

Json: TypeAlias = Any
# D-Bus carries no NUL in strings.
_NO_NUL: Final = r"^[^\x00]*$"
# Characters of an unknown name in an error.
_MOST_OF_NAME: Final = 100
Text = Annotated[str, Field(pattern=_NO_NUL, max_length=10_000)]
Limit = Annotated[int, Field(ge=1, le=1000)]
Offset = Annotated[int, Field(ge=0, lt=1 << 32)]
Row = Annotated[int, Field(ge=0, lt=1 << 63)]
Where = Annotated[
    Text,
    Field(
        description="Conditions on fields, joined with commas: `active_state=failed`,"
        " `used_percent>90`."
    ),
]
Note = Annotated[str, Field(description="An answer in words, besides the changes.")]
Level = Literal["info", "notice", "warning", "error"]


class Strict(BaseModel):
    """A model that refuses other names by one error, however many there are."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def refuse_others(cls, given: Json) -> Json:
        """Raise an error for the first name that is not known."""
        if isinstance(given, dict):
            other = next((name for name in given if name not in cls.model_fields), None)
            if other is not None:
                known = ", ".join(cls.model_fields)
                raise PydanticCustomError(
                    "extra_forbidden",
                    "there is no {name}; there are {known}",
                    {"name": repr(other[:_MOST_OF_NAME]), "known": known},
                )
        return given


class Request(Strict):
    """Parameters of a route; others are refused."""

    def given(self, *without: str) -> dict[str, Any]:
        """Return the parameters that have a value, as the bus wants them."""
        values = self.model_dump(exclude=set(without))
        return {name: value for name, value in values.items() if value not in {"", 0, None}}


class OfKind(Request):
    """Conditions on an object's identity and fields."""

    plugin: Annotated[Text, Field(description="Only this plugin, such as `systemd`.")] = ""
    kind: Annotated[Text, Field(description="Only this kind, such as `unit`.")] = ""
    where: Where = ""


class SearchRequest(OfKind):
    """Parameters of `/search`."""

    q: Annotated[Text, Field(description="A question in plain words, or words of the objects.")]
    limit: Limit = 10
    offset: Offset = 0
    mode: Literal["hybrid", "vector", "lexical"] = "hybrid"
    rerank: Annotated[Text, Field(description="The level that orders the best 24.")] = ""
    all: Annotated[bool, Field(description="Weak hits as well.")] = False
    explain: Annotated[bool, Field(description="The reasons for each hit, in `why`.")] = False


class SimilarRequest(OfKind):
    """Parameters of `similar`."""

    limit: Limit = 10
    offset: Offset = 0
    explain: Annotated[bool, Field(description="What both have and what differs, in `alike`.")] = (
        False
    )


class SimilarToRequest(SimilarRequest):
    """Parameters of `/similar`."""

    object: Annotated[
        Text, Field(description="An object: PLUGIN/KIND/NAME, a D-Bus path, or a short name.")
    ]


class AskRequest(Request):
    """Parameters of `/ask`."""

    q: Annotated[Text, Field(description="A question in plain words.")]
    limit: Limit = 10


class ListRequest(OfKind):
    """Parameters of `/objects`."""

    source: Annotated[Text, Field(description="`file`, `live:OBSERVER` or `publish:NAME`.")] = ""
    name: Annotated[Text, Field(description="Only objects of this name.")] = ""
    limit: Limit = 100
    offset: Offset = 0


class DriftRequest(OfKind):
    """Parameters of `/drift`."""

    severity: Annotated[Level | None, Field(description="This one or worse.")] = None
    about: Annotated[Text, Field(description="A question: what it names comes first.")] = ""
    limit: Limit = 100
    offset: Offset = 0


class UnobservedRequest(Request):
    """Parameters of `/unobserved`."""

    names: Annotated[int, Field(ge=1, le=1000, description="Names to give of each kind.")] = 3


class ClustersRequest(OfKind):
    """Parameters of `/clusters`."""

    topic: Annotated[Text, Field(description="One topic: its number, name, or a word.")] = ""
    objects: Annotated[int, Field(ge=1, le=100, description="Objects to give of each.")] = 5
    limit: Limit = 64
    offset: Offset = 0


class MapRequest(OfKind):
    """Parameters of `/map`."""

    since: Annotated[Text, Field(description="Mark what changed from then on.")] = "-24h"
    limit: Annotated[int, Field(ge=1, le=20_000, description="Evenly chosen.")] = 5000
    format: Annotated[
        Literal["json", "svg"], Field(description="Data for a script, or a picture.")
    ] = "json"


class AtRequest(Request):
    """Parameters of `at`."""

    time: Annotated[
        Text, Field(description="`yesterday`, `-2h`, `2026-11-22 03:10`, or microseconds.")
    ]


class ObjectChangesRequest(Request):
    """Parameters of an object's changes."""

    since: Annotated[
        Text, Field(description="`yesterday`, `-2h`, `2026-11-22 03:10`, or microseconds.")
    ] = ""
    until: Annotated[Text, Field(description="The same, exclusive.")] = ""
    after: Annotated[Row, Field(description="Only rows after this one.")] = 0
    below: Annotated[Row, Field(description="Only rows before this one.")] = 0
    order: Literal["newest", "oldest"] = "newest"
    limit: Limit = 100


class ChangesRequest(ObjectChangesRequest, OfKind):
    """Parameters of `/changes`."""

    what: Annotated[Text, Field(description="`appeared`, `changed`, `gone`, `drift`...")] = ""
    cause: Annotated[Text, Field(description="The cause's beginning: `job:4711`, `apt`.")] = ""
    around: Annotated[Text, Field(description="An object and what is connected with it.")] = ""
    about: Annotated[Text, Field(description="A question: what answers it, best first.")] = ""
    before_event: Annotated[
        Text, Field(description="What may have led to this: `nginx failed`.")
    ] = ""
    within: Annotated[Row, Field(description="Microseconds before `before_event`.")] = 0


class StreamRequest(OfKind):
    """Parameters of `/changes/stream`."""

    after: Annotated[
        Row | None, Field(description="Begin after this row; without it, with what comes.")
    ] = None
    what: Annotated[Text, Field(description="`appeared`, `changed`, `gone`, `drift`...")] = ""
    cause: Annotated[Text, Field(description="The cause's beginning: `job:4711`, `apt`.")] = ""
    around: Annotated[Text, Field(description="An object and what is connected with it.")] = ""


class Answer(BaseModel):
    """An answer, or a part of one; keys without a value are left out."""

    model_config = ConfigDict(extra="allow", populate_by_name=True)

    def as_json(self) -> str:
        """Return it as JSON in one line."""
        return self.model_dump_json(by_alias=True, exclude_unset=True)

    def response(self) -> Response:
        """Return it as an HTTP answer."""
        return Response(self.as_json(), media_type="application/json")


class ObjectName(Answer):
    """The identity of an object."""

    path: Annotated[str, Field(description="Its D-Bus path.")]
    plugin: str
    kind: str
    name: str


def identity(path: str) -> dict[str, str]:
    """Return the keys of an object's identity."""
    plugin, kind, name = paths.parse(path)
    return {"path": path, "plugin": plugin, "kind": kind, "name": name}


class Hit(ObjectName):
    """An object that was found, as of State1.Search and State1.Similar."""

    score: Annotated[
        float | None,
        Field(description="From 0 to 1: the measured share of right answers; or the cosine."),
    ]
    source: str = ""
    snippet: str = ""
    weak: bool = False
    verdict: Annotated[str, Field(description="Answer to a question of yes or no.")] = ""
    stage: str = ""
    vector: float | None = None
    lexical: float | None = None
    values: float | None = None
    declared: Annotated[
        dict[str, Json], Field(description="Declared fields that are observed otherwise.")
    ] = {}
    observed: Annotated[dict[str, Json], Field(description="The observed values of these.")] = {}
    why: dict[str, Json] = {}
    alike: dict[str, Json] = {}

    @classmethod
    def of(cls, row: Sequence[Json]) -> Self:
        """Return it from a row of the bus."""
        path, score, details = row
        sides = {
            side: {name: read_json(text) for name, text in details[side].items()}
            for side in ("declared", "observed")
            if side in details
        }
        return cls(**{**details, **sides, **identity(path), "score": score})


class ChangedField(Answer):
    """A field of a change; a side without a value is left out."""

    path: str
    before: Json = None
    after: Json = None


class Change(Answer):
    """A row of history, as of History1.Changes, with its values parsed."""

    seq: Annotated[int, Field(description="The row's number.")]
    at: Annotated[int, Field(description="Microseconds since 1970.")]
    boot: str
    object: Annotated[str, Field(description="The object's D-Bus path.")]
    plugin: str
    kind: str
    name: str
    source: str
    what: Annotated[str, Field(description="appeared, changed, gone, event, drift, healed...")]
    cause: Annotated[str, Field(description="Empty if it is unknown.")]
    fields: list[ChangedField]
    folded: Annotated[int, Field(description="Number of further changes in this row.")] = 0
    moved: float | None = None
    words: Annotated[str, Field(description="The change as `op-dbus changes` prints it.")] = ""
    cause_words: Annotated[str, Field(description="The cause in words; who, if it is known.")] = ""
    sentence: Annotated[str, Field(description="The text that questions are compared with.")] = ""
    severity: str = ""
    score: float | None = None
    count: int = 1
    total: int = 0
    event: int = 0

    @classmethod
    def of(cls, row: Mapping[str, Json]) -> Self:
        """Return it from a row of the bus."""
        (line,) = group_into_lines([row], is_narrow=True)
        cause = describe_cause(row["cause"], user_name)
        if by := row.get("by"):
            cause = f"by {by}"
        elif row.get("believed"):
            # the journal's reader only says who did what
            cause = f"by {row['name']}" if row["kind"] == "user" else ""
        fields = [_changed_field(*each) for each in row["fields"]]
        return cls(**{**row, "fields": fields, "words": str(line), "cause_words": cause})


Event = Annotated[Change | None, Field(description="The change that others may have led to.")]


class DriftedField(Answer):
    """A field that is observed otherwise than declared; a side without a value is left out."""

    path: str
    declared: Json = None
    observed: Json = None
    severity: str
    difference: Annotated[str, Field(description="What differs, if both values are long.")] = ""
    origin: Annotated[str, Field(description="Since when, and who did it, in words.")] = ""
    at: Annotated[
        int, Field(description="When it was changed to that: microseconds since 1970; 0: unknown.")
    ] = 0
    cause: str = ""
    by: Annotated[str, Field(description="Who changed it, and with what; empty: unknown.")] = ""
    as_root: Annotated[
        list[tuple[str, int]], Field(description="Who was root then, and since when.")
    ] = []
    unit: Annotated[str, Field(description="The unit of a port that was closed.")] = ""

    @classmethod
    def of(
        cls,
        path: str,
        severity: str,
        sides: Mapping[str, Json],
        origin: Mapping[str, Json] | None,
    ) -> Self:
        """Return it from its values, and the change that made it differ, if that is known."""
        found = dict(sides)
        if said := describe_difference(path, sides.get("declared"), sides.get("observed")):
            found["difference"] = said
        if origin:
            found |= {key: value for key, value in origin.items() if key in cls.model_fields}
            found["origin"] = describe_origin(origin)
        return cls(path=path, severity=severity, **found)


class Drift(ObjectName):
    """An object that differs from its declaration."""

    class_: Annotated[str, Field(alias="class", description="drift or intended.")]
    severity: str
    since: Annotated[int, Field(description="Seconds since 1970.")]
    distance: Annotated[float | None, Field(description="The cosine distance of the texts.")]
    fields: list[DriftedField]

    @classmethod
    def of(cls, row: Sequence[Json], origins: Mapping[str, Mapping[str, Json]]) -> Self:
        """Return it from a row of the bus, and the changes that made its fields differ."""
        path, class_, severity, since, distance, fields = row
        return cls(
            **identity(path),
            class_=class_,
            severity=severity,
            since=since,
            distance=distance,
            fields=[
                DriftedField.of(name, level, _sides(declared=one, observed=two), origins.get(name))
                for name, one, two, level in fields
            ],
        )


class SearchAnswer(Answer):
    """Hits, best first."""

    hits: list[Hit]


class AskAnswer(Answer):
    """The route of a question, the options that it sets, and what that route answers."""

    route: Literal["objects", "changes", "drift", "status"]
    options: dict[str, Json]
    hits: list[Hit] = []
    changes: list[Change] = []
    note: Note = ""
    event: Event = None
    drifts: list[Drift] = []
    status: dict[str, Json] = {}


class ObjectsAnswer(Answer):
    """One page of objects."""

    total: Annotated[int, Field(description="Number of all that match.")]
    objects: list[ObjectName]


class ObjectAnswer(ObjectName):
    """An object: its declared and its observed fields, or null."""

    source: str
    declared: dict[str, Json] | None
    observed: dict[str, Json] | None
    text: Annotated[str, Field(description="The text that is embedded.")]
    fingerprint: str
    vector_key: str
    distance: float | None = None
    drift: Annotated[str, Field(description="Its worst severity; none; empty if unknown.")] = ""
    updated_at: Annotated[int, Field(description="Seconds since 1970.")] = 0
    failed_at: int = 0
    failed_why: str = ""
    failed_lines: list[str] = []


class PastObject(ObjectName):
    """An object as it was at a time."""

    at: Annotated[int, Field(description="Microseconds since 1970.")]
    source: str
    declared: dict[str, Json] | None
    observed: dict[str, Json] | None


class ChangeLine(Answer):
    """A line of `op-dbus changes`: one change, or many similar ones at the time of the last."""

    at: Annotated[int, Field(description="Microseconds since 1970.")]
    words: str
    rows: Annotated[list[int], Field(description="Numbers of its changes.")]


class ChangesAnswer(Answer):
    """One page of changes."""

    changes: list[Change]
    note: Note = ""
    event: Event = None
    lines: Annotated[
        list[ChangeLine],
        Field(description="The same in words, in the same order; none if they are by meaning."),
    ] = []
    next: Annotated[
        int | None,
        Field(
            description="Row number to give as `below` (with order=oldest: `after`) for the next"
            " page; null if this is the last one, or if the page is by meaning."
        ),
    ]


class DriftAnswer(Answer):
    """One page of drifted objects, the worst first."""

    drifts: list[Drift]
    awaits: Annotated[list[str], Field(description="Reasons why the answer is incomplete.")]


class Unobserved(Answer):
    """Declared objects of a kind that nothing observes."""

    plugin: str
    kind: str
    count: int
    names: list[str]
    why: str


class UnobservedAnswer(Answer):
    """All of them."""

    unobserved: list[Unobserved]


class Typical(ObjectName):
    """An object of a topic, with the cosine to its centre."""

    cosine: float | None


class Cluster(Answer):
    """A topic of objects."""

    name: str
    size: int
    number: int
    words: list[str]
    kinds: Annotated[list[list[Json]], Field(description="plugin, kind and number of objects.")]
    objects: list[Typical]


class ClustersAnswer(Answer):
    """Topics, the largest first."""

    clusters: list[Cluster]


class MapAnswer(Answer):
    """Columns of the drawn objects, and lists of distinct texts that they index."""

    title: str
    about: str
    total: Annotated[int, Field(description="Number of all that match.")]
    waiting: Annotated[int, Field(description="Number of those without a vector.")]
    size: Annotated[list[float], Field(description="Width and height of the used area.")]
    x: Annotated[list[int], Field(description="From 0 to 65535.")]
    y: Annotated[list[int], Field(description="From 0 to 65535.")]
    name: list[str]
    text: list[str]
    kind: Annotated[list[int], Field(description="Index into `kinds` and `colours`.")]
    state: Annotated[list[int], Field(description="Index into `states`.")]
    kinds: Annotated[list[str], Field(description="PLUGIN/KIND.")]
    colours: Annotated[list[int], Field(description="0 to 6, the last for all others.")]
    states: list[str]
    marks: Annotated[
        dict[str, list[str]], Field(description="By object: drifted or changed, and why.")
    ]
    legend: Annotated[list[list[Json]], Field(description="Text, number, colour or mark.")]
    labels: Annotated[list[list[Json]], Field(description="x, y, lines, number of objects.")]


class StatusAnswer(Answer):
    """All properties of the vectorizer and the state, by their names on the bus."""

    State: str
    Count: int
    Observers: Annotated[
        list[list[Json]], Field(description="name, state, number of objects, reason.")
    ]
    Fleet: Annotated[
        str, Field(description="How the fleet's database answers; empty: no fleet is set up.")
    ] = ""


def read_json(text: str) -> Json:
    """Parse a value; lone surrogates, which UTF-8 cannot carry, become question marks."""
    value = json.loads(text)
    if "\\ud" in text.lower():
        value = json.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))
    return value


def _changed_field(path: str, before: str, after: str) -> ChangedField:
    return ChangedField(path=path, **_sides(before=before, after=after))


def _sides(**texts: str) -> dict[str, Json]:
    """Return the sides that have a value, parsed."""
    return {side: read_json(text) for side, text in texts.items() if text}
