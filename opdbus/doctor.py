"""Checks everything that the daemon needs: settings, libraries, providers, files, and the bus."""

import asyncio
import errno
import grp
import os
import pwd
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

from opdbus.bus import paths
from opdbus.bus.authorization.authorizer import GROUP
from opdbus.bus.names import BUS_NAME, FAILED_UNITS, STATE, VECTORIZER
from opdbus.bus.transport.connection import Connection, RemoteError
from opdbus.config import Config, Given
from opdbus.engine.host import HERE
from opdbus.engine.providers import candidates, suits_openvino, unused_device
from opdbus.engine.remote import http_client
from opdbus.errors import BusError, ConfigError, HardwareMissing, OpDbusError, read_log
from opdbus.models import folder
from opdbus.models.level_table import LEVELS, ON_PROVIDERS
from opdbus.platform import name_lists, pip
from opdbus.settings import privacy
from opdbus.settings.parsing import REMOTE, remote_url
from opdbus.state.file import StateFile
from opdbus.systemd import unit
from opdbus.systemd.unit import Unit

Status: TypeAlias = Literal["ok", "warning", "wrong"]
Load: TypeAlias = Callable[[Mapping[str, Given]], Config]

START: Final = "start the daemon with `systemctl start op-dbus` or `op-dbus daemon`"
RESTART: Final = "`systemctl restart op-dbus`"
# A daemon reports its status at once, unless it is stuck.
_PATIENCE_SECONDS: Final = 10.0
# modules whose packages have the same names
_LIBRARIES: Final = "numpy tokenizers safetensors dbus_fast asyncinotify structlog".split()
# modules of the extra `http`
_OF_GATEWAY: Final = ("bcrypt", "fastapi", "prometheus_client", "uvicorn", "yaml")
_OF_FLEET: Final = "asyncpg"
_RUNTIMES: Final = ("onnxruntime", "openvino")
# From benchmarks/results/2026-11-23-precisions.json.
_GAIN: Final = "79 instead of 66 texts a second on two cores of an EPYC with AVX512-VNNI"
_PAGE: Final = 4096
# Failed units that are named.
_NAMED_UNITS: Final = 3
# Seconds without a restart after which a service counts as steady, and after which earlier faults
# are no longer reported: a service that keeps failing is up in between.
_STEADY_SECONDS: Final = 600
_FORGOTTEN_SECONDS: Final = 86_400
# In the status of the service that delivers alerts: faults of it and of what it runs.
_NOT_DELIVERED: Final = (", and failed ", ", and cannot note ", "op-dbus stores nothing, ")
# Begins the status of a sender that waits for its next attempt.
_NOT_SENT: Final = "Cannot send"
_AS_ROOT: Final = "it is the service's: run `op-dbus doctor` as root to check it"


class Verdict(NamedTuple):
    """The result of one check, and advice if it is not ok."""

    subject: str
    status: Status
    finding: str
    advice: str = ""


def count_objects(count: int) -> str:
    """Return a number of objects as text."""
    return f"{count:,} object{'' if count == 1 else 's'}"


class Answer(NamedTuple):
    """The verdicts of the checks on the bus, and the daemon's report of its state file."""

    verdicts: list[Verdict]
    # the path, possibly from a command-line option; None if no daemon answers
    state_file: Path | None = None
    fault: str = ""


async def _ask_daemon(config: Config, *, is_service: bool) -> Answer:
    """Check that the bus can be reached, and the status of the daemon."""
    try:
        async with Connection(config.bus) as connection:
            reached = Verdict("message bus", "ok", f"{config.bus} can be reached")
            found = await _check_daemon(connection, is_service=is_service)
            return found._replace(verdicts=[reached, *found.verdicts])
    except BusError as error:
        finding, _, advice = str(error).partition("; ")
        return Answer([Verdict("message bus", "wrong", finding, advice or "set OP_DBUS_BUS")])


