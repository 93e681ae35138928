"""Routes of the host: search, objects, drift, changes and status."""

import asyncio
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, Final
from urllib.parse import unquote

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.routing import APIRoute
from starlette.routing import Match
from starlette.types import Scope

from opdbus.bus import paths
from opdbus.client import Client
from opdbus.gateway import host_models as models
from opdbus.gateway.change_stream import LastEventId, open_stream
from opdbus.gateway.embeddings import Daemon
from opdbus.gateway.http_errors import HttpError
from opdbus.gateway.request_parameters import read_time, resolve
from opdbus.picture import page, svg
from opdbus.picture.host_scene import MapData, make_scene, read_map_data
from opdbus.picture.scene import read_table
from opdbus.wording.change_lines import group_into_lines


class _RawRoute(APIRoute):
    """A route that matches the path as it was sent, so that %2F is a part of a name."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match the escaped path, and decode its parameters."""
        raw = scope["raw_path"].decode("latin-1")
        found, child = super().matches({**scope, "path": raw})
        if found is not Match.NONE:
            try:
                child["path_params"] = {
                    name: unquote(value, errors="strict")
                    for name, value in child["path_params"].items()
                }
            except UnicodeDecodeError:
                raise HttpError(400, "path: it is not UTF-8") from None
        return found, child


# Maps at one time: the layout takes seconds for very many objects, on a thread of its own.
_MOST_MAPS: Final = 4
_maps: Final = asyncio.Semaphore(_MOST_MAPS)
_map_thread: Final = ThreadPoolExecutor(1, "map")
router: Final = APIRouter(tags=["host"])
objects: Final = APIRouter(tags=["objects"], route_class=_RawRoute)


def _path_of_parts(plugin: str, kind: str, name: str) -> str:
    if "\0" in plugin + kind + name:
        raise HttpError(400, "path: a name has no NUL")
    return paths.of(plugin, kind, name)


# The D-Bus path of the object that a request names.
ObjectPath = Annotated[str, Depends(_path_of_parts)]


@router.get("/search", response_model=models.SearchAnswer)
async def search(asked: Annotated[models.SearchRequest, Query()], client: Daemon) -> Response:
    """Return the objects that answer a question, best first."""
    rows = await client.search(asked.q, asked.limit, asked.given("q", "limit"))
    return models.SearchAnswer(hits=[*map(models.Hit.of, rows)]).response()


@router.get("/ask", response_model=models.AskAnswer)
async def ask(asked: Annotated[models.AskRequest, Query()], client: Daemon) -> Response:
    """Answer a question by search, changes, drift or status, as its form asks for."""
    route, options, rows = await client.ask(asked.q, asked.limit)
    answer: dict[str, Any] = {"route": route, "options": options}
    if route == "objects":
        answer["hits"] = [*map(models.Hit.of, rows)]
    elif route == "changes":
        answer |= await _by_meaning(client, rows)
    elif route == "drift":
        answer["drifts"] = await _drifts(client, rows)
    else:
        answer["status"] = rows
    return models.AskAnswer(**answer).response()


@router.get("/objects", response_model=models.ObjectsAnswer)
async def list_objects(asked: Annotated[models.ListRequest, Query()], client: Daemon) -> Response:
    """Return one page of the objects."""
    total, rows = await client.page(asked.given("offset", "limit"), asked.offset, asked.limit)
    listed = [
        models.ObjectName(path=path, plugin=plugin, kind=kind, name=name)
        for path, plugin, kind, name in rows
    ]
    return models.ObjectsAnswer(total=total, objects=listed).response()


@objects.get("/objects/{plugin}/{kind}/{name:path}/similar", response_model=models.SearchAnswer)
async def similar(
    path: ObjectPath, asked: Annotated[models.SimilarRequest, Query()], client: Daemon
) -> Response:
    """Return the objects most similar to one."""
    return await _similar(client, path, asked)


@objects.get("/objects/{plugin}/{kind}/{name:path}/changes", response_model=models.ChangesAnswer)
async def object_changes(
    path: ObjectPath, asked: Annotated[models.ObjectChangesRequest, Query()], client: Daemon
) -> Response:
    """Return one page of an object's changes; it may be gone."""
    return await _changes(client, asked, {"object": path})


