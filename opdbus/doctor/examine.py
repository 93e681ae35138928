"""Checks everything that the daemon needs: settings, libraries, providers, files, and the bus."""

import asyncio
import errno
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from opdbus.config import Config, Given
from opdbus.doctor.daemon import ask
from opdbus.doctor.verdict import RESTART, START, Status, Verdict, objects
from opdbus.engine.host import HERE
from opdbus.engine.providers import candidates
from opdbus.errors import ConfigError, OpDbusError
from opdbus.models import folder
from opdbus.models.catalogue import LEVELS, ON_PROVIDERS
from opdbus.platform import pip
from opdbus.settings import privacy
from opdbus.state.file import StateFile
from opdbus.systemd import unit
from opdbus.systemd.unit import Unit

Load: TypeAlias = Callable[[Mapping[str, Given]], Config]

# modules whose packages have the same names
_LIBRARIES: Final = "numpy onnx tokenizers safetensors dbus_fast asyncinotify structlog".split()
_RUNTIMES: Final = ("onnxruntime", "openvino")
_PAGE: Final = 4096
# Seconds without a restart after which a service counts as steady, and after which earlier faults
# are no longer reported: a service that keeps failing is up in between.
_STEADY_SECONDS: Final = 600
_FORGOTTEN_SECONDS: Final = 86_400
_AS_ROOT: Final = "it is the service's: run `op-dbus doctor` as root to check it"


async def examine(
    load: Load, is_installed: Callable[[str], bool] = HERE.has_package
) -> list[Verdict]:
    """Check everything that the daemon needs with its settings.

    `load` reads this user's settings over the given ones. Raises ConfigError if this user's own
    settings are invalid.
    """
    config = load({})
    service = await asyncio.to_thread(unit.find_unit) if config.bus == "system" else None
    verdicts = _libraries(is_installed)
    if service:
        verdicts += [_service(service), *await asyncio.to_thread(_privacy)]
        try:
            config = load(service.environ())
        except PermissionError as error:
            finding = f"this user may not read {error.filename}"
            hidden = Verdict("service settings", "warning", finding, _AS_ROOT)
            return [*verdicts, hidden, *(await ask(config, is_service=True)).verdicts]
        except ConfigError as error:
            advice = f"correct {unit.SETTINGS} or the unit, then {RESTART}"
            wrong = Verdict("service settings", "wrong", str(error), advice)
            return [*verdicts, wrong, *(await ask(config, is_service=True)).verdicts]
        verdicts += _accepted(service)
    found = await ask(config, is_service=bool(service))
    config = replace(config, state_file=found.state_file or config.state_file)
    # a service's folders are closed to other users
    denied: Status = "warning" if service and os.geteuid() else "wrong"
    verdicts += await asyncio.to_thread(_local, config, found.fault, is_installed, denied)
    return [*verdicts, *found.verdicts]


def _accepted(service: Unit) -> list[Verdict]:
    """Report the lines of its settings that the service ignores; the others are accepted."""
    subject, advice = "service settings", f"write NAME=VALUE or begin it with #, then {RESTART}"
    ignored = [f"{where} {unit.IGNORED}" for where in service.ignored()]
    faults = [Verdict(subject, "warning", finding, advice) for finding in ignored]
    return faults or [Verdict(subject, "ok", "accepted")]


def _service(service: Unit) -> Verdict:
    """Check that systemd's service runs; report the fault if it failed."""
    if (loaded := service.shown["LoadState"]) != "loaded":
        finding = f"systemd says that {unit.NAME} is {loaded}"
        return Verdict("service", "wrong", finding, "`systemctl status op-dbus` says more")
    if service.has_failed:
        return Verdict("service", "wrong", service.fault(), service.cure())
    if not service.is_running:
        return Verdict("service", "warning", f"{unit.NAME} does not run", START)
    count, seconds = service.restarts()
    if not count or seconds > _FORGOTTEN_SECONDS:
        return Verdict("service", "ok", f"{unit.NAME} runs")
    often = "once" if count == 1 else f"{count:,} times"
    is_steady = seconds > _STEADY_SECONDS
    ran = f"{seconds / 60:,.0f} min" if is_steady else f"{seconds:.0f} s"
    finding = f"{unit.NAME} was started again {often} after a fault, and has run for {ran} since"
    status: Status = "warning" if is_steady else "wrong"
    return Verdict("service", status, finding, f"`journalctl --unit {unit.NAME}` says why")


