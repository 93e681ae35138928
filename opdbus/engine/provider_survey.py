"""Survey of the provider table on this host: installed, usable, proven, or the reason why not."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from opdbus import config
from opdbus.config import Config
from opdbus.engine.host import HERE, Host
from opdbus.engine.provider import Provider
from opdbus.engine.provider_chain import Chain
from opdbus.engine.providers import PROVIDERS, provider_row
from opdbus.errors import OpDbusError
from opdbus.models import child, folder
from opdbus.models.level_table import LEVELS, ON_PROVIDERS
from opdbus.settings.parsing import REMOTE

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
    """Examine every provider, and the servers of the settings; prove the model on each."""
    findings = []
    remote = [name for name in settings.execution_provider.names if name.startswith(REMOTE)]
    for row in (*PROVIDERS.values(), *map(provider_row, remote)):
        found = await asyncio.to_thread(examine_provider, row, settings, host)
        if prove and not found.reason:
            found = replace(found, outcome=await prove(row.name, settings))
        findings.append(found)
    return findings


def examine_provider(row: Provider, settings: Config, host: Host) -> Finding:
    """Examine a provider without opening a model."""
    reason = ""
    try:
        row.require(settings.gpu_device, host)
    except OpDbusError as error:
        reason = str(error).removeprefix(f"{row.name} cannot run: ")
    # `require` has reported errors already; a half-installed runtime raises anything
    installed, libraries = "", []
    devices: tuple[str, ...] = ()
    with suppress(Exception):
        installed = row.installed(host)
    with suppress(Exception):
        devices = tuple(device.name for device in row.find_devices(host))
    if row.libraries:
        with suppress(Exception):
            host.preload()
    for library in row.libraries:
        found = ""
        with suppress(Exception):
            found = library.version(host)
        libraries.append(Version(library.name, library.wanted, found))
    return Finding(row.name, installed, devices, tuple(libraries), reason)


async def prove(name: str, settings: Config) -> Outcome:
    """Prove the level's model on a provider in a child process: a broken driver may kill it."""
    level = settings.vector_level
    if level not in ON_PROVIDERS:
        return Outcome(NO_MODEL.format(level))
    given = {variable: value for variable, value, _ in settings.rows()}
    given[config.PREFIX + "EXECUTION_PROVIDER"] = name
    try:
        return Outcome(**json.loads(await child.run("opdbus.engine.provider_survey", **given)))
    except child.ChildFailed as fault:
        return Outcome(str(fault))


def _prove(given: dict[str, Any]) -> str:
    """Run the proof that `prove` requests; in the child process."""
    settings = config.load(given)
    model = folder.load_model(LEVELS[settings.vector_level], settings)
    proven = asyncio.run(Chain(model, settings).choose())
    proof = proven.proof
    figures = proof.precision, proof.max_deviation, proof.min_cosine, dict(proof.nodes)
    return json.dumps(asdict(Outcome("", proven.hardware, *figures)))


if __name__ == "__main__":
    child.answer(_prove)
