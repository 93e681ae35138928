"""The OP_DBUS_* settings: one table, the fields of Config, read once and then frozen."""
# ruff: noqa: RUF009 -- these calls make the fields of a dataclass

from __future__ import annotations

import difflib
import os
import shlex
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from opdbus.errors import ConfigError, InvalidArgs
from opdbus.platform.regular_files import read_regular
from opdbus.settings import parsing
from opdbus.settings.parsing import AUTO

PREFIX: Final = "OP_DBUS_"
# The variable that names the TOML file; it is not a setting itself.
CONFIG_FILE_VARIABLE: Final = PREFIX + "CONFIG"
# Sources of values, besides the TOML file.
DEFAULT: Final = "default"
ENVIRONMENT: Final = "environment"
FLAG: Final = "flag"
ARGUMENT: Final = "argument"
# Names of call arguments that differ from the settings' names.
_ARGUMENTS: Final = {"execution_provider": "provider", "vector_level": "level"}
# Also in the service's unit; used for root, so that the service finds models loaded by root.
_SERVICE: Final = Path("/var/lib/op-dbus")
LEVELS: Final = ("none", "static", "low", "medium", "high")
PRECISIONS: Final = ("int8", "int8-blocks", "bf16", "fp16", "fp32")
# Severities of drift, in rising order.
SEVERITIES: Final = ("info", "notice", "warning", "error")


class Given(NamedTuple):
    """The text of a setting or a variable, and its source: a line of a file, a flag."""

    value: str
    where: str


@dataclass(frozen=True, slots=True)
class Setting:
    """One row: the variable OP_DBUS_<KEY>, the TOML key, the flag and the field of Config."""

    key: str
    default: str
    parse: Callable[[str], Any]
    doc: str
    # can change while serving, by opening another engine
    is_of_engine: bool

    @property
    def variable(self) -> str:
        """Return the name of the environment variable."""
        return PREFIX + self.key.upper()

    @property
    def flag(self) -> str:
        """Return the flag of the command line."""
        return "--" + self.key.replace("_", "-")

    def written(self, given: Given) -> str:
        """Return a value as written at its source, for error messages."""
        text, source = given
        if source == FLAG:
            return f"{self.flag} {shlex.quote(text)}"
        if source == ARGUMENT:
            return f"{_ARGUMENTS.get(self.key, self.key)}={text!r}"
        where = "" if source == ENVIRONMENT else f" (in {source})"
        return f"{self.variable}={text!r}{where}"


def _setting(
    default: str, parse: Callable[[str], Any], doc: str, *, is_of_engine: bool = False
) -> Any:  # noqa: ANN401 -- the field's own type is written beside it
    row = {"default": default, "parse": parse, "doc": doc, "is_of_engine": is_of_engine}
    return field(metadata=row)


_engine: Final = partial(_setting, is_of_engine=True)


