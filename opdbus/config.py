"""OP_DBUS_* settings: one table of rows, read once from a mapping, then frozen."""

from __future__ import annotations

import difflib
import os
import shlex
import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from opdbus.errors import ConfigError, InvalidArgs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

PREFIX: Final = "OP_DBUS_"
AUTO: Final = "auto"
LEVELS: Final = ("none", "low", "medium", "high")
PROVIDERS: Final = (
    "cpu",
    "cpu:openvino",
    "cpu:onnxruntime",
    "openvino",
    "cuda",
    "tensorrt",
    "directml",
    "coreml",
    "webgpu",
    "migraphx",
)
PROVIDER_ALIASES: Final = {"gpu": "cuda", "trt": "tensorrt", "dml": "directml", "rocm": "migraphx"}
# `auto` is an ordinary chain: whatever accelerator can be proven, else the CPU. TensorRT is not in
# it: nobody who did not ask for it wants to wait for minutes.
AUTO_CHAIN: Final = ("cuda", "migraphx", "openvino", "directml", "coreml", "webgpu", "cpu")
PRECISIONS: Final = ("int8", "bf16", "fp16", "fp32")
ALL_DEVICES: Final = "all"


@dataclass(frozen=True, slots=True)
class ProviderRequest:
    """Which providers may run the model, best first; a strict request allows no fallback."""

    names: tuple[str, ...]
    strict: bool

    def __str__(self) -> str:
        """Give the request as it is written in a setting."""
        return ",".join(self.names)


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table: the variable OP_DBUS_<NAME>, the TOML key and flag of the same name."""

    name: str
    default: str
    parse: Callable[[str], Any]
    doc: str

    @property
    def variable(self) -> str:
        """The environment variable."""
        return PREFIX + self.name

    @property
    def flag(self) -> str:
        """The command line's flag."""
        return "--" + self.key.replace("_", "-")

    @property
    def key(self) -> str:
        """The TOML key and the field of Config."""
        return self.name.lower()


def _choice(*accepted: str, aliases: Mapping[str, str] | None = None) -> Callable[[str], str]:
    def parse(text: str) -> str:
        value = (aliases or {}).get(text.lower(), text.lower())
        if value not in accepted:
            raise ValueError("one of " + ", ".join([*accepted, *(aliases or {})]))
        return value

    return parse


def _integer(low: int, high: int) -> Callable[[str], int | None]:
    def parse(text: str) -> int | None:
        if text.lower() == AUTO:
            return None
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            raise ValueError(f"auto or a whole number from {low} to {high}")
        return value

    return parse