def _privacy() -> list[Verdict]:
    """Check that other users cannot read the files that the service reads."""
    subject = f"privacy of {privacy.FOLDER}"
    faults = [Verdict(subject, "warning", *fault) for fault in privacy.Rule().faults()]
    return faults or [Verdict(subject, "ok", "only root and the service may read it")]


def _local(
    config: Config, fault: str, is_installed: Callable[[str], bool], denied: Status
) -> list[Verdict]:
    return [
        *_runtime(config, is_installed),
        *_providers(config),
        _seen(_model, "model", config, denied),
        _seen(_state_folder, "state dir", config, denied),
        _seen(partial(_state_file, fault), "state file", config, denied),
    ]


def _libraries(is_installed: Callable[[str], bool]) -> list[Verdict]:
    missing = [
        Verdict(
            f"library {module}", "wrong", "not installed", pip.install(module.replace("_", "-"))
        )
        for module in _LIBRARIES
        if not is_installed(module)
    ]
    return missing or [Verdict("libraries", "ok", "installed")]


def _runtime(config: Config, is_installed: Callable[[str], bool]) -> list[Verdict]:
    """Check that a runtime for the model is installed."""
    found = [runtime for runtime in _RUNTIMES if is_installed(runtime)]
    if found or config.vector_level not in ON_PROVIDERS:
        return [Verdict("runtime", "ok", f"{' and '.join(found) or 'none'} installed")]
    advice = f"{pip.install('op-dbus[cpu]')}; 'op-dbus[gpu]' where there is an NVIDIA GPU"
    return [Verdict("runtime", "wrong", "nothing that runs a model is installed", advice)]


def _providers(config: Config) -> list[Verdict]:
    verdicts: list[Verdict] = []
    if config.vector_level not in ON_PROVIDERS:
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
    """Run a check of files; turn an OSError into a verdict."""
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
        is_full = error.errno in {errno.ENOSPC, errno.EDQUOT}
        advice = "make room on its file system" if is_full else f"correct {variable}"
        return Verdict(subject, "wrong", finding, advice)


def _model(config: Config) -> Verdict:
    level = config.vector_level
    if level == "none":
        return Verdict("model", "ok", "level none: lexical search only")
    row = LEVELS[level]
    _exists(config.model or config.model_dir / row.folder)
    how = folder.how_to_get(row)
    try:
        model = folder.load_model(row, config)
        _open(model)
    except ImportError as error:
        return Verdict("model", "wrong", f"cannot be read without {error.name}", how)
    except OpDbusError as error:
        advice = "" if how in str(error) else f"get its files again: {how}"
        return Verdict("model", "wrong", str(error), advice)
    return Verdict("model", "ok", f"{model.name} in {model.folder}, checksums right")


def _open(model: folder.Model) -> None:
    """Open the files that only the daemon reads; raise ModelError or ImportError."""
    from opdbus.engine.opening import open_table
    from opdbus.engine.tokenizer import Tokenizer
    from opdbus.models import weights

    if model.format.is_table:
        open_table(model, None)
        return
    Tokenizer.of(model)
    weights.require_readable(model.weights)


def _state_folder(config: Config) -> Verdict:
    """Check that the state folder can be written, or created."""
    path = config.state_dir
    existing = next(p for p in (path, *path.parents) if _exists(p))
    try:
        # tested by a write: permissions do not show a read-only mount
        with tempfile.TemporaryFile(dir=existing) as file:
            # a full disk still accepts an empty file
            file.write(bytes(_PAGE))
    except OSError as error:
        raise type(error)(error.errno, error.strerror, str(existing)) from None
    return Verdict("state dir", "ok", f"{path} can be written")


def _state_file(fault: str, config: Config) -> Verdict:
    path = config.state_file
    if fault:
        # with a fault, the present declarations are in the daemon alone
        finding, _, advice = fault.partition("; ")
        return Verdict("state file", "wrong", finding, advice)
    if not _exists(path):
        # without it, the daemon serves observed and published objects
        return Verdict("state file", "ok", f"there is no {path}, and none is needed")
    if not os.access(path, os.R_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    try:
        present, _ = StateFile(path).read()
    except OpDbusError as error:
        return Verdict("state file", "wrong", str(error), "correct the file")
    return Verdict("state file", "ok", f"{objects(len(present))} in {path}")


def _exists(path: Path) -> bool:
    """Return whether a path exists; raise OSError if that cannot be determined."""
    try:
        path.stat()
    except FileNotFoundError:
        return False
    return True
