"""Survey of the provider table on this host: installed, usable, proven, or the reason why not."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Final

from opdbus import config
from opdbus.config import Config
from opdbus.engine.chain import Chain
from opdbus.engine.host import HERE, Host
from opdbus.engine.provider import Provider
from opdbus.engine.providers import PROVIDERS
from opdbus.errors import OpDbusError
from opdbus.models import child, folder
from opdbus.models.catalogue import LEVELS, ON_PROVIDERS

Prove = Callable[[str, Config], Awaitable["Outcome"]]

NO_MODEL: Final = "the level {} has no model to prove it with; set OP_DBUS_VECTOR_LEVEL"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of proving the level's model on a provider; `reason` is empty if it passed."""

    reason: str = ""
    hardware: str = ""
    precision: str = ""
    max_deviation: float = 0.0
    min_cosine: float = 0.0
    nodes: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Version:
    """A shared library that a provider loads, with its required major version and the one found."""

    library: str
    wanted: str
    # empty if the library is missing
    found: str


@dataclass(frozen=True, slots=True)
class Finding:
    """State of one provider on this host; `reason` is empty if it is usable."""

    provider: str
    # package with its version; empty if it is not installed
    installed: str
    devices: tuple[str, ...]
    libraries: tuple[Version, ...]
    reason: str
    # None if no proof was tried
    outcome: Outcome | None = None


async def survey(settings: Config, prove: Prove | None, host: Host = HERE) -> list[Finding]:
    """Examine every provider, and prove the level's model on each that is usable."""
    findings = []
    for row in PROVIDERS.values():
        found = await asyncio.to_thread(look, row, settings, host)
        if prove and not found.reason:
            found = replace(found, outcome=await prove(row.name, settings))
        findings.append(found)
    return findings


def look(row: Provider, settings: Config, host: Host) -> Finding:
    """Examine a provider without opening a model."""
    reason = ""
    try:
        row.require(settings.gpu_device, host)
    except OpDbusError as error:
        reason = str(error).removeprefix(f"{row.name} cannot run: ")
    return Finding(
        row.name,
        _or(lambda: row.installed(host), ""),
        _or(lambda: tuple(device.name for device in row.find_devices(host)), ()),
        _versions(row, host),
        reason,
    )


def _or(ask: Callable[[], Any], nothing: Any) -> Any:  # noqa: ANN401 -- the type that `ask` gives
    """Call `ask`, or return `nothing` on an error, which `require` has reported already."""
    try:
        return ask()
    except Exception:  # noqa: BLE001 -- a half-installed runtime raises anything
        return nothing


def _versions(row: Provider, host: Host) -> tuple[Version, ...]:
    if row.libraries:
        _or(host.preload, None)
    return tuple(
        Version(library.name, library.wanted, _or(partial(library.version, host), ""))
        for library in row.libraries
    )


async def prove(name: str, settings: Config) -> Outcome:
    """Prove the level's model on a provider in a child process: a broken driver may kill it."""
    level = settings.vector_level
    if level not in ON_PROVIDERS:
        return Outcome(NO_MODEL.format(level))
    given = {variable: value for variable, value, _ in settings.rows()}
    given[config.PREFIX + "EXECUTION_PROVIDER"] = name
    try:
        return Outcome(**json.loads(await child.run("opdbus.engine.survey", **given)))
    except child.ChildFailed as fault:
        return Outcome(str(fault))


async def _outcome(settings: Config) -> Outcome:
    model = await asyncio.to_thread(folder.load, LEVELS[settings.vector_level], settings)
    proven = await Chain(model, settings).choose()
    proof = proven.proof
    figures = proof.precision, proof.max_deviation, proof.min_cosine, dict(proof.nodes)
    return Outcome("", proven.hardware, *figures)


def _prove(given: dict[str, Any]) -> str:
    """Run the proof that `prove` requests; in the child process."""
    return json.dumps(asdict(asyncio.run(_outcome(config.load(given)))))


if __name__ == "__main__":
    child.answer(_prove)