async def _check_daemon(connection: Connection, *, is_service: bool) -> Answer:
    """Check that a daemon answers this user or, without one, that this user can start it."""
    try:
        await connection.ask_bus("GetNameOwner", "s", BUS_NAME)
    except RemoteError:
        if not is_service:
            return Answer([await _check_ownership(connection)])
        unserved, advice = f"no daemon serves {BUS_NAME}", "`systemctl status op-dbus` says more"
        verdicts = [Verdict("daemon", "warning", unserved, advice)]
        # the daemon, once it runs, will not answer this user
        if cure := _how_to_join():
            finding = f"this user is not in the group {GROUP}"
            verdicts.append(Verdict("group", "wrong", finding, cure))
        return Answer(verdicts)
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            member = f"{VECTORIZER}.Status"
            (status,) = await connection.call(BUS_NAME, paths.ROOT, member, "a{sv}", {})
    except TimeoutError:
        finding = f"it did not answer within {_PATIENCE_SECONDS:.0f} s"
        return Answer([Verdict("daemon", "wrong", finding, f"look into its log, or {RESTART}")])
    except RemoteError as error:
        finding, _, advice = str(error).partition(": ")
        return Answer([Verdict("daemon", "wrong", finding, _how_to_join() or advice or RESTART)])
    declared = dict(status["Sources"]).get("file", 0)
    # a daemon that is stuck or ends now is found by the call before
    given = ({"where": FAILED_UNITS}, 0, _NAMED_UNITS)
    total, failed = await connection.call(BUS_NAME, paths.STATE, f"{STATE}.List", "a{sv}uu", *given)
    verdicts = [
        _check_served(status["State"], status["LastError"]),
        _check_failed(total, [name for *_, name in failed]),
        _check_drift(status["Drifted"], declared),
        *(_check_observer(*row) for row in status["Observers"]),
    ]
    return Answer(verdicts, Path(status["StateFile"]), status["StateFileError"])


def _check_served(state: str, fault: str) -> Verdict:
    """Return the verdict on the daemon's state and last error."""
    finding = f"{BUS_NAME} is served; it is {state}"
    is_well = state in {"ready", "loading"}
    if not fault:
        advice = "" if is_well else "`op-dbus status` says why"
        return Verdict("daemon", "ok" if is_well else "warning", finding, advice)
    reason, _, advice = fault.partition("; ")
    # with a good state, the error is of a database that was replaced at the start
    return Verdict("daemon", "warning" if is_well else "wrong", f"{finding}: {reason}", advice)


def _check_failed(count: int, names: Sequence[str]) -> Verdict:
    """Return the verdict on the failed units, of which some are named."""
    if not count:
        return Verdict("units", "ok", "none has failed")
    listed = name_lists.join_first(names, _NAMED_UNITS, total=count)
    finding = f"{count:,} {'has' if count == 1 else 'have'} failed: {listed}"
    return Verdict("units", "warning", finding, f"`systemctl status {names[0]}` says why")


def _check_drift(count: int, declared: int) -> Verdict:
    """Return the verdict on the number of drifted objects."""
    if not declared:
        return Verdict("drift", "ok", "nothing is declared")
    if not count:
        return Verdict("drift", "ok", "nothing is other than declared")
    found = "an object is" if count == 1 else f"{count:,} objects are"
    return Verdict("drift", "warning", f"{found} other than declared", "`op-dbus drift` says how")


def _check_observer(name: str, state: str, count: int, detail: str) -> Verdict:
    """Return the verdict on an observer; a host without its subsystem is no fault."""
    found = count_objects(count) if state == "up" else state
    finding = f"{found}: {detail}" if detail else found
    if state != "failed":
        return Verdict(f"observer {name}", "ok", finding)
    return Verdict(f"observer {name}", "warning", finding, f"it is tried again; {read_log()}")


async def _check_ownership(connection: Connection) -> Verdict:
    """Check that this user may serve the bus name."""
    try:
        await connection.own(BUS_NAME)
    except BusError as error:
        advice = "run the daemon as the user that the bus policy names, or on another bus"
        return Verdict("daemon", "wrong", str(error), advice)
    return Verdict("daemon", "warning", f"no daemon serves {BUS_NAME}", START)


def _how_to_join() -> str:
    """Return how this user can join the group of users; empty for members and root."""
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


