"""Parsers for the text of one setting; a parser's ValueError states the accepted values."""

import difflib
import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

AUTO: Final = "auto"
# Begins the name of a provider that is one or several embedding servers.
REMOTE: Final = "remote:"
NONE: Final = "none"
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
LEVEL_ALIASES: Final = {"med": "medium"}
PROVIDER_ALIASES: Final = {"gpu": "cuda", "trt": "tensorrt", "dml": "directml", "rocm": "migraphx"}
# Words for hardware, which others use for the provider that runs on it.
_MEANT: Final = dict(
    pair.split("=")
    for pair in "nvidia=cuda amd=rocm hip=rocm intel=openvino npu=openvino apple=coreml mps=coreml"
    " metal=coreml vulkan=webgpu directx=directml processor=cpu".split()
)
# The chain for `auto`: any accelerator that passes its proof, else the CPU. TensorRT is left out,
# since building its engine takes minutes.
AUTO_CHAIN: Final = ("cuda", "migraphx", "openvino", "directml", "coreml", "webgpu", "cpu")
ALL_DEVICES: Final = "all"
# Begins the UUID of a part of an NVIDIA GPU, in lower case.
MIG: Final = "mig-"
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
# The runtimes take signed 64-bit numbers.
_MAX_BYTES: Final = 1 << 63
_MAX_DIGITS: Final = 18
_LONGEST_WORD: Final = 64
# [NAME=]unix:/PATH or [NAME=]HOST:PORT
_TCP_ADDRESS: Final = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s:/=]+):\d{1,5}")
_ADDRESS: Final = re.compile(rf"(?:(?:http|write|metrics)=)?(?:unix:/.*|{_TCP_ADDRESS.pattern})")


@dataclass(frozen=True, slots=True)
class ProviderRequest:
    """Execution providers that may run the model, best first; a single one has no fallback."""

    names: tuple[str, ...]

    @property
    def is_auto(self) -> bool:
        """True for `auto`, which passes over absent hardware without a fallback."""
        return self.names == AUTO_CHAIN

    def __str__(self) -> str:
        """Return the request as written in a setting."""
        return AUTO if self.is_auto else ",".join(self.names)


def choice(*accepted: str, aliases: Mapping[str, str] | None = None) -> Callable[[str], str]:
    """Return a parser for one of several words, in any case, or for an alias of one."""

    def parse(text: str) -> str:
        value = (aliases or {}).get(text.strip().lower(), text.strip().lower())
        if value not in accepted:
            known = [*accepted, *(aliases or {})]
            raise ValueError(f"one of {', '.join(known)}{suggest(value, known)}")
        return value

    return parse


def suggest(text: str, known: Iterable[str]) -> str:
    """Return a question after the known word that is most like another one; empty if none is."""
    close = difflib.get_close_matches(text[:_LONGEST_WORD].lower(), [*known], n=1)
    return f"; did you mean {close[0]}?" if close else ""


def decimal(text: str) -> int | None:
    """Return the number that up to 18 ASCII digits form; None for another text.

    int() also accepts underscores, blanks and digits of any script, and raises ValueError for more
    than 4,300 digits.
    """
    is_number = text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS
    return int(text) if is_number else None


def whole(low: int, high: int) -> Callable[[str], int]:
    """Return a parser for a whole number in a range."""

    def parse(text: str) -> int:
        number = decimal(text.strip().removeprefix("-"))
        value = low - 1 if number is None else -number if "-" in text else number
        if not low <= value <= high:
            raise ValueError(f"a whole number from {low} to {high}")
        return value

    return parse


def integer(low: int, high: int) -> Callable[[str], int | None]:
    """Return a parser for a whole number in a range, or `auto` as None."""
    parse = whole(low, high)
    return lambda text: _or_auto(parse, text, "auto or")


def path(text: str) -> Path:
    """Parse a path into an absolute one; `~` and `~NAME` are home folders."""
    if not text or "\0" in text:
        raise ValueError("a path")
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError:
        raise ValueError(f"a path; there is no home folder {Path(text).parts[0]}") from None
    except OSError as error:
        raise ValueError(f"a full path: the working folder is gone ({error.strerror})") from None


def optional_path(text: str) -> Path | None:
    """Parse a path; None if empty."""
    return path(text) if text else None


def database_url(text: str) -> str:
    """Parse the URL of a PostgreSQL database, without a password; it may be empty."""
    if not text:
        return text
    parts = urlsplit(text)
    if parts.scheme not in {"postgresql", "postgres"}:
        raise ValueError("postgresql://USER@HOST:PORT/DATABASE")
    if parts.password:
        raise ValueError("a URL without the password, which a file holds")
    return text


def size(text: str) -> int | None:
    """Parse a number of bytes with a binary unit, or `auto` as None."""
    return _or_auto(amount, text, "auto, or")


def amount(text: str) -> int:
    """Parse a number of bytes with a binary unit."""
    digits = text.lower().removesuffix("b").removesuffix("i")
    unit = digits[-1:] if digits[-1:] in _UNITS else ""
    number = digits.removesuffix(unit).strip()
    value = (decimal(number) or 0) * _UNITS[unit]
    if not 0 < value < _MAX_BYTES:
        raise ValueError("a number of bytes such as 512M or 8G")
    return value


def _or_auto(parse: Callable[[str], int], text: str, before: str) -> int | None:
    if text.lower() == AUTO:
        return None
    try:
        return parse(text)
    except ValueError as error:
        raise ValueError(f"{before} {error}") from None