@dataclass(frozen=True, slots=True)
class Config:
    """The effective settings. Each field is a row of the table; `sources` has the sources by key.

    A row has the default, the parser and the description of a setting. Settings made by `_engine`
    can change while serving, by opening another engine.
    """

    execution_provider: parsing.ProviderRequest = _engine(
        "cpu",
        parsing.providers,
        "where the model runs: `cpu`, `cpu:onnxruntime`, `cpu:openvino`, `openvino` (Intel),"
        " `cuda`, `tensorrt`, `directml`, `coreml`, `webgpu`, `migraphx`, `remote:URL`, `auto`, or"
        " a chain (`cuda,cpu`); one name is strict",
    )
    remote_token_file: Path | None = _engine(
        "",
        parsing.optional_path,
        "file with the bearer token for the servers of `remote:URL`, such as a systemd credential",
    )
    gpu_device: tuple[str, ...] = _engine(
        "0",
        parsing.devices,
        "the accelerator: an index, several (`0,1`) that share the work, a UUID, or `all`",
    )
    vector_level: str = _engine(
        "medium",
        parsing.choice(*LEVELS, aliases=parsing.LEVEL_ALIASES),
        "which model: `none` (lexical search only), `static` (a table, which runs on no provider),"
        " `low`, `medium` (`med`), `high`",
    )
    model: Path | None = _engine(
        "",
        parsing.optional_path,
        "folder of a BERT- or MPNet-shaped sentence-transformers model to use for the level",
    )
    model_dir: Path = _engine("", parsing.optional_path, "folder that holds one folder per model")
    precision: str = _engine(
        AUTO,
        parsing.choice(AUTO, *PRECISIONS),
        "`int8`, `bf16`, `fp16`, `fp32`, or `auto`: the fastest that passes the accuracy gate on"
        " this provider",
    )
    state_file: Path = _setting("/etc/op-dbus/state.json", parsing.path, "the declared state")
    glossary: Path = _setting(
        "/etc/op-dbus/glossary.tsv", parsing.path, "your own glosses of names, read at start"
    )
    state_dir: Path = _setting(
        "", parsing.optional_path, "folder of the database and of what is built from the models"
    )
    observe: tuple[str, ...] = _setting(
        AUTO,
        parsing.name_list,
        "what is observed: `auto` (all that needs no privileges), `none`, or a list:"
        " `systemd,network`; a service on the system bus is mirrored:"
        " `auto,org.freedesktop.UDisks2`",
    )
    volatile: tuple[str, ...] = _setting(
        "",
        parsing.fields,
        "observed fields that are shown and never compared or stored, such as"
        " `net/interface:mtu`, several separated by commas; `op-dbus doctor` proposes some",
    )
    history_days: int = _setting(
        "90", parsing.whole(1, 36_500), "days for which history is kept, the oldest rows go first"
    )
    history_rows: int = _setting(
        "1000000", parsing.whole(1000, 1 << 40), "most rows of history that are kept"
    )
    history_bytes: int = _setting(
        "512M", parsing.amount, "most bytes that the kept rows of history take, such as `512M`"
    )
    publish_objects: int = _setting(
        "50000",
        parsing.whole(1, 1 << 40),
        "most objects that the programs of one user may publish; all users together: four times"
        " as many",
    )
    publish_bytes: int = _setting(
        "64M",
        parsing.amount,
        "most bytes that what one user publishes may take; all users together: four times as many",
    )
    cascade: str = _setting(
        AUTO,
        parsing.choice(AUTO, "always", "never"),
        "whether searches find by static vectors and put the best in the order of the level's own:"
        " `auto` while objects lack those, `always`, `never`",
    )
    cascade_ms: int = _setting(
        "150",
        parsing.whole(0, 60_000),
        "most milliseconds that such a search waits for vectors of the level that are missing",
    )
    bus: str = _setting("system", parsing.bus, "`system`, `session`, or a D-Bus address")
    batch_tokens: int | None = _engine(
        AUTO, parsing.integer(16, 1 << 20), "most tokens in one run of the model"
    )
    queue_limit: int | None = _engine(
        AUTO,
        parsing.integer(1, 1 << 24),
        "most texts waiting for the model; past it callers are refused",
    )
    threads: int | None = _engine(
        AUTO,
        parsing.integer(1, 4096),
        "threads of the model; auto follows the CPU affinity and the cgroup's quota",
    )
    gpu_mem_limit: int | None = _engine(
        AUTO, parsing.size, "most bytes of the accelerator's memory, such as `8G`"
    )
    max_loaded_bytes: int | None = _engine(
        AUTO,
        parsing.size,
        "bytes of weights past which the least recently used levels are unloaded",
    )
    drift_threshold: str = _setting(
        "warning",
        parsing.choice(*SEVERITIES),
        "least severity of drift that is signalled by DriftDetected: `info`, `notice`, `warning`"
        " or `error`",
    )
    listen: tuple[str, ...] = _setting(
        "",
        parsing.addresses,
        "where `op-dbus gateway` listens without a socket of systemd: `unix:PATH` or `HOST:PORT`,"
        " separated by commas; `metrics=HOST:PORT` for metrics, `write=unix:PATH` for publishing",
    )
    http_token_file: Path | None = _setting(
        "",
        parsing.optional_path,
        "file with the token that the gateway's clients send over TCP; without it, the gateway"
        " does not listen on TCP but for metrics",
    )
    http_write_token_file: Path | None = _setting(
        "",
        parsing.optional_path,
        "file with the token of clients that publish over TCP, which is another one; without it,"
        " no listener for writing is on TCP",
    )
    http_hosts: tuple[str, ...] = _setting(
        "",
        parsing.host_names,
        "names by which clients reach the gateway over TCP, besides addresses, `localhost` and this"
        " host's own name; several separated by commas",
    )
    http_web_config: Path | None = _setting(
        "",
        parsing.optional_path,
        "web configuration file of the gateway's metrics as Prometheus' exporters have it: TLS and"
        " users with passwords",
    )
    fleet_database: str = _setting(
        "",
        parsing.database_url,
        "database of the fleet, postgresql://USER@HOST:PORT/DATABASE: where op-dbus-fleet.service"
        " sends, and what `op-dbus fleet` asks",
    )
    fleet_password_file: Path | None = _setting(
        "", parsing.optional_path, "file with the password of the fleet's database"
    )
    fleet_listen: tuple[str, ...] = _setting(
        "127.0.0.1:5433",
        parsing.tcp_addresses,
        "addresses on which `op-dbus fleet serve` accepts hosts and readers, ADDRESS:PORT such as"
        " 0.0.0.0:5433; several separated by commas",
    )
    fleet_names: tuple[str, ...] = _setting(
        "",
        parsing.server_names,
        "names and addresses by which hosts reach `op-dbus fleet serve`, besides this host's own"
        " name; several separated by commas, and hosts use the first",
    )
    log_level: str = _setting(
        "info",
        parsing.choice("debug", "info", "warning", "error"),
        "least important log line to write",
    )
    log_format: str = _setting(
        AUTO,
        parsing.choice(AUTO, "console", "json", "journal"),
        "`console`, `json`, `journal`, or `auto`",
    )
    sources: Mapping[str, str] = field(repr=False, kw_only=True)

    def on(self, provider: str, device: str = "") -> Config:
        """Return the settings with another provider and, if given, device; raises InvalidArgs."""
        given = {"execution_provider": provider, **({"gpu_device": device} if device else {})}
        problems: list[str] = []
        values = _parsed({key: Given(text, ARGUMENT) for key, text in given.items()}, problems)
        if problems:
            raise InvalidArgs("\n".join(problems))
        return replace(self, **values, sources={**self.sources, **dict.fromkeys(given, ARGUMENT)})

    def differing(self, other: Config) -> set[str]:
        """Return the keys of the settings whose values differ."""
        return {key for key in BY_KEY if getattr(self, key) != getattr(other, key)}

    def is_default(self, key: str) -> bool:
        """Return whether a setting has its default because no source sets it."""
        return self.sources[key] == DEFAULT

    def rows(self) -> list[tuple[str, str, str]]:
        """Return (variable, effective value, source) of each setting, in the table's order."""
        return [(s.variable, self._shown(s.key), self.sources[s.key]) for s in SETTINGS]

    def _shown(self, key: str) -> str:
        value = getattr(self, key)
        if isinstance(value, tuple):
            return ",".join(value)
        if value is not None:
            return str(value)
        return AUTO if BY_KEY[key].default == AUTO else ""


