"""Files with a token: one word, which not every user may read."""

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from opdbus.errors import ConfigError
from opdbus.platform.regular_files import open_regular

_MOST_BYTES = 1 << 16


def find_credential(path: Path | None, name: str, environ: Mapping[str, str]) -> Path | None:
    """Return a file, else that of systemd's credential of this name, if the unit has it."""
    folder = environ.get("CREDENTIALS_DIRECTORY")
    if not path and folder and Path(folder, name).exists():
        return Path(folder, name)
    return path


def read_token(path: Path, least: int = 1) -> str:
    """Return the word of a file; raises ConfigError, which never quotes it."""
    try:
        with os.fdopen(open_regular(path, follow=True), "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            token = file.read(_MOST_BYTES).decode().strip()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigError(f"cannot read the token in {path}: {reason}") from None
    # Windows has no such modes
    if os.name == "posix" and mode & stat.S_IRWXO:
        raise ConfigError(f"{path} is open to all users: `chmod o= {path}`, and take a new token")
    is_word = token.isascii() and token.isprintable() and len(token.split()) == 1
    if not is_word or len(token) < least:
        raise ConfigError(
            f"the file {path} has no token: write one word of at least {least} letters, digits and"
            f" signs into it, such as `openssl rand -hex 32 >{path}` does"
        )
    return token