@objects.get("/objects/{plugin}/{kind}/{name:path}/at", response_model=models.PastObject)
async def object_at(
    path: ObjectPath, asked: Annotated[models.AtRequest, Query()], client: Daemon
) -> Response:
    """Return an object as it was at a time."""
    at = read_time("time", asked.time)
    found = await client.object_at(path, at)
    return models.PastObject(**{**found, **models.identity(path), "at": at}).response()


@objects.get("/objects/{plugin}/{kind}/{name:path}", response_model=models.ObjectAnswer)
async def show(path: ObjectPath, client: Daemon) -> Response:
    """Return an object, its declared and its observed fields side by side."""
    found = await client.show(path)
    sides: dict[str, Any] = {
        side.lower(): models.read_json(found[side]) if found[side] else None
        for side in ("Declared", "Observed")
    }
    names = {
        "Source": "source",
        "Text": "text",
        "Fingerprint": "fingerprint",
        "VectorKey": "vector_key",
        "Distance": "distance",
        "Drift": "drift",
        "UpdatedAt": "updated_at",
        "FailedAt": "failed_at",
        "FailedWhy": "failed_why",
        "FailedLines": "failed_lines",
    }
    # an object that is too large for properties comes without some of them
    values: dict[str, Any] = {"text": "", "fingerprint": "", "vector_key": ""}
    values |= {own: found[name] for name, own in names.items() if name in found}
    return models.ObjectAnswer(**{**models.identity(path), **sides, **values}).response()


@router.get("/similar", response_model=models.SearchAnswer)
async def similar_to(
    asked: Annotated[models.SimilarToRequest, Query()], client: Daemon
) -> Response:
    """Return the objects most similar to the one of a name."""
    return await _similar(client, await resolve(client, "object", asked.object), asked)


async def _similar(client: Client, path: str, asked: models.SimilarRequest) -> Response:
    rows = await client.similar(path, asked.limit, asked.given("object", "limit"))
    return models.SearchAnswer(hits=[*map(models.Hit.of, rows)]).response()


@router.get("/drift", response_model=models.DriftAnswer)
async def drift(asked: Annotated[models.DriftRequest, Query()], client: Daemon) -> Response:
    """Return the objects that differ from their declaration, the worst first."""
    wanted = asked.given("where", "offset", "limit")
    if asked.where:
        rows = (await _meeting(client, asked, await client.drift(wanted)))[asked.offset :]
    else:
        rows = await client.drift(wanted, asked.limit, asked.offset)
    awaits = (await client.state()).get("DriftAwaits", [])
    drifts = await _drifts(client, rows[: asked.limit])
    return models.DriftAnswer(drifts=drifts, awaits=awaits).response()


async def _drifts(client: Client, rows: Sequence[Sequence[Any]]) -> list[models.Drift]:
    """Return rows of the bus with the changes that made their fields differ."""
    origins = await client.drift_origins([row[0] for row in rows])
    return [*map(models.Drift.of, rows, origins)]


async def _meeting(
    client: Client, asked: models.DriftRequest, drifts: list[list[Any]]
) -> list[list[Any]]:
    """Return the drifted objects that meet the conditions."""
    wanted = asked.given("severity", "about", "offset", "limit")
    meeting = {path for path, *_ in (await client.pages(wanted, 0, None))[1]}
    return [row for row in drifts if row[0] in meeting]


@router.get("/unobserved", response_model=models.UnobservedAnswer)
async def unobserved(
    asked: Annotated[models.UnobservedRequest, Query()], client: Daemon
) -> Response:
    """Return the declared objects that nothing observes, by kind."""
    keys = ("plugin", "kind", "count", "names", "why")
    rows = [
        models.Unobserved(**dict(zip(keys, row, strict=True)))
        for row in await client.unobserved(asked.names)
    ]
    return models.UnobservedAnswer(unobserved=rows).response()


@router.get("/changes", response_model=models.ChangesAnswer)
async def changes(
    request: Request,
    asked: Annotated[models.ChangesRequest, Query()],
    client: Daemon,
    last_event_id: LastEventId = None,
) -> Response:
    """Return one page of changes, the newest first, or the best answers by meaning.

    With `Accept: text/event-stream`, the same as `/changes/stream`.
    """
    if "text/event-stream" in request.headers.get("accept", ""):
        own = asked.model_fields_set & models.StreamRequest.model_fields.keys()
        wanted = models.StreamRequest(**asked.model_dump(include=own))
        return await open_stream(request, wanted, last_event_id)
    more = {"around": await resolve(client, "around", asked.around)} if asked.around else {}
    if not (asked.about or asked.before_event):
        return await _changes(client, asked, more)
    rows = await client.changes_by_meaning({**_changes_filter(asked), **more}, asked.limit)
    return models.ChangesAnswer(**await _by_meaning(client, rows), next=None).response()


