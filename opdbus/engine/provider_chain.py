"""Provider fallback: the first requested provider on which a model passes its proof."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import structlog

from opdbus.engine import cpus, gate
from opdbus.engine.host import HERE, Host
from opdbus.engine.proof import Probe, Proof, prove
from opdbus.engine.provider import Placement, Session
from opdbus.engine.providers import candidates, unused_device
from opdbus.engine.remote import known_texts
from opdbus.engine.remote.remote_server import LANES, RemoteServer, Terms
from opdbus.engine.sessions import open_session
from opdbus.errors import (
    ConfigError,
    HardwareMissing,
    ProofFailed,
    ProviderError,
    ServerUnreachable,
)
from opdbus.models import build
from opdbus.platform.token_files import read_token
from opdbus.settings.parsing import AUTO, remote_url

if TYPE_CHECKING:
    from opdbus.config import Config
    from opdbus.engine.provider import Provider
    from opdbus.models.folder import Model

    Open = Callable[[Path, Provider, Placement], Session]
    Wanted = tuple[Provider, gate.Report | None]

log = structlog.get_logger()

# More threads than this do not speed up one text.
_SOLO_THREADS: Final = 4


# It cannot run here, it failed its proof, or it stopped working while it served.
ReasonClass: TypeAlias = Literal["unavailable", "unproven", "lost"]


@dataclass(frozen=True, slots=True)
class Fallback:
    """A requested provider that was not used, and the reason, as a sentence and as a class."""

    provider: str
    reason: str
    reason_class: ReasonClass = "unavailable"


@dataclass(frozen=True, slots=True)
class ProvenSessions:
    """ProvenSessions sessions, one for each device, and the providers that were passed over."""

    sessions: Sequence[Session]
    provider: Provider
    hardware: str
    proof: Proof
    fallbacks: tuple[Fallback, ...]
    placement: Placement
    # size of the weights on disk, about their size in memory
    weight_bytes: int
    # session for a text that comes alone; None: such a text uses the other sessions
    solo: Session | None = None
    # report that decided the precision; None if the provider has only one or a setting decides
    report: gate.Report | None = None
    # true if another precision may be faster that is not graded yet
    is_provisional: bool = False
    # an embedding server in place of sessions
    server: RemoteServer | None = None

    def close(self) -> None:
        """Break the connections to a server, so that no thread waits for it."""
        if self.server:
            self.server.close()


def _read_token(path: Path | None) -> str:
    """Return the bearer token of a file, an empty text without one; raises ProviderError."""
    try:
        return read_token(path) if path else ""
    except ConfigError as error:
        raise ProviderError(f"{error}; OP_DBUS_REMOTE_TOKEN_FILE names it") from None


def require_provider(config: Config, host: Host = HERE) -> None:
    """Raise ProviderError, with every reason, if none of the requested providers can run here.

    No model is opened; a provider that can run may still fail its proof.
    """
    reasons = []
    request = config.execution_provider
    for provider in candidates(request.names, host, config.precision):
        try:
            provider.require(config.gpu_device, host)
        except ProviderError as error:
            if not (request.is_auto and isinstance(error, HardwareMissing)):
                reasons.append(str(error))
        else:
            return
    raise ProviderError("; ".join(reasons))


@dataclass(frozen=True, slots=True)
class Chain:
    """Inputs for trying one provider after the other."""

    model: Model
    config: Config
    opener: Open = open_session
    host: Host = HERE
    # True: grade precisions before serving. False: serve in fp32 if there is no report.
    graded: bool = True

    async def choose(self, lost: Sequence[Fallback] = ()) -> ProvenSessions:
        """Open and prove sessions on the first requested provider that passes.

        Providers in `lost` are tried last. Takes about a second, longer if a graph or a gate report
        must be made. Raises ProviderError with every reason, or ModelError.
        """
        if unused := unused_device(self.config):
            log.warning("device unused", reason=unused)
        gone = {fallback.provider for fallback in lost}
        fallbacks = list(lost)
        kind: type[ProviderError] = ProviderError
        async for provider, report in self._in_order(gone):
            try:
                return await self._try(provider, report, tuple(fallbacks))
            except ProviderError as error:
                request = self.config.execution_provider
                if request.is_auto and isinstance(error, HardwareMissing):
                    continue
                is_unproven = isinstance(error, ProofFailed)
                reason_class: ReasonClass = "unproven" if is_unproven else "unavailable"
                fallbacks.append(Fallback(provider.name, str(error), reason_class))
                if isinstance(error, ServerUnreachable):
                    kind = ServerUnreachable
                log.warning("provider refused", provider=provider.name, reason=str(error))
        raise kind("; ".join(fallback.reason for fallback in fallbacks))

    async def _in_order(self, gone: AbstractSet[str]) -> AsyncIterator[Wanted]:
        """Yield the requested providers, those in `gone` last, each with its gate report or None.

        Among the engines of `cpu`, those that cannot run here come first, so that their reasons are
        recorded; then the gate's choice, then the other graded engines.
        """
        names, precision = self.config.execution_provider.names, self.config.precision
        rows = candidates(names, self.host, precision)
        rows.sort(key=lambda row: row.name in gone)
        engines = [row for row in rows if row.is_cpu and row.name not in gone]
        is_open = "cpu" in names and precision == AUTO and len(engines) > 1
        for row in rows:
            if not is_open or row not in engines:
                yield row, None
            elif row == engines[0]:
                report = await self._report_on(engines)
                graded = report.providers if report else set()
                chosen = report.provider if report else ""
                for engine in sorted(engines, key=lambda e: e.name in graded - {chosen}):
                    yield engine, report if engine.name in graded else None

    async def _report_on(self, engines: Sequence[Provider]) -> gate.Report | None:
        """Return the report on several engines; None if it must wait or fewer than two can run."""
        usable = {}
        for row in engines:
            with suppress(ProviderError):  # it is then tried alone, which reports the reason
                usable[row] = await asyncio.to_thread(
                    row.require, self.config.gpu_device, self.host
                )
        with suppress(ProviderError):
            return await self._report(usable) if len(usable) > 1 else None
        return None

    async def _try(
        self, provider: Provider, report: gate.Report | None, fallbacks: tuple[Fallback, ...]
    ) -> ProvenSessions:
        if provider.is_remote:
            return await self._try_server(provider, fallbacks)
        devices = await asyncio.to_thread(provider.require, self.config.gpu_device, self.host)
        offered = self._offered(provider)
        if len(offered) > 1 and not report:
            report = await self._report({provider: devices})
        is_provisional = len(offered) > 1 and not report
        ungraded = gate.FULL if is_provisional else offered[0]
        precision = report.best(provider.name) if report else ungraded
        built = await build.ensure(self.model, self._graphs, provider.dialects[precision])
        placement = Placement(
            precision=precision,
            threads=self._threads,
            lanes=provider.lanes(self._threads),
            memory_limit=self.config.gpu_mem_limit,
            cache=self._graphs,
            longest=self.model.shape.max_tokens,
            words=(self.model.words, self.model.shape.hidden),
        )
        sessions, proof = await asyncio.to_thread(
            self._proven, built, provider, list(devices), placement
        )
        solo = None
        # an engine that soon makes room for another one needs no more memory
        if not is_provisional:
            solo = await asyncio.to_thread(self._solo, built, provider, placement)
        hardware = ", ".join(devices.values())
        return ProvenSessions(
            sessions,
            provider,
            hardware,
            proof,
            fallbacks,
            placement,
            weight_bytes=built.data.stat().st_size,
            solo=solo,
            report=report,
            is_provisional=is_provisional,
        )

    async def _try_server(
        self, provider: Provider, fallbacks: tuple[Fallback, ...]
    ) -> ProvenSessions:
        """Prove an embedding server with texts whose vectors the numpy reference gives."""
        token = await asyncio.to_thread(_read_token, self.config.remote_token_file)
        known = await known_texts.ensure(self.model, self.config.state_dir / "known-texts")
        terms = Terms(self.model.level, self.model.name, self.config.precision, token)
        server = RemoteServer(remote_url(provider.name), known, terms)
        try:
            proof = await asyncio.to_thread(server.prove)
        except BaseException:
            # also if cancelled: the thread must not wait for the server
            server.close()
            raise
        placement = Placement(precision=proof.precision, lanes=LANES)
        return ProvenSessions(
            (), provider, server.name, proof, fallbacks, placement, 0, server=server
        )

    def _offered(self, provider: Provider) -> tuple[str, ...]:
        """Return the allowed precisions: the one that is set, or all of the provider's."""
        wanted = self.config.precision
        if wanted == AUTO:
            return tuple(provider.dialects)
        if wanted not in provider.dialects:
            known = ", ".join(provider.dialects)
            raise ProviderError(
                f"{provider.name} does not compute in {wanted}, but in {known}; set"
                " OP_DBUS_PRECISION to one of those or to auto"
            )
        return (wanted,)

    async def _report(self, usable: Mapping[Provider, Mapping[int, str]]) -> gate.Report | None:
        """Return the gate's report on all precisions of providers, on their first devices.

        Return None if there is no report yet and `graded` is false.
        """
        first = next(iter(usable))
        index, hardware = next(iter(usable[first].items()))
        place = partial(build.place, self.model, self._graphs)
        candidate = gate.Candidate(
            hardware,
            index,
            self.host.features(),
            {
                row.name: {name: str(place(each).graph) for name, each in row.dialects.items()}
                for row in usable
            },
            str(place(first.dialects[gate.FULL]).proof),
            self._threads,
            self.config.batch_tokens,
        )

        async def prepare() -> None:
            for dialect in dict.fromkeys(each for row in usable for each in row.dialects.values()):
                await build.ensure(self.model, self._graphs, dialect)

        folder = self.config.state_dir / gate.FOLDER
        if not self.graded:
            return await asyncio.to_thread(gate.kept, self.model, candidate, folder)
        return await gate.judge(self.model, candidate, folder, prepare)

    def _proven(
        self, built: build.Built, provider: Provider, devices: Sequence[int], at: Placement
    ) -> tuple[list[Session], Proof]:
        """Open a session on each device and prove them all; blocks."""
        probe = Probe.read(built.proof)
        sessions, proofs = [], []
        for device in devices:
            session = self.opener(built.graph, provider, replace(at, device=device))
            proofs.append(prove(session, provider, at.precision, probe))
            sessions.append(session)
        return sessions, proofs[0]

    def _solo(self, built: build.Built, provider: Provider, at: Placement) -> Session | None:
        """Open and prove the session for single texts; None if the others serve them; blocks."""
        if not provider.has_solo or at.lanes == 1:
            return None
        alone = replace(at, lanes=1, threads=min(at.threads, _SOLO_THREADS))
        return self._proven(built, provider, [0], alone)[0][0]

    @property
    def _threads(self) -> int:
        return self.config.threads or cpus.usable()

    @property
    def _graphs(self) -> Path:
        return self.config.state_dir / "graphs"
