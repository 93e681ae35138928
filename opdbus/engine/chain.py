"""The chain: the first provider of a request on which a model can be proven, and why not before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from opdbus.engine import cpus, gate
from opdbus.engine.host import HERE, Host
from opdbus.engine.proof import Probe, Proof, prove
from opdbus.engine.providers import candidates
from opdbus.engine.runtimes import open_session
from opdbus.engine.session import Placement, Session
from opdbus.errors import ProviderError
from opdbus.models import build

if TYPE_CHECKING:
    from opdbus.config import Config
    from opdbus.engine.provider import Provider
    from opdbus.models.folder import Model

    Open = Callable[[Path, Provider, Placement], Session]

log = structlog.get_logger()

# Past this many, more runs at once only share caches and memory, and each single text is slower.
_MOST_CPU_LANES: Final = 8
# More threads than this have little to share in one text.
_SOLO_THREADS: Final = 4
# While one run computes, another's ids and vectors travel.
_DEVICE_LANES: Final = 2


@dataclass(frozen=True, slots=True)
class Fallback:
    """A provider that was asked for and not used, and why."""

    provider: str
    reason: str


@dataclass(frozen=True, slots=True)
class Proven:
    """Sessions that passed their proof, one a device, and what was passed over for them."""

    sessions: Sequence[Session]
    provider: Provider
    hardware: str
    proof: Proof
    fallbacks: tuple[Fallback, ...]
    placement: Placement
    # what the weights take on the disk, and about what they take in memory
    weight_bytes: int
    # what a text that comes alone runs on; None: on the others
    solo: Session | None = None
    # what the precision was chosen by; None where the provider has only one, or a setting chose
    report: gate.Report | None = None


def require_provider(config: Config, host: Host = HERE) -> None:
    """Raise ProviderError, with every reason, where none of the wanted providers can run here.

    No model is opened, so one that can run may still be refused by its proof.
    """
    reasons = []
    for provider in candidates(config.execution_provider.names, host):
        try:
            provider.require(config.gpu_device, host)
        except ProviderError as error:
            reasons.append(str(error))
        else:
            return
    raise ProviderError("; ".join(reasons))


@dataclass(frozen=True, slots=True)
class Chain:
    """What is needed to try one provider after the other."""

    model: Model
    config: Config
    opener: Open = open_session
    host: Host = HERE

    async def choose(self, lost: Sequence[Fallback] = ()) -> Proven:
        """Open and prove sessions on the first of the wanted providers that can be had.

        Those that were `lost` come last: they may be all that there is. Takes about a second, and
        some more where a graph or a gate's report is not yet kept.
        Raises ProviderError with every reason, ModelError.
        """
        rows = candidates(self.config.execution_provider.names, self.host)
        gone = {fallback.provider for fallback in lost}
        fallbacks = list(lost)
        for provider in sorted(rows, key=lambda row: row.name in gone):
            try:
                return await self._try(provider, tuple(fallbacks))
            except ProviderError as error:
                fallbacks.append(Fallback(provider.name, str(error)))
                log.warning("provider refused", provider=provider.name, reason=str(error))
        raise ProviderError("; ".join(fallback.reason for fallback in fallbacks))

    async def _try(self, provider: Provider, fallbacks: tuple[Fallback, ...]) -> Proven:
        wanted = self.config.gpu_device
        devices = await asyncio.to_thread(provider.require, wanted, self.host)
        offered = self._offered(provider)
        report = await self._report(provider, devices, offered) if len(offered) > 1 else None
        precision = report.chosen if report else offered[0]
        built = await build.ensure(self.model, self._graphs, provider.dialects[precision])
        placement = self._placement(provider, precision)
        sessions, proof = await asyncio.to_thread(
            self._proven, built, provider, list(devices), placement
        )
        solo = await asyncio.to_thread(self._solo, built, provider, placement)
        hardware = ", ".join(devices.values())
        size = built.data.stat().st_size
        return Proven(sessions, provider, hardware, proof, fallbacks, placement, size, solo, report)

    def _offered(self, provider: Provider) -> tuple[str, ...]:
        """Give the precisions that may be used, the one that a setting names or all."""
        wanted = self.config.precision
        if wanted == "auto":
            fast = provider.precisions(self.host)
            return tuple(name for name in provider.dialects if name in fast)
        if wanted not in provider.dialects:
            known = ", ".join(provider.dialects)
            raise ProviderError(
                f"{provider.name} does not compute in {wanted}, but in {known}; set"
                " OP_DBUS_PRECISION to one of those or to auto"
            )
        return (wanted,)

    async def _report(
        self, provider: Provider, devices: Mapping[int, str], offered: Sequence[str]
    ) -> gate.Report:
        graphs = {
            name: await build.ensure(self.model, self._graphs, provider.dialects[name])
            for name in offered
        }
        index, hardware = next(iter(devices.items()))
        candidate = gate.Candidate(
            provider.name,
            hardware,
            index,
            self.host.features(),
            {name: str(built.graph) for name, built in graphs.items()},
            str(graphs[gate.FULL].proof),
        )
        return await gate.judge(self.model, candidate, self.config.state_dir / "gates")

    def _placement(self, provider: Provider, precision: str) -> Placement:
        threads = self.config.threads or cpus.usable()
        return Placement(
            precision=precision,
            threads=threads,
            lanes=min(threads, _MOST_CPU_LANES) if provider.is_cpu else _DEVICE_LANES,
            memory_limit=self.config.gpu_mem_limit,
            cache=self._graphs,
            longest=self.model.shape.max_tokens,
        )

    def _proven(
        self, built: build.Built, provider: Provider, devices: Sequence[int], at: Placement
    ) -> tuple[list[Session], Proof]:
        """Open a session on each device and prove them all; blocks."""
        probe = Probe.read(built.proof)
        sessions, proofs = [], []
        for device in devices:
            session = self.opener(built.graph, provider, at.on(device))
            proofs.append(prove(session, provider, at.precision, probe))
            sessions.append(session)
        return sessions, proofs[0]

    def _solo(self, built: build.Built, provider: Provider, at: Placement) -> Session | None:
        """Open and prove the session for single texts, where it would be another one; blocks."""
        if not provider.has_solo or at.lanes == 1:
            return None
        alone = replace(at, lanes=1, threads=min(at.threads, _SOLO_THREADS))
        return self._proven(built, provider, [0], alone)[0][0]

    @property
    def _graphs(self) -> Path:
        return self.config.state_dir / "graphs"