async def _by_meaning(client: Client, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return changes that answer a question, and the event that they may have led to."""
    found: dict[str, Any] = {"changes": [*map(models.Change.of, rows)]}
    first = rows[0] if rows else {}
    if note := first.get("note"):
        found["note"] = note
    if event := first.get("event"):
        row = await client.change(event)
        found["event"] = models.Change.of({**row, "event": event}) if row else None
    return found


async def _changes(
    client: Client, asked: models.ObjectChangesRequest, more: dict[str, Any]
) -> Response:
    rows = await client.changes({**_changes_filter(asked), **more}, asked.limit)
    return await asyncio.to_thread(_changes_page, rows, asked)


def _changes_page(rows: list[dict[str, Any]], asked: models.ObjectChangesRequest) -> Response:
    is_full = len(rows) == asked.limit
    # lines are made of the oldest change first
    step = 1 if asked.order == "oldest" else -1
    grouped = [*group_into_lines(rows[::step], is_cut=is_full and step < 0)]
    lines = [
        models.ChangeLine(at=line.at, words=str(line), rows=[change["seq"] for change in line.of])
        for line in grouped[::step]
    ]
    return models.ChangesAnswer(
        changes=[*map(models.Change.of, rows)],
        lines=lines,
        next=rows[-1]["seq"] if is_full else None,
    ).response()


def _changes_filter(asked: models.ObjectChangesRequest) -> dict[str, Any]:
    """Return the filter of History1.Changes."""
    found = asked.given("limit", "since", "until", "around")
    for name, given, own in (("since", asked.since, "since"), ("until", asked.until, "before")):
        if given:
            found[own] = read_time(name, given)
    return found


@router.get("/clusters", response_model=models.ClustersAnswer)
async def clusters(asked: Annotated[models.ClustersRequest, Query()], client: Daemon) -> Response:
    """Return topics of the objects, the largest first."""
    rows = await client.clusters(asked.limit, asked.given("limit"))
    found = [_cluster(name, size, details) for name, size, details in rows]
    return models.ClustersAnswer(clusters=found).response()


def _cluster(name: str, size: int, details: dict[str, Any]) -> models.Cluster:
    typical = [
        models.Typical(**models.identity(path), cosine=cosine)
        for path, cosine in details["objects"]
    ]
    return models.Cluster(name=name, size=size, **{**details, "objects": typical})


@router.get(
    "/map",
    response_model=models.MapAnswer,
    responses={200: {"content": {"image/svg+xml": {"schema": {"type": "string"}}}}},
)
async def map_(asked: Annotated[models.MapRequest, Query()], client: Daemon) -> Response:
    """Return all objects as a map on which near means alike, for a script or as a picture."""
    since = read_time("since", asked.since)
    if _maps.locked():
        raise HttpError(503, f"{_MOST_MAPS} maps are being drawn: ask again later")
    async with _maps:
        wanted = asked.given("since", "limit", "format")
        known = await read_map_data(client, wanted, asked.limit, since)
        drawing = asyncio.get_running_loop().run_in_executor(
            _map_thread, _draw, known, asked.format
        )
        content, media_type = await drawing
    return Response(content, media_type=media_type)


def _draw(known: MapData, form: str) -> tuple[str, str]:
    """Return the map's content and its media type; closes the file."""
    with known.vectors:
        table = read_table(known.vectors)
    if not table.rows:
        raise HttpError(404, table.why_empty)
    scene = make_scene(known, table)
    if form == "svg":
        return svg.draw(scene), "image/svg+xml"
    about = {"title": scene.title, "about": scene.about}
    counts = {"total": table.total, "waiting": table.waiting}
    return json.dumps({**about, **counts, **page.script_data(scene)}), "application/json"


@router.get("/status", response_model=models.StatusAnswer)
async def status(request: Request, client: Daemon) -> Response:
    """Return what is served, by what, and what observes the host."""
    fleet = request.app.state.fleet
    known = {**await client.status(), "Fleet": fleet.state if fleet else ""}
    return models.StatusAnswer(**known).response()