SETTINGS: Final = tuple(Setting(f.name, **f.metadata) for f in fields(Config) if f.metadata)
BY_KEY: Final = {setting.key: setting for setting in SETTINGS}
ENGINE_SETTINGS: Final = frozenset(s.key for s in SETTINGS if s.is_of_engine)


def load(
    environ: Mapping[str, str],
    given: Mapping[str, str] | None = None,
    euid: int | None = None,
    source: str = FLAG,
    service: Mapping[str, Given] | None = None,
) -> Config:
    """Return the settings: given values, else variables, else the file, else the defaults.

    `source` is the source of `given`: FLAG or ARGUMENT. The default folder of models depends on the
    user (`euid`; None: the current one). Variables of `environ` override those of the `service`.
    Raises ConfigError with every bad value in one message.
    """
    variables = dict(service or {})
    # a shell cannot unset a variable but empty it: then the service's value stays
    ours = {name: Given(text, ENVIRONMENT) for name, text in environ.items()}
    variables |= {name: each for name, each in ours.items() if each.value or name not in variables}
    environ = {name: text for name, (text, _) in variables.items()}
    problems: list[str] = []
    texts = {setting.key: Given(setting.default, DEFAULT) for setting in SETTINGS}
    texts |= _from_file(environ.get(CONFIG_FILE_VARIABLE, ""), problems)
    texts |= _from_variables(variables, problems)
    texts |= {key: Given(text, source) for key, text in (given or {}).items()}
    values = _parsed(texts, problems)
    if problems:
        raise ConfigError("\n".join(problems))
    # Windows has no user ids
    own = os.geteuid() if hasattr(os, "geteuid") else -1
    is_root = (own if euid is None else euid) == 0
    data = _SERVICE if is_root else _own_folder(environ, "XDG_DATA_HOME", ".local/share")
    values["model_dir"] = values["model_dir"] or data / "models"
    state = _own_folder(environ, "XDG_STATE_HOME", ".local/state")
    values["state_dir"] = values["state_dir"] or state
    return Config(**values, sources={key: where for key, (_, where) in texts.items()})


