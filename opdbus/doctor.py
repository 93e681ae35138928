"""What could keep op-dbus from working here, checked one by one, each with what to do about it."""

from __future__ import annotations

import asyncio
import importlib.util
import tempfile
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from opdbus.bus.names import BUS_NAME
from opdbus.bus.transport.connection import Connection, RemoteError
from opdbus.engine.providers import candidates
from opdbus.errors import BusError, ModelError, OpDbusError
from opdbus.models import folder
from opdbus.models.catalogue import LEVELS
from opdbus.state.file import StateFile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from opdbus.config import Config

Status: TypeAlias = Literal["ok", "warning", "wrong"]

# module, and the package to install for it
_LIBRARIES: Final = (
    ("numpy", "numpy"),
    ("onnx", "onnx"),
    ("onnxruntime", "onnxruntime-gpu"),
    ("tokenizers", "tokenizers"),
    ("safetensors", "safetensors"),
    ("dbus_fast", "dbus-fast"),
    ("asyncinotify", "asyncinotify"),
    ("structlog", "structlog"),
)
_NO_BUS_NEEDED: Final = "start the daemon with `op-dbus daemon` or `systemctl start op-dbus`"


class Verdict(NamedTuple):
    """One thing that was checked: how it is, and what to do if it is not well."""

    subject: str
    status: Status
    finding: str
    advice: str = ""


def _is_installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


async def examine(
    config: Config, is_installed: Callable[[str], bool] = _is_installed
) -> list[Verdict]:
    """Check everything that the daemon needs with these settings."""
    local = await asyncio.to_thread(_local, config, is_installed)
    return [*local, *await _bus(config)]


def _local(config: Config, is_installed: Callable[[str], bool]) -> list[Verdict]:
    return [
        *_libraries(is_installed),
        *_providers(config),
        _model(config),
        _folder("state folder", config.state_dir),
        _state_file(config),
    ]


def _libraries(is_installed: Callable[[str], bool]) -> list[Verdict]:
    return [
        Verdict(f"library {module}", "ok", "installed")
        if is_installed(module)
        else Verdict(f"library {module}", "wrong", "not installed", f"pip install {package}")
        for module, package in _LIBRARIES
    ]


def _providers(config: Config) -> list[Verdict]:
    verdicts = []
    for provider in candidates(config.execution_provider.names):
        try:
            devices = provider.require(config.gpu_device)
        except OpDbusError as error:
            finding, _, advice = str(error).partition("; ")
            verdicts.append(Verdict(f"provider {provider.name}", "warning", finding, advice))
        else:
            hardware = ", ".join(devices.values())
            found = f"usable on {hardware}; the daemon proves it when it loads the model"
            verdicts.append(Verdict(f"provider {provider.name}", "ok", found))
    if verdicts and all(verdict.status == "warning" for verdict in verdicts):
        verdicts = [verdict._replace(status="wrong") for verdict in verdicts]
    return verdicts


def _model(config: Config) -> Verdict:
    level = config.vector_level
    if level == "none":
        return Verdict("model", "warning", "level none: lexical search only")
    how = folder.how_to_get(LEVELS[level])
    try:
        model = folder.load(LEVELS[level], config)
        _open(model)
    except ImportError as error:
        return Verdict(f"model {level}", "wrong", f"cannot be read without {error.name}", how)
    except OpDbusError as error:
        advice = "" if how in str(error) else f"get its files again: {how}"
        return Verdict(f"model {level}", "wrong", str(error), advice)
    return Verdict(f"model {level}", "ok", f"{model.name} in {model.folder}, checksums right")


def _open(model: folder.Model) -> None:
    """Open the files that only the daemon reads; raises ModelError, ImportError."""
    from safetensors import SafetensorError, safe_open

    from opdbus.engine.tokenizer import Tokenizer

    Tokenizer.of(model)
    try:
        with safe_open(model.weights, framework="numpy"):
            pass
    except (OSError, SafetensorError) as error:
        raise ModelError(f"cannot read the weights {model.weights}: {error}") from None


def _folder(subject: str, path: Path) -> Verdict:
    existing = next(p for p in (path, *path.parents) if p.exists())
    if not existing.is_dir():
        return Verdict(subject, "wrong", f"{existing} is not a folder", "move that file away")
    try:
        # tried, not looked up: permissions say nothing of a read-only mount
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        return Verdict(
            subject,
            "wrong",
            f"this user cannot write {existing}: {error.strerror}",
            f"run as its owner, or set OP_DBUS_STATE_DIR to a folder of yours (now {path})",
        )
    return Verdict(subject, "ok", f"{path} can be written")


def _state_file(config: Config) -> Verdict:
    try:
        present, _ = StateFile(config.state_file).read()
    except OpDbusError as error:
        # without a state file the daemon still serves what programs publish
        status: Status = "wrong" if config.state_file.exists() else "warning"
        advice = "correct the file" if status == "wrong" else "write one, or set OP_DBUS_STATE_FILE"
        return Verdict("state file", status, str(error), advice)
    return Verdict("state file", "ok", f"{len(present)} objects in {config.state_file}")


async def _bus(config: Config) -> list[Verdict]:
    try:
        async with Connection(config.bus) as connection:
            reached = Verdict("message bus", "ok", f"{config.bus} can be reached")
            return [reached, await _name(connection)]
    except BusError as error:
        finding, _, advice = str(error).partition("; ")
        return [Verdict("message bus", "wrong", finding, advice or "set OP_DBUS_BUS")]


async def _name(connection: Connection) -> Verdict:
    """Tell whether a daemon serves the bus, and if not, whether this user could start one."""
    try:
        await connection.ask_bus("GetNameOwner", "s", BUS_NAME)
    except RemoteError:
        pass
    else:
        return Verdict("daemon", "ok", f"{BUS_NAME} is served")
    try:
        await connection.own(BUS_NAME)
    except BusError as error:
        advice = "run the daemon as the user that the bus policy names, or on another bus"
        return Verdict("daemon", "wrong", str(error), advice)
    return Verdict("daemon", "warning", f"nobody serves {BUS_NAME}", _NO_BUS_NEEDED)
