"""What could keep op-dbus from working here, checked one by one, each with what to do about it."""

import asyncio
import errno
import grp
import os
import pwd
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

from opdbus import privacy, unit
from opdbus.bus import paths
from opdbus.bus.authorization.authorizer import GROUP
from opdbus.bus.names import BUS_NAME, STATE, VECTORIZER
from opdbus.bus.transport.connection import Connection, RemoteError
from opdbus.bus.transport.values import Plain
from opdbus.config import Config
from opdbus.engine.host import HERE
from opdbus.engine.providers import candidates
from opdbus.errors import BusError, ConfigError, OpDbusError
from opdbus.models import folder
from opdbus.models.catalogue import LEVELS
from opdbus.state.file import StateFile
from opdbus.unit import Unit

Load: TypeAlias = Callable[[Mapping[str, str]], Config]

Status: TypeAlias = Literal["ok", "warning", "wrong"]

# modules, each of a package of the same name
_LIBRARIES: Final = "numpy onnx tokenizers safetensors dbus_fast asyncinotify structlog".split()
# Levels that no provider runs.
_TABLES: Final = frozenset(level.name for level in LEVELS.values() if level.is_table)
_RUNTIMES: Final = ("onnxruntime", "openvino")
_START: Final = "start the daemon with `systemctl start op-dbus` or `op-dbus daemon`"
_AS_ROOT: Final = "it is the service's: run `op-dbus doctor` as root to check it"
_RESTART: Final = "`systemctl restart op-dbus`"
# A daemon answers for a property at once; one that does not is stuck.
_PATIENCE_SECONDS: Final = 10.0


class Verdict(NamedTuple):
    """One thing that was checked: how it is, and what to do if it is not well."""

    subject: str
    status: Status
    finding: str
    advice: str = ""


async def examine(
    load: Load, is_installed: Callable[[str], bool] = HERE.has_package
) -> list[Verdict]:
    """Check everything that the daemon needs with its settings.

    `load` reads the settings over those that the service is given. Raises ConfigError where this
    user's own are not accepted.
    """
    config = load({})
    service = await asyncio.to_thread(unit.find) if config.bus == "system" else None
    verdicts = _libraries(is_installed)
    if service:
        verdicts += [_service(service), *await asyncio.to_thread(_privacy)]
        try:
            config = load(service.environ())
        except PermissionError as error:
            finding = f"this user may not read {error.filename}"
            hidden = Verdict("service settings", "warning", finding, _AS_ROOT)
            return [*verdicts, hidden, *await _bus(config, service)]
        except ConfigError as error:
            advice = f"correct {unit.SETTINGS} or the unit, then {_RESTART}"
            wrong = Verdict("service settings", "wrong", str(error), advice)
            return [*verdicts, wrong, *await _bus(config, service)]
        verdicts.append(Verdict("service settings", "ok", "accepted"))
    config = await _with_its_state_file(config)
    # the folders of a service are closed to other users
    denied: Status = "warning" if service and os.geteuid() else "wrong"
    verdicts += await asyncio.to_thread(_local, config, is_installed, denied)
    return [*verdicts, *await _bus(config, service)]


def _service(service: Unit) -> Verdict:
    """Say whether systemd's service runs, and if it ended by a fault, by which."""
    if (loaded := service.shown["LoadState"]) != "loaded":
        finding = f"systemd says that {unit.NAME} is {loaded}"
        return Verdict("service", "wrong", finding, "`systemctl status op-dbus` says more")
    if service.has_failed:
        return Verdict("service", "wrong", service.fault(), f"correct that, then {_RESTART}")
    if not service.is_running:
        return Verdict("service", "warning", f"{unit.NAME} does not run", _START)
    return Verdict("service", "ok", f"{unit.NAME} runs")


def _privacy() -> list[Verdict]:
    """Say whether others may read what the service reads."""
    subject = f"privacy of {privacy.FOLDER}"
    faults = [Verdict(subject, "warning", *fault) for fault in privacy.Rule().faults()]
    return faults or [Verdict(subject, "ok", "only root and the service may read it")]


def _local(config: Config, is_installed: Callable[[str], bool], denied: Status) -> list[Verdict]:
    return [
        *_runtime(config, is_installed),
        *_providers(config),
        _seen(_model, "model", config, denied),
        _seen(_state_folder, "state dir", config, denied),
        _seen(_state_file, "state file", config, denied),
    ]