async def examine(
    load: Load,
    is_installed: Callable[[str], bool] = HERE.has_package,
    features: Callable[[], frozenset[str]] = HERE.features,
) -> list[Verdict]:
    """Check everything that the daemon needs with its settings.

    `load` reads this user's settings over the given ones, `features` the processor's. Raises
    ConfigError if this user's own settings are invalid.
    """
    config = load({})
    service = await asyncio.to_thread(unit.find_unit) if config.bus == "system" else None
    verdicts = _check_libraries(is_installed)
    if service:
        verdicts += [_check_service(service), *await asyncio.to_thread(_check_privacy)]
        verdicts.append(await asyncio.to_thread(_check_alerts))
        verdicts.append(await asyncio.to_thread(_check_metrics))
        verdicts += await asyncio.to_thread(check_gateway, is_installed)
        verdicts.append(await asyncio.to_thread(check_fleet, is_installed))
        verdicts += await asyncio.to_thread(check_fleet_server)
        is_read = False
        try:
            config, is_read = load(service.environ()), True
            verdicts += [*_check_settings(service), *_check_network(service, config)]
        except PermissionError as error:
            finding = f"this user may not read {error.filename}"
            verdicts.append(Verdict("service settings", "warning", finding, _AS_ROOT))
        except ConfigError as error:
            advice = f"correct {unit.SETTINGS} or the unit, then {RESTART}"
            verdicts.append(Verdict("service settings", "wrong", str(error), advice))
        if not is_read:
            return [*verdicts, *(await _ask_daemon(config, is_service=True)).verdicts]
    found = await _ask_daemon(config, is_service=bool(service))
    config = replace(config, state_file=found.state_file or config.state_file)
    # a service's folders are closed to other users
    denied: Status = "warning" if service and os.geteuid() else "wrong"
    verdicts += _check_runtime(config, is_installed, features())
    verdicts += await asyncio.to_thread(_check_local, config, found.fault, denied)
    return [*verdicts, *found.verdicts]


def _check_settings(service: Unit) -> list[Verdict]:
    """Report the lines of its settings that the service ignores; the others are accepted."""
    subject, advice = "service settings", f"write NAME=VALUE or begin it with #, then {RESTART}"
    ignored = [f"{where} {unit.IGNORED}" for where in service.ignored()]
    faults = [Verdict(subject, "warning", finding, advice) for finding in ignored]
    return faults or [Verdict(subject, "ok", "accepted")]


def _check_service(service: Unit) -> Verdict:
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


def _check_alerts() -> Verdict:
    """Check that alerts are delivered, if that is switched on; its status says how far it is."""
    service = unit.find_unit(unit.ALERTS)
    said = service.shown["StatusText"] if service else ""
    advice = f"`journalctl --unit {unit.ALERTS}` says more"
    if service and service.has_failed:
        finding = said.removeprefix(unit.FAILED) or f"{unit.ALERTS} failed"
        return Verdict("alerts", "wrong", finding, advice)
    if not service or not service.is_running:
        return Verdict("alerts", "ok", "off")
    if any(fault in said for fault in _NOT_DELIVERED):
        return Verdict("alerts", "warning", said, advice)
    return Verdict("alerts", "ok", f"on; {said}")


def _check_metrics() -> Verdict:
    """Check that metrics are written, if that is switched on."""
    timer, service = (unit.find_unit(f"{unit.METRICS}.{kind}") for kind in ("timer", "service"))
    if not timer or not service or not timer.is_running:
        return Verdict("metrics", "ok", "off")
    if service.has_failed:
        advice = f"`journalctl --unit {unit.METRICS}` says more"
        return Verdict("metrics", "warning", f"{unit.METRICS}.service failed", advice)
    if not service.is_left_out:
        return Verdict("metrics", "ok", "on")
    finding = "the timer is on, and nothing is written: the folder of node_exporter is not there"
    advice = f"install node_exporter, or name its folder: `systemctl cat {unit.METRICS}` says where"
    return Verdict("metrics", "warning", finding, advice)


