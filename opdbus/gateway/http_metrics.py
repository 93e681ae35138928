"""Metrics over HTTP: the daemon's and the gateway's own, in Prometheus' text or OpenMetrics."""

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Scope

from opdbus.errors import OpDbusError
from opdbus.gateway.daemon_link import DaemonLink

# Of a daemon that does not answer for so long, the metrics are as of one that is down.
_DAEMON_SECONDS: Final = 8.0
_SECONDS: Final = tuple(0.0005 * 4**step for step in range(9))
_TRACE: Final = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
_GATEWAY: Final = "opdbus_gateway_"
# Routes whose responses last as long as their clients stay: their time says nothing.
_STREAM: Final = b"text/event-stream"


class Counters:
    """The gateway's own metrics; names of objects and clients are in no label."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        labels = ("listener", "route", "status")
        self._requests = Counter(
            f"{_GATEWAY}requests", "HTTP requests answered", labels, registry=self.registry
        )
        self._seconds = Histogram(
            f"{_GATEWAY}request_duration_seconds",
            "Time from a request's headers to the end of its response, streams left out",
            ("route",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._running = Gauge(
            f"{_GATEWAY}requests_in_flight",
            "HTTP requests that are running",
            ("listener",),
            registry=self.registry,
        )
        self._streams = Gauge(
            f"{_GATEWAY}streams", "Open streams of server-sent events", registry=self.registry
        )
        self.last_fault = ""
        self.on_fault: Callable[[], None] = _ignore

    @contextmanager
    def watch(self, listener: str, scope: Scope) -> Iterator[Callable[[Message], None]]:
        """Count a request; the yielded function gets the start of its response."""
        began = time.perf_counter()
        status, is_stream = 499, False

        def on_response(start: Message) -> None:
            nonlocal status, is_stream
            status = start["status"]
            headers = dict(start.get("headers", ()))
            if not is_stream and headers.get(b"content-type", b"").startswith(_STREAM):
                is_stream = True
                self._streams.inc()

        self._running.labels(listener).inc()
        try:
            yield on_response
        finally:
            self._running.labels(listener).dec()
            route = _route(scope)
            self._requests.labels(listener, route, str(status)).inc()
            if is_stream:
                self._streams.dec()
            else:
                spent = time.perf_counter() - began
                self._seconds.labels(route).observe(spent, _exemplar(scope))
            # others are not faults of the gateway, such as a model that loads
            if status == 500:
                self.last_fault = f"{scope['method']} {route} was answered {status}"
                self.on_fault()

    def count_connections(self, count: Callable[[], int]) -> None:
        """Add the number of open connections."""
        gauge = Gauge(f"{_GATEWAY}connections", "Open connections", registry=self.registry)
        gauge.set_function(count)


def _ignore() -> None:
    """Report no fault."""


def metrics_app(link: DaemonLink, counters: Counters) -> Starlette:
    """Return the application of the socket for metrics."""

    async def answer(request: Request) -> Response:
        encode, kind = choose_encoder(request.headers.get("accept", ""))
        families = await _ask_daemon(link)
        return Response(encode(_Both(families, counters.registry)), media_type=kind)

    return Starlette(routes=[Route("/metrics", answer)])


class _Both(Collector):
    """The daemon's metrics and the gateway's, as one collector."""

    def __init__(self, families: Iterable[Metric], own: CollectorRegistry) -> None:
        self._families = families
        self._own = own

    def collect(self) -> Iterator[Metric]:
        yield from self._families
        yield from self._own.collect()


async def _ask_daemon(link: DaemonLink) -> list[Metric]:
    """Return the daemon's metrics; of one that does not answer, that it is down."""
    text = ""
    try:
        async with asyncio.timeout(_DAEMON_SECONDS):
            text = await (await link.client()).metrics()
    except (OpDbusError, TimeoutError):
        pass
    up = GaugeMetricFamily("opdbus_up", "1 if the daemon answers", float(bool(text)))
    return [up, *text_string_to_metric_families(text)]


def _route(scope: Scope) -> str:
    """Return the pattern of the route that answered; other paths are one label."""
    return str(getattr(scope.get("route"), "path", "other"))


def _exemplar(scope: Scope) -> dict[str, str] | None:
    """Return the trace of a request that a tracing client sent; see W3C's Trace Context."""
    found = _TRACE.fullmatch(dict(scope["headers"]).get(b"traceparent", b""))
    return {"trace_id": found[1].decode()} if found else None
