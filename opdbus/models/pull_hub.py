"""Download of models from the hub; the daemon never imports this module."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from huggingface_hub.constants import ENDPOINT
from huggingface_hub.errors import (
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.file_download import hf_hub_download
from huggingface_hub.hf_api import HfApi, ModelInfo, RepoSibling
from huggingface_hub.utils import logging

from opdbus.errors import ModelError
from opdbus.models import folder, level_table, model_store

if TYPE_CHECKING:
    from opdbus.models.folder import Record
    from opdbus.models.level_table import Level
    from opdbus.models.model_store import Notify

# base error of the HTTP library that the installed huggingface_hub uses
_TransportError: Final[type[Exception]] = HfHubHTTPError.__bases__[0]
# ValueError, TypeError and KeyError: the answer of a server that is no hub
_FAULTS: Final = (_TransportError, OSError, ValueError, TypeError, KeyError)
_BY_HAND: Final = "copy the model with `op-dbus models import DIR {level}`"
# the first match is used
_SENTENCES: Final[tuple[tuple[type[Exception], str], ...]] = (
    (
        RevisionNotFoundError,
        "{repository} has no revision {revision} on {hub}: give --revision one that is there",
    ),
    (
        RepositoryNotFoundError,
        "there is no public repository {repository} on {hub}: check HF_ENDPOINT",
    ),
    (
        OfflineModeIsEnabled,
        "cannot get {what}: HF_HUB_OFFLINE forbids it; unset it, or " + _BY_HAND,
    ),
    (
        HfHubHTTPError,
        "cannot get {what}: {hub} answered {status}; try again later, or check HF_ENDPOINT",
    ),
    (_TransportError, "cannot get {what} from {hub}: {reason}; check the network, or " + _BY_HAND),
    (OSError, "cannot get {what} from {hub}: {reason}; pull again, or " + _BY_HAND),
    (Exception, "cannot get {what}: {hub} does not answer as a hub does; check HF_ENDPOINT"),
)
_TIMEOUT_SECONDS: Final = 30
# number in a system error such as `[Errno -3] Temporary failure in name resolution`
_NUMBER: Final = re.compile(r"\[Errno -?\d+\] ")
_MAIN: Final = "main"


@dataclass(frozen=True, slots=True)
class Request:
    """A revision to pull, and its hub.

    `revision` is a branch, tag or commit; empty: the recorded one, or main. `endpoint` is the hub's
    address; None: as in HF_ENDPOINT.
    """

    revision: str = ""
    force: bool = False
    endpoint: str | None = None


def pull(level: Level, directory: Path, request: Request, notify: Notify) -> Record:
    """Download a level's model into the model directory, or check the existing one.

    Files that differ from those that the first pull recorded are refused unless `force`. Raises
    ModelError.
    """
    # the library would log every retry
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # it has no types
    with model_store.locked(level, directory, notify) as destination:
        held = None if request.force else destination.recorded()
        if held and destination.is_whole(held) and request.revision in {"", held.revision}:
            folder.check_model(destination.folder, level)
            return held
        asked = request.revision or (held.revision if held else "") or _MAIN
        return destination.put(
            _Hub(level, asked, request.endpoint, notify).fill, force=request.force
        )


@dataclass(frozen=True, slots=True)
class _Hub:
    """One repository at one revision."""

    level: Level
    revision: str
    endpoint: str | None
    notify: Notify

    def fill(self, fresh: Path) -> tuple[str, str]:
        """Download the files of a model, and return their repository and commit."""
        with self._explaining():
            info = HfApi(self.endpoint).model_info(
                self.level.repository,
                revision=self.revision,
                timeout=_TIMEOUT_SECONDS,
                files_metadata=True,
            )
        files = self._wanted(info)
        commit = info.sha or self.revision
        for file in files:
            self._download(file, commit, fresh)
        # the library's notes on its downloads
        shutil.rmtree(fresh / ".cache", ignore_errors=True)
        return self.level.repository, commit

    def _wanted(self, info: ModelInfo) -> list[RepoSibling]:
        files = {file.rfilename: file for file in info.siblings or ()}
        lacking = [name for name in level_table.TRANSFORMER.required if name not in files]
        if level_table.WEIGHTS in lacking:
            raise ModelError(
                f"{self._what} has no {level_table.WEIGHTS}: op-dbus reads no other kind of"
                " weights, since those can run code when they are loaded; ask for another"
                " --revision"
            )
        if lacking:
            raise ModelError(
                f"{self._what} lacks {', '.join(lacking)}, so it is no sentence-transformers model"
                " that op-dbus can read; ask for another --revision"
            )
        return [files[name] for name in level_table.TRANSFORMER.files if name in files]

    def _download(self, file: RepoSibling, commit: str, fresh: Path) -> None:
        with self._explaining(file.rfilename):
            path = hf_hub_download(
                self.level.repository,
                file.rfilename,
                revision=commit,
                local_dir=fresh,
                # a new folder, so that no file comes from another program's cache
                cache_dir=fresh / ".cache",
                endpoint=self.endpoint,
            )
        found = folder.sha256(fresh / file.rfilename)
        if file.lfs is not None and file.lfs.sha256 != found:
            raise ModelError(
                f"{file.rfilename} of {self._what} came damaged: its sha256 is {found[:16]}...,"
                f" not {file.lfs.sha256[:16]}...; pull it again"
            )
        self.notify(f"{file.rfilename}  {(fresh / path).stat().st_size} bytes  {found}")

    @property
    def _what(self) -> str:
        return f"{self.level.repository} at {self.revision}"

    @contextmanager
    def _explaining(self, file: str = "") -> Iterator[None]:
        """Convert errors of huggingface_hub to ModelError; system errors with a number pass."""
        try:
            yield
        except _FAULTS as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            sentence = next(text for kind, text in _SENTENCES if isinstance(error, kind))
            raise ModelError(
                sentence.format(
                    what=f"{file} of {self._what}" if file else self._what,
                    repository=self.level.repository,
                    revision=self.revision,
                    level=self.level.name,
                    hub=self.endpoint or ENDPOINT,
                    status=getattr(getattr(error, "response", None), "status_code", ""),
                    reason=_reason(error),
                )
            ) from None


def _reason(error: Exception) -> str:
    """Return the first line of an error's message without the system's error number."""
    said = (str(error).strip() or type(error).__name__).splitlines()[0]
    return _NUMBER.sub("", said).rstrip(".")