def check_gateway(is_installed: Callable[[str], bool]) -> list[Verdict]:
    """Check that HTTP is served where it is switched on; the status has the last fault."""
    verdicts = []
    for socket, service in unit.GATEWAYS.items():
        listener, gateway = unit.find_unit(socket), unit.find_unit(service)
        if not listener or not gateway:
            continue
        advice = f"`journalctl --unit {service}` says more"
        subject = socket.removeprefix("op-dbus-").removesuffix(".socket")
        said = gateway.shown["StatusText"].removeprefix(unit.FAILED)
        missing = [module for module in _OF_GATEWAY if not is_installed(module)]
        verdict = Verdict(subject, "ok", "off")
        if listener.has_failed:
            verdict = Verdict(subject, "wrong", said or f"{socket} failed", advice)
        elif listener.is_running and missing:
            finding, advice = f"it is on, and lacks {missing[0]}", pip.install("op-dbus[http]")
            verdict = Verdict(subject, "wrong", finding, advice)
        elif listener.is_running and gateway.has_failed:
            verdict = Verdict(subject, "wrong", said or f"{service} failed", advice)
        elif listener.is_running:
            finding = f"on; {said}" if said else "on; it starts with the first request"
            verdict = Verdict(subject, "ok", finding)
        verdicts.append(verdict)
    return verdicts


def check_fleet(is_installed: Callable[[str], bool]) -> Verdict:
    """Check that this host is sent to the fleet, if that is switched on, by the sender's status."""
    service = unit.find_unit(unit.SENDER)
    said = service.shown["StatusText"].removeprefix(unit.FAILED) if service else ""
    advice = f"`journalctl --unit {unit.SENDER}` says more"
    if not service or not (service.is_running or service.has_failed):
        if service and service.is_left_out:
            finding = "off: this host has no credentials of a fleet; `op-dbus fleet add` makes them"
            return Verdict("fleet", "ok", finding)
        return Verdict("fleet", "ok", "off")
    if not is_installed(_OF_FLEET):
        cure = pip.install("op-dbus[fleet]")
        return Verdict("fleet", "wrong", f"it is on, and lacks {_OF_FLEET}", cure)
    if service.has_failed:
        return Verdict("fleet", "wrong", said or f"{unit.SENDER} failed", advice)
    if said.startswith(_NOT_SENT):
        return Verdict("fleet", "warning", said, advice)
    return Verdict("fleet", "ok", f"on; {said}" if said else "on")


def check_fleet_server() -> list[Verdict]:
    """Check that the fleet's server serves, on the machine where it is switched on."""
    service = unit.find_unit(unit.FLEET_SERVER)
    if not service or not (service.is_running or service.has_failed):
        return []
    said = service.shown["StatusText"].removeprefix(unit.FAILED)
    if service.is_running:
        return [Verdict("fleet server", "ok", f"on; {said}" if said else "on; it is starting")]
    advice = f"`journalctl --unit {unit.FLEET_SERVER}` says more"
    return [Verdict("fleet server", "wrong", said or f"{unit.FLEET_SERVER} failed", advice)]


def _check_privacy() -> list[Verdict]:
    """Check that other users cannot read the files that the service reads."""
    subject = f"privacy of {privacy.FOLDER}"
    faults = [Verdict(subject, "warning", *fault) for fault in privacy.Rule().faults()]
    return faults or [Verdict(subject, "ok", "only root and the service may read it")]


def _check_local(config: Config, fault: str, denied: Status) -> list[Verdict]:
    return [
        *_check_providers(config),
        _check_files(_check_model, "model", config, denied),
        _check_files(_check_state_folder, "state dir", config, denied),
        _check_files(partial(_check_state_file, fault), "state file", config, denied),
    ]


def _check_libraries(is_installed: Callable[[str], bool]) -> list[Verdict]:
    missing = [
        Verdict(
            f"library {module}", "wrong", "not installed", pip.install(module.replace("_", "-"))
        )
        for module in _LIBRARIES
        if not is_installed(module)
        # dbus-next takes its place
        and not (module == "dbus_fast" and is_installed("dbus_next"))
    ]
    return missing or [Verdict("libraries", "ok", "installed")]


def _check_runtime(
    config: Config, is_installed: Callable[[str], bool], features: frozenset[str]
) -> list[Verdict]:
    """Check that a runtime for the model is installed, and the fastest one for the processor."""
    found = [runtime for runtime in _RUNTIMES if is_installed(runtime)]
    level, names = config.vector_level, config.execution_provider.names
    has_servers = any(name.startswith(REMOTE) for name in names)
    is_slow = "cpu" in names and found == ["onnxruntime"] and suits_openvino(level, features)
    if is_slow and level in ON_PROVIDERS:
        finding = f"onnxruntime installed; on this processor OpenVINO runs the level {level} faster"
        if level == "high":
            finding += f": {_GAIN}"
        advice = f"{pip.install('op-dbus[openvino]')}, or install op-dbus-openvino; then {RESTART}"
        return [Verdict("runtime", "warning", finding, advice)]
    if found or has_servers or level not in ON_PROVIDERS:
        return [Verdict("runtime", "ok", f"{' and '.join(found) or 'none'} installed")]
    advice = f"{pip.install('op-dbus[cpu]')}; 'op-dbus[gpu]' where there is an NVIDIA GPU"
    return [Verdict("runtime", "wrong", "nothing that runs a model is installed", advice)]