def _libraries(is_installed: Callable[[str], bool]) -> list[Verdict]:
    missing = [
        Verdict(
            f"library {module}", "wrong", "not installed", f"pip install {module.replace('_', '-')}"
        )
        for module in _LIBRARIES
        if not is_installed(module)
    ]
    return missing or [Verdict("libraries", "ok", "installed")]


def _runtime(config: Config, is_installed: Callable[[str], bool]) -> list[Verdict]:
    """Say what to install where nothing can run a model."""
    found = [runtime for runtime in _RUNTIMES if is_installed(runtime)]
    if found or config.vector_level in {"none", *_TABLES}:
        return [Verdict("runtime", "ok", f"{' and '.join(found) or 'none'} installed")]
    advice = "pip install 'op-dbus[cpu]'; 'op-dbus[gpu]' where there is an NVIDIA GPU"
    return [Verdict("runtime", "wrong", "nothing that runs a model is installed", advice)]


def _providers(config: Config) -> list[Verdict]:
    verdicts: list[Verdict] = []
    if config.vector_level in _TABLES:
        return verdicts
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


def _seen(
    check: Callable[[Config], Verdict], subject: str, config: Config, denied: Status
) -> Verdict:
    """Check files, as far as this user may use them."""
    variable = f"OP_DBUS_{subject.upper()}".replace(" ", "_")
    try:
        return check(config)
    except PermissionError as error:
        finding = f"this user may not use {error.filename}"
        advice = f"run as its owner, or set {variable} to what this user may use"
        if denied == "warning":
            advice = _AS_ROOT
        return Verdict(subject, denied, finding, advice)
    except OSError as error:
        finding = f"cannot use {error.filename}: {error.strerror}"
        return Verdict(subject, "wrong", finding, f"correct {variable}")


def _model(config: Config) -> Verdict:
    level = config.vector_level
    if level == "none":
        return Verdict("model", "ok", "level none: lexical search only")
    row = LEVELS[level]
    _exists(config.model or config.model_dir / row.folder)
    how = folder.how_to_get(row)
    try:
        model = folder.load(row, config)
        _open(model)
    except ImportError as error:
        return Verdict("model", "wrong", f"cannot be read without {error.name}", how)
    except OpDbusError as error:
        advice = "" if how in str(error) else f"get its files again: {how}"
        return Verdict("model", "wrong", str(error), advice)
    return Verdict("model", "ok", f"{model.name} in {model.folder}, checksums right")


def _open(model: folder.Model) -> None:
    """Open the files that only the daemon reads; raises ModelError, ImportError."""
    from opdbus.engine.static_engine import open_table
    from opdbus.engine.tokenizer import Tokenizer
    from opdbus.models import weights

    if model.is_table:
        open_table(model, None)
        return
    Tokenizer.of(model)
    weights.require_readable(model.weights)


def _state_folder(config: Config) -> Verdict:
    """Say whether the state folder can be written, or made where it would lie."""
    path = config.state_dir
    existing = next(p for p in (path, *path.parents) if _exists(p))
    try:
        # tried, not looked up: permissions say nothing of a read-only mount
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise type(error)(error.errno, error.strerror, str(existing)) from None
    return Verdict("state dir", "ok", f"{path} can be written")