def _fraction(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 2.0:
        raise ValueError("a cosine distance from 0 to 2")
    return value


def _path(text: str) -> Path:
    if not text or "\0" in text:
        raise ValueError("a path")
    return Path(text).expanduser().absolute()


def _optional_path(text: str) -> Path | None:
    return _path(text) if text else None


def _providers(text: str) -> ProviderRequest:
    if text.strip().lower() == AUTO:
        return ProviderRequest(AUTO_CHAIN, strict=False)
    asked = [part.strip().lower() for part in text.split(",")]
    names = tuple(dict.fromkeys(PROVIDER_ALIASES.get(name, name) for name in asked))
    if not all(name in PROVIDERS for name in names):
        accepted = ", ".join(["auto", *PROVIDERS, *PROVIDER_ALIASES])
        raise ValueError(f"one of {accepted}, or several in order of preference: cuda,cpu")
    return ProviderRequest(names, strict=len(names) == 1)


def _devices(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    is_index = all(name.isascii() and name.isdigit() for name in names)
    is_uuid = all(name.lower().startswith("gpu-") for name in names)
    if not is_index and not is_uuid and text.strip().lower() != ALL_DEVICES:
        raise ValueError("the index of a device, 0 or more, several (0,1), a GPU's UUID, or all")
    return (ALL_DEVICES,) if text.strip().lower() == ALL_DEVICES else names


_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
# What the runtimes' own signed 64-bit numbers hold.
_MOST_BYTES: Final = 1 << 63
_MOST_DIGITS: Final = 20


def _bytes(text: str) -> int | None:
    if text.lower() == AUTO:
        return None
    digits = text.lower().removesuffix("b").removesuffix("i")
    unit = digits[-1:] if digits[-1:] in _UNITS else ""
    number = digits.removesuffix(unit).strip()
    is_number = number.isascii() and number.isdigit() and len(number) < _MOST_DIGITS
    value = int(number) * _UNITS[unit] if is_number else 0
    if not 0 < value < _MOST_BYTES:
        raise ValueError("auto, or a number of bytes such as 512M or 8G")
    return value


def _bus(text: str) -> str:
    if text in {"system", "session"} or (":" in text and "=" in text):
        return text
    raise ValueError("system, session, or an address such as unix:path=/run/dbus/my.sock")


SETTINGS: Final = (
    Setting(
        "EXECUTION_PROVIDER",
        "cpu",
        _providers,
        "where the model runs: `cpu` (`cpu:openvino` or `cpu:onnxruntime`), `openvino` (Intel GPU"
        " or NPU), `cuda` (`gpu`), `tensorrt` (`trt`), `directml` (`dml`), `coreml`, `webgpu`,"
        " `migraphx` (`rocm`), `auto`, or an ordered chain such as `cuda,cpu`; one name is strict,"
        " a chain records why it moved on",
    ),
    Setting(
        "GPU_DEVICE",
        "0",
        _devices,
        "the accelerator: an index, several (`0,1`) that share the work, a UUID, or `all`",
    ),
    Setting(
        "VECTOR_LEVEL",
        "medium",
        _choice(*LEVELS, aliases={"med": "medium"}),
        "which model: `none` (lexical search only), `low`, `medium` (`med`), `high`",
    ),
    Setting(
        "MODEL",
        "",
        _optional_path,
        "folder of a BERT- or MPNet-shaped sentence-transformers model to use for the level",
    ),
    Setting("MODEL_DIR", "", _optional_path, "folder that holds one folder per model"),
    Setting(
        "PRECISION",
        AUTO,
        _choice(AUTO, *PRECISIONS),
        "`int8`, `bf16`, `fp16`, `fp32`, or `auto`: the fastest that passes the accuracy gate on"
        " this provider",
    ),
    Setting("STATE_FILE", "/etc/op-dbus/state.json", _path, "the declared state"),
    Setting("STATE_DIR", "", _optional_path, "folder of the database and the built graphs"),
    Setting("BUS", "system", _bus, "`system`, `session`, or a D-Bus address"),
    Setting(
        "BATCH_TOKENS",
        AUTO,
        _integer(16, 1 << 20),
        "most tokens in one run of the model",
    ),
    Setting(
        "QUEUE_LIMIT",
        AUTO,
        _integer(1, 1 << 24),
        "most texts waiting for the model; past it callers are refused",
    ),
    Setting(
        "THREADS",
        AUTO,
        _integer(1, 4096),
        "threads of the model; auto follows the CPU affinity and the cgroup's quota",
    ),
    Setting("GPU_MEM_LIMIT", AUTO, _bytes, "most bytes of the accelerator's memory, such as `8G`"),
    Setting(
        "MAX_LOADED_BYTES",
        AUTO,
        _bytes,
        "bytes of weights past which the least recently used levels are unloaded",
    ),
    Setting(
        "DRIFT_THRESHOLD",
        "0.15",
        _fraction,
        "cosine distance of observed from declared state above which DriftDetected is sent",
    ),
    Setting(
        "LOG_LEVEL",
        "info",
        _choice("debug", "info", "warning", "error"),
        "least important log line to write",
    ),
    Setting(
        "LOG_FORMAT",
        AUTO,
        _choice(AUTO, "console", "json", "journal"),
        "`console`, `json`, `journal`, or `auto`",
    ),
)
# The variable that names the TOML file; it is no setting itself.
CONFIG_FILE_VARIABLE: Final = PREFIX + "CONFIG"
# What an engine is opened with: these can change while serving, by opening another one.
ENGINE_SETTINGS: Final = frozenset(
    "execution_provider gpu_device vector_level model model_dir precision batch_tokens"
    " queue_limit threads gpu_mem_limit max_loaded_bytes".split()
)
BY_KEY: Final = {setting.key: setting for setting in SETTINGS}


@dataclass(frozen=True, slots=True)
class Config:
    """The effective settings; `sources` says where each came from."""

    execution_provider: ProviderRequest
    gpu_device: tuple[str, ...]
    vector_level: str
    model: Path | None
    model_dir: Path
    precision: str
    state_file: Path
    state_dir: Path
    bus: str
    batch_tokens: int | None
    queue_limit: int | None
    threads: int | None
    gpu_mem_limit: int | None
    max_loaded_bytes: int | None
    drift_threshold: float
    log_level: str
    log_format: str
    sources: Mapping[str, str] = field(repr=False)

    def on(self, provider: str, device: str = "") -> Config:
        """Give these settings with another provider and, if given, device; raises InvalidArgs."""
        given = {"execution_provider": provider, **({"gpu_device": device} if device else {})}
        problems: list[str] = []
        values = {
            key: _parsed(BY_KEY[key], text, "call", problems=problems)
            for key, text in given.items()
        }
        if problems:
            raise InvalidArgs("\n".join(problems))
        return replace(self, **values, sources={**self.sources, **dict.fromkeys(given, "call")})

    def differing(self, other: Config) -> set[str]:
        """Give the keys of the settings that have another value there."""
        return {key for key in BY_KEY if getattr(self, key) != getattr(other, key)}

    def rows(self) -> list[tuple[str, str, str]]:
        """Give (variable, effective value, source) for each setting, in the table's order."""
        return [(s.variable, self._shown(s.key), self.sources[s.key]) for s in SETTINGS]

    def _shown(self, key: str) -> str:
        value = getattr(self, key)
        if isinstance(value, tuple):
            return ",".join(value)
        if value is not None:
            return str(value)
        return AUTO if BY_KEY[key].default == AUTO else ""


def load(
    environ: Mapping[str, str], flags: Mapping[str, str] | None = None, euid: int | None = None
) -> Config:
    """Read the settings: flags win over variables, variables over the file, over the defaults.

    Where data lies by default depends on whom the program runs as (`euid`; None: ask the system).
    Raises ConfigError with every bad value in one message.
    """
    problems: list[str] = []
    texts = {setting.key: (setting.default, "default") for setting in SETTINGS}
    texts |= _from_file(environ.get(CONFIG_FILE_VARIABLE, ""), problems)
    texts |= _from_environ(environ, problems)
    texts |= {key: (text, "flag") for key, text in (flags or {}).items()}
    values = {key: _parsed(BY_KEY[key], *given, problems=problems) for key, given in texts.items()}
    if problems:
        raise ConfigError("\n".join(problems))
    root = _is_root() if euid is None else euid == 0
    data = _data_home(environ, "XDG_DATA_HOME", root=root)
    values["model_dir"] = values["model_dir"] or data / "models"
    values["state_dir"] = values["state_dir"] or _data_home(environ, "XDG_STATE_HOME", root=root)
    return Config(**values, sources={key: source for key, (_, source) in texts.items()})


def _from_environ(environ: Mapping[str, str], problems: list[str]) -> dict[str, tuple[str, str]]:
    found = {}
    for variable, text in environ.items():
        if not variable.startswith(PREFIX) or variable == CONFIG_FILE_VARIABLE:
            continue
        key = variable.removeprefix(PREFIX).lower()
        if key in BY_KEY and variable == BY_KEY[key].variable:
            # An empty variable is how a unit or a shell unsets one.
            if text:
                found[key] = (text, "environment")
        else:
            names = [s.variable for s in SETTINGS] + [CONFIG_FILE_VARIABLE]
            problems.append(_unknown(variable, names, "the environment"))
    return found


def _from_file(path: str, problems: list[str]) -> dict[str, tuple[str, str]]:
    if not path:
        return {}
    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        problems.append(f"{CONFIG_FILE_VARIABLE}: cannot read {path}: {error}")
        return {}
    found = {}
    for key, value in table.items():
        if key not in BY_KEY:
            problems.append(_unknown(key, BY_KEY, path))
        elif isinstance(value, list):
            found[key] = (",".join(map(str, value)), path)
        else:
            found[key] = (str(value), path)
    return found


def _parsed(setting: Setting, text: str, source: str, *, problems: list[str]) -> Any:  # noqa: ANN401 -- each row has its own type
    try:
        return setting.parse(text.strip())
    except ValueError as error:
        problems.append(f"{_given(setting, text, source)} is not accepted: give {error}")
        return None


def _given(setting: Setting, text: str, source: str) -> str:
    """Give a value as it was written, where that was."""
    if source == "flag":
        return f"{setting.flag} {shlex.quote(text)}"
    where = "" if source == "environment" else f" (in {source})"
    return f"{setting.variable}={text!r}{where}"


def _unknown(name: str, accepted: Iterable[str], where: str) -> str:
    # Compared without the prefix and in one case: those say nothing about what was meant.
    plain = {_plain(known): known for known in accepted}
    close = difflib.get_close_matches(_plain(name), plain, n=2, cutoff=0.55)
    hint = " or ".join(plain[match] for match in close)
    hint = f": did you mean {hint}?" if hint else "; `op-dbus config` lists them all"
    return f"{name} in {where} is not a setting{hint}"


def _plain(name: str) -> str:
    return name.upper().replace("-", "_").removeprefix(PREFIX)


def _data_home(environ: Mapping[str, str], variable: str, *, root: bool) -> Path:
    """Where data lies: the system's folder for root, the user's own (XDG) for everyone else."""
    if root:
        return Path("/var/lib/op-dbus")
    fallback = {"XDG_DATA_HOME": ".local/share", "XDG_STATE_HOME": ".local/state"}[variable]
    home = environ.get(variable, "")
    if not Path(home).is_absolute():  # the XDG specification: then it is to be ignored
        home = str(Path(environ.get("HOME") or "~").expanduser() / fallback)
    return Path(home) / "op-dbus"


def _is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0
