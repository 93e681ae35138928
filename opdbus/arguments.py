"""Validation of arguments of the library: settings and texts."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

from opdbus import config
from opdbus.config import Config
from opdbus.errors import ConfigError, InvalidArgs

# Default folders of data depend on these variables.
_HOMES: Final = ("HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")


def read_settings(given: Mapping[str, object], environ: Mapping[str, str]) -> Config:
    """Return settings from arguments; raises ConfigError with all bad values in one message.

    Of the environment, only the variables of home folders are read.
    """
    texts = {key: str(value) for key, value in given.items() if value is not None}
    if unknown := ", ".join(texts.keys() - config.BY_KEY.keys()):
        raise ConfigError(f"there is no setting {unknown}; see `op-dbus config`")
    homes = {name: environ[name] for name in _HOMES if name in environ}
    return config.load(homes, texts, source=config.ARGUMENT)


def listed(texts: Iterable[str]) -> list[str]:
    """Return all texts of an iterable; raises InvalidArgs if one is not a valid text."""
    found = list(iterator(texts))
    check(found)
    return found


def iterator(texts: Iterable[str]) -> Iterator[str]:
    """Return an iterator over texts; raises InvalidArgs if they are not an iterable."""
    if not isinstance(texts, str | bytes):
        # the caller's own generator runs outside this block: its errors are the caller's
        with suppress(TypeError):
            return iter(texts)
    raise InvalidArgs(
        f"texts must be a list of str or another iterable of them, not {type(texts).__name__}:"
        " write [text] for a single text"
    )


def check(texts: Sequence[str], first: int = 0) -> None:
    """Raise InvalidArgs if a text is not valid; errors count from the number `first`."""
    for number, text in enumerate(texts, first):
        if not isinstance(text, str):
            kind = type(text).__name__
            raise InvalidArgs(f"text number {number}, counted from 0, is {kind}, not str")
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise InvalidArgs(
                    f"text number {number}, counted from 0, is not Unicode: its character"
                    f" {error.start} is a lone surrogate"
                ) from None
