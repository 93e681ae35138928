"""What programs hand to the library, checked: settings and texts."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

from opdbus import config
from opdbus.config import Config
from opdbus.errors import ConfigError, InvalidArgs

# Where data lies by default depends on these, as for every other program of the user.
_HOMES: Final = ("HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")


def read_settings(given: Mapping[str, object], environ: Mapping[str, str]) -> Config:
    """Read arguments as settings; raises ConfigError with every bad value in one message.

    Of the environment, only the homes of the user are read.
    """
    texts = {key: str(value) for key, value in given.items() if value is not None}
    if unknown := ", ".join(texts.keys() - config.BY_KEY.keys()):
        raise ConfigError(f"there is no setting {unknown}; see `op-dbus config`")
    homes = {name: environ[name] for name in _HOMES if name in environ}
    return config.load(homes, texts, source=config.ARGUMENT)


def listed(texts: Iterable[str]) -> list[str]:
    """Return all texts of an iterable; raises InvalidArgs for what is no text."""
    found = list(iterator(texts))
    check(found)
    return found


def iterator(texts: Iterable[str]) -> Iterator[str]:
    """Begin to iterate over texts; raises InvalidArgs for what is no iterable of them."""
    if not isinstance(texts, str | bytes):
        # not around the caller's own generator, whose errors are the caller's
        with suppress(TypeError):
            return iter(texts)
    raise InvalidArgs(
        f"texts must be a list of str or another iterable of them, not {type(texts).__name__}:"
        " write [text] for a single text"
    )


def check(texts: Sequence[str], first: int = 0) -> None:
    """Raise InvalidArgs for what is no text; the first one has the number `first` in errors."""
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