def _state_file(config: Config) -> Verdict:
    path = config.state_file
    if not _exists(path):
        # the daemon serves what it observes and what programs publish
        return Verdict("state file", "ok", f"there is no {path}, and none is needed")
    if not os.access(path, os.R_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    try:
        present, _ = StateFile(path).read()
    except OpDbusError as error:
        return Verdict("state file", "wrong", str(error), "correct the file")
    return Verdict("state file", "ok", f"{len(present)} objects in {path}")


def _exists(path: Path) -> bool:
    """Return whether there is such a file or folder; raises OSError where that cannot be seen."""
    try:
        path.stat()
    except FileNotFoundError:
        return False
    return True


async def _bus(config: Config, service: Unit | None) -> list[Verdict]:
    try:
        async with Connection(config.bus) as connection:
            reached = Verdict("message bus", "ok", f"{config.bus} can be reached")
            return [reached, *await _daemon(connection, service)]
    except BusError as error:
        finding, _, advice = str(error).partition("; ")
        return [Verdict("message bus", "wrong", finding, advice or "set OP_DBUS_BUS")]


async def _daemon(connection: Connection, service: Unit | None) -> list[Verdict]:
    """Say whether a daemon answers this user; if there is none, whether this user can start it."""
    try:
        await connection.ask_bus("GetNameOwner", "s", BUS_NAME)
    except RemoteError:
        return _membership() if service else [await _ownership(connection)]
    try:
        state = await _property(connection, paths.ROOT, VECTORIZER, "State")
        observers = await _property(connection, paths.STATE, STATE, "Observers")
        drifted = await _property(connection, paths.STATE, STATE, "Drifted")
        fault = await _property(connection, paths.STATE, STATE, "LastError")
    except TimeoutError:
        finding = f"it did not answer within {_PATIENCE_SECONDS:.0f} s"
        return [Verdict("daemon", "wrong", finding, f"look into its log, or {_RESTART}")]
    except RemoteError as error:
        finding, _, advice = str(error).partition(": ")
        return [Verdict("daemon", "wrong", finding, _cure() or advice or _RESTART)]
    served = _served(str(state), str(fault))
    return [served, _drift(int(drifted)), *(_observer(*row) for row in observers)]


def _served(state: str, fault: str) -> Verdict:
    """Say how the daemon is, and what keeps it from reading or storing something."""
    finding = f"{BUS_NAME} is served; it is {state}"
    # while all is well, the fault is of a database that was replaced at the start
    if state in {"ready", "loading"}:
        return Verdict("daemon", "ok", finding)
    if not fault:
        return Verdict("daemon", "warning", finding, "`op-dbus status` says why")
    reason, _, advice = fault.partition("; ")
    return Verdict("daemon", "wrong", f"{finding}: {reason}", advice)


def _drift(count: int) -> Verdict:
    """Say how much is other than declared."""
    if not count:
        return Verdict("drift", "ok", "nothing is other than declared")
    found = "an object is" if count == 1 else f"{count:,} objects are"
    return Verdict("drift", "warning", f"{found} other than declared", "`op-dbus drift` says how")


def _observer(name: str, state: str, count: int, detail: str) -> Verdict:
    """Say how an observer is; that a host has not got what it observes is no fault."""
    found = f"{count:,} objects" if state == "up" else state
    finding = f"{found}: {detail}" if detail else found
    if state != "failed":
        return Verdict(f"observer {name}", "ok", finding)
    return Verdict(f"observer {name}", "warning", finding, "it is tried again; the log says more")


async def _with_its_state_file(config: Config) -> Config:
    """Take the state file of the daemon that answers, if one does: it may have been a flag."""
    with suppress(BusError, RemoteError, TimeoutError):
        async with Connection(config.bus) as connection:
            if (await connection.ask_bus("NameHasOwner", "s", BUS_NAME))[0]:
                path = await _property(connection, paths.STATE, STATE, "StateFile")
                return replace(config, state_file=Path(str(path)))
    return config


async def _property(connection: Connection, path: str, interface: str, name: str) -> Plain:
    member = "org.freedesktop.DBus.Properties.Get"
    async with asyncio.timeout(_PATIENCE_SECONDS):
        (value,) = await connection.call(BUS_NAME, path, member, "ss", interface, name)
    return value


async def _ownership(connection: Connection) -> Verdict:
    try:
        await connection.own(BUS_NAME)
    except BusError as error:
        advice = "run the daemon as the user that the bus policy names, or on another bus"
        return Verdict("daemon", "wrong", str(error), advice)
    return Verdict("daemon", "warning", f"nobody serves {BUS_NAME}", _START)


def _membership() -> list[Verdict]:
    """Say whether the daemon, when it runs, will answer this user."""
    if not (cure := _cure()):
        return []
    return [Verdict("group", "wrong", f"this user is not in the group {GROUP}", cure)]


def _cure() -> str:
    """Say how this user gets into the group whose members may ask; empty if it is, or is root."""
    try:
        group = grp.getgrnam(GROUP)
        name = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return ""
    if os.geteuid() == 0 or group.gr_gid in {os.getegid(), *os.getgroups()}:
        return ""
    if name in group.gr_mem:
        return "log in again: this session is older than the membership"
    return f"as root, `usermod -aG {GROUP} {name}`; then log in again"