def _check_providers(config: Config) -> list[Verdict]:
    verdicts: list[Verdict] = []
    if config.vector_level not in ON_PROVIDERS:
        return verdicts
    request = config.execution_provider
    for provider in candidates(request.names, precision=config.precision):
        if provider.is_remote:
            verdicts.append(_check_server(remote_url(provider.name)))
            continue
        try:
            devices = provider.require(config.gpu_device)
        except OpDbusError as error:
            if request.is_auto and isinstance(error, HardwareMissing):
                continue
            finding, _, advice = str(error).partition("; ")
            verdicts.append(Verdict(f"provider {provider.name}", "warning", finding, advice))
        else:
            hardware = ", ".join(devices.values())
            found = f"usable on {hardware}; the daemon proves it when it loads the model"
            verdicts.append(Verdict(f"provider {provider.name}", "ok", found))
    if verdicts and all(verdict.status == "warning" for verdict in verdicts):
        verdicts = [verdict._replace(status="wrong") for verdict in verdicts]
    if device := unused_device(config):
        finding, _, advice = device.partition("; ")
        verdicts.append(Verdict("device", "warning", finding, advice))
    return verdicts


def _check_server(url: str) -> Verdict:
    """Check that an embedding server answers; the daemon proves it."""
    try:
        status = http_client.reach(url)
    except OpDbusError as error:
        finding, _, advice = str(error).partition("; ")
        advice = advice or "start the server, or correct OP_DBUS_EXECUTION_PROVIDER"
        return Verdict(f"provider remote:{url}", "warning", finding, advice)
    found = f"answers (HTTP {status}); the daemon proves it when it loads the model"
    return Verdict(f"provider remote:{url}", "ok", found)


def _check_network(service: Unit, config: Config) -> list[Verdict]:
    """Check that the service may reach its embedding servers; it has no network by default."""
    remote = [name for name in config.execution_provider.names if name.startswith(REMOTE)]
    is_needed = any(not remote_url(name).startswith("unix:") for name in remote)
    if not is_needed or service.shown.get("PrivateNetwork") != "yes":
        return []
    finding = "the service has no network (PrivateNetwork=yes), and remote: needs one"
    return [Verdict("network of the service", "wrong", finding, http_client.ALLOW_NETWORK)]


def _check_files(
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


def _check_model(config: Config) -> Verdict:
    level = config.vector_level
    if level == "none":
        return Verdict("model", "ok", "level none: lexical search only")
    row = LEVELS[level]
    _exists(config.model or config.model_dir / row.folder)
    how = folder.how_to_get(row)
    try:
        model = folder.load_model(row, config)
        _open_model(model)
    except ImportError as error:
        return Verdict("model", "wrong", f"cannot be read without {error.name}", how)
    except OpDbusError as error:
        advice = "" if how in str(error) else f"get its files again: {how}"
        return Verdict("model", "wrong", str(error), advice)
    return Verdict("model", "ok", f"{model.name} in {model.folder}, checksums right")


def _open_model(model: folder.Model) -> None:
    """Open the files that only the daemon reads; raise ModelError or ImportError."""
    from opdbus.engine.opening import open_table
    from opdbus.engine.tokenizer import Tokenizer
    from opdbus.models import weights

    if model.format.is_table:
        open_table(model, None)
        return
    Tokenizer.of(model)
    weights.require_readable(model.weights)


def _check_state_folder(config: Config) -> Verdict:
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


def _check_state_file(fault: str, config: Config) -> Verdict:
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
    return Verdict("state file", "ok", f"{count_objects(len(present))} in {path}")


def _exists(path: Path) -> bool:
    """Return whether a path exists; raise OSError if that cannot be determined."""
    try:
        path.stat()
    except FileNotFoundError:
        return False
    return True