def _from_variables(variables: Mapping[str, Given], problems: list[str]) -> dict[str, Given]:
    keys = {setting.variable: setting.key for setting in SETTINGS}
    accepted = [*keys, CONFIG_FILE_VARIABLE]
    for name, (_, where) in variables.items():
        if name.startswith(PREFIX) and name not in accepted:
            at = "the environment" if where == ENVIRONMENT else where
            problems.append(_unknown(name, accepted, at))
    # an empty variable counts as unset, since units can unset variables only so
    return {keys[name]: each for name, each in variables.items() if name in keys and each.value}


def _from_file(path: str, problems: list[str]) -> dict[str, Given]:
    if not path:
        return {}
    try:
        table = tomllib.loads(read_regular(Path(path), follow=True).decode())
        texts = {
            key: ",".join(map(str, value)) if isinstance(value, list) else str(value)
            for key, value in table.items()
        }
    except (OSError, ValueError, RecursionError) as error:
        problems.append(f"{CONFIG_FILE_VARIABLE}: cannot read {path}: {error}")
        return {}
    problems += [_unknown(key, BY_KEY, path) for key in texts if key not in BY_KEY]
    return {key: Given(text, path) for key, text in texts.items() if key in BY_KEY}


def _parsed(texts: Mapping[str, Given], problems: list[str]) -> dict[str, Any]:
    """Return the parsed values; add a sentence to `problems` for each that is not accepted."""
    values: dict[str, Any] = {}
    for key, given in texts.items():
        try:
            values[key] = BY_KEY[key].parse(given.value.strip())
        except ValueError as error:
            problems.append(f"{BY_KEY[key].written(given)} is not accepted: give {error}")
    return values


def _unknown(name: str, accepted: Iterable[str], where: str) -> str:
    # compared without the prefix and in one case, which all names share
    plain = {_normalize_name(known): known for known in accepted}
    close = difflib.get_close_matches(_normalize_name(name), plain, n=2, cutoff=0.55)
    hint = " or ".join(plain[match] for match in close)
    hint = f": did you mean {hint}?" if hint else "; `op-dbus config` lists them all"
    return f"{name} in {where} is not a setting{hint}"


def _normalize_name(name: str) -> str:
    return name.upper().replace("-", "_").removeprefix(PREFIX)


def _own_folder(environ: Mapping[str, str], variable: str, fallback: str) -> Path:
    """Return the user's folder of a kind by the XDG specification."""
    folder = Path(environ.get(variable, ""))
    if not folder.is_absolute():  # the specification requires it to be ignored
        try:
            folder = Path(environ.get("HOME") or "~").expanduser() / fallback
        except RuntimeError:  # a user without a home, as in many containers
            folder = Path("/", fallback)
    return folder / "op-dbus"