def bus(text: str) -> str:
    """Parse a message bus: `system`, `session` or a D-Bus address."""
    is_address = ":" in text and "=" in text and "\0" not in text
    if text in {"system", "session"} or is_address:
        return text
    raise ValueError("system, session, or an address such as unix:path=/run/dbus/my.sock")


def name_list(text: str) -> tuple[str, ...]:
    """Parse words separated by commas, such as names of observers; `none` is an empty tuple."""
    found = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if not all(re.fullmatch(r"[A-Za-z0-9_][\w.:/-]*", name) for name in found):
        raise ValueError("auto, none, or names separated by commas")
    if len(found) > 1 and NONE in found:
        raise ValueError("none alone, or names separated by commas, auto among them or not")
    return () if found == (NONE,) else found


def addresses(text: str) -> tuple[str, ...]:
    """Parse addresses to listen on, separated by commas."""
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    if not all(_ADDRESS.fullmatch(address) for address in found):
        raise ValueError("unix:/PATH or HOST:PORT, several separated by commas")
    return found


def host_names(text: str) -> tuple[str, ...]:
    """Parse names of hosts, separated by commas."""
    found = tuple(part.strip().lower() for part in text.split(",") if part.strip())
    if not all(re.fullmatch(r"[a-z0-9._-]+", name) for name in found):
        raise ValueError("names of hosts without ports, such as memory.example.org")
    return found


def tcp_addresses(text: str) -> tuple[str, ...]:
    """Parse addresses of TCP to listen on, separated by commas; at least one."""
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    if not found or not all(map(_TCP_ADDRESS.fullmatch, found)):
        raise ValueError("ADDRESS:PORT or [ADDRESS]:PORT, several separated by commas")
    return found


def server_names(text: str) -> tuple[str, ...]:
    """Parse names and addresses of a server, separated by commas."""
    found = tuple(part.strip().lower() for part in text.split(",") if part.strip())
    for each in found:
        if ":" in each:
            ipaddress.IPv6Address(each)
        elif not re.fullmatch(r"[a-z0-9._-]+", each):
            raise ValueError("names or addresses without ports, such as memory.example.org")
    return found


def fields(text: str) -> tuple[str, ...]:
    """Parse fields in the form plugin/kind:field, separated by commas."""
    found = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not all(re.fullmatch(r"[^/:\s]+/[^/:\s]+:\S+", name) for name in found):
        raise ValueError("fields such as net/interface:mtu, separated by commas")
    return found


def providers(text: str) -> ProviderRequest:
    """Parse a chain of execution providers, or `auto`."""
    if text.lower() == AUTO:
        return ProviderRequest(AUTO_CHAIN)
    names = tuple(dict.fromkeys(_provider(part.strip()) for part in text.split(",")))
    for name in names:
        if name not in PROVIDERS and not name.startswith(REMOTE):
            known = [AUTO, *PROVIDERS, *PROVIDER_ALIASES]
            # as ONNX Runtime and torch write them: CUDAExecutionProvider, cuda:0
            plain = name.removesuffix("executionprovider").rstrip(":0123456789")
            meant = suggest(_MEANT.get(plain, plain), known)
            accepted = ", ".join([*known, "remote:URL"])
            raise ValueError(
                f"one of {accepted}, or several in order of preference: cuda,cpu{meant}"
            )
    return ProviderRequest(names)


def _provider(text: str) -> str:
    """Return a provider's name in its one spelling; raises ValueError for a bad address."""
    name = text.lower()
    if not name.startswith(REMOTE):
        return PROVIDER_ALIASES.get(name, name)
    return REMOTE + _read_url(text[len(REMOTE) :].strip())


def remote_url(name: str) -> str:
    """Return the address in the name of a remote provider."""
    return name.removeprefix(REMOTE)


def provider_label(name: str) -> str:
    """Return a provider's name in metrics: without the address of a remote one."""
    return REMOTE.rstrip(":") if name.startswith(REMOTE) else name


def _read_url(text: str) -> str:
    try:
        url = urlsplit(text)
        is_host = (
            url.scheme in {"http", "https"} and url.hostname and (url.port is None or url.port)
        )
    except ValueError:
        raise ValueError(f"an address that can be read in place of {text}") from None
    if "@" in url.netloc or url.query:
        raise ValueError(
            "remote:URL without a user, a password or a query; a token belongs into the file that"
            " OP_DBUS_REMOTE_TOKEN_FILE names"
        )
    is_socket = url.scheme == "unix" and not url.netloc and url.path.startswith("/")
    if not (is_host or is_socket) or not text.isprintable() or " " in text:
        raise ValueError(
            "remote:http://HOST:PORT, remote:https://HOST or remote:unix:/SOCKET, with #MODEL at"
            " its end where the server has several models; several servers are a chain, such as"
            " remote:URL,remote:URL"
        )
    path = url.path.rstrip("/") + (f"#{url.fragment}" if url.fragment else "")
    return f"unix:{path}" if is_socket else f"{url.scheme}://{url.netloc.lower()}{path}"


def devices(text: str) -> tuple[str, ...]:
    """Parse indexes or UUIDs of devices, or `all`."""
    if text.lower() == ALL_DEVICES:
        return (ALL_DEVICES,)
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    is_index = all(name.isascii() and name.isdigit() for name in names)
    is_uuid = all(name.lower().startswith(("gpu-", MIG)) for name in names)
    if not is_index and not is_uuid:
        raise ValueError(
            "the index of a device, 0 or more, several (0,1), a GPU's UUID or that of a MIG"
            " instance, or all"
        )
    return names
