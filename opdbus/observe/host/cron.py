"""Observer of the jobs of cron and anacron."""

import os
import pwd
import re
import shutil
import stat
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from opdbus.observe.core.file_reading import changed_at, files_in, in_thread, read_at_most, text_of
from opdbus.observe.core.report import Absent, Observer, Report, join_by_name
from opdbus.observe.core.skipped import Skipped
from opdbus.observe.host import crontab
from opdbus.observe.host.crontab import Job
from opdbus.observe.systemd import pid1
from opdbus.platform.accounts import user_name
from opdbus.platform.lines import join_words
from opdbus.platform.regular_files import answers
from opdbus.state.object import Json
from opdbus.state.redact import redact_text
from opdbus.state.watch import edits

# The schedule of the scripts in a folder.
_FOLDERS: Final = {
    "cron.hourly": "every hour",
    "cron.daily": "every day",
    "cron.weekly": "every week",
    "cron.monthly": "every month",
    "cron.yearly": "every year",
}
# File names that Debian's cron and run-parts accept, and those that cronie's accept.
_DEBIAN: Final = re.compile("[A-Za-z0-9_-]+")
_CRONIE: Final = re.compile(r"(?![.#]).*(?<!~)(?<!\.rpmsave)(?<!\.rpmorig)(?<!\.rpmnew)", re.DOTALL)
_LEFT_BESIDE: Final = re.compile(r".*(?:[#,]|,v|\.(?:dpkg|ucf)-\w+|\.sw.|\.cfsaved)", re.DOTALL)
# Strings that distinguish the two programs, which have one name on some systems.
_OF_CRONIE, _OF_DEBIAN = b"cronie", b"this crontab file will be ignored"
_PROGRAMS: Final = ("cron", "crond", "anacron", "fcron", "bcron-start")
_SERVICES: Final = tuple(f"{name}.service" for name in (*_PROGRAMS[:-1], "cronie", "bcron"))
_NO_CRON: Final = "there is no cron here that would run them"
_PATH: Final = "/usr/sbin:/usr/bin:/sbin:/bin"
_UNREAD: Final = "crontabs of users in /var/spool/cron are not read"
# Far above the size of a crontab and the number of files.
_MAX_BYTES: Final = 1 << 20
_MAX_FILES: Final = 2_000
_MAX_LINES: Final = 5_000
_SETTLE_SECONDS: Final = 0.1
_MAX_PROGRAM_BYTES: Final = 1 << 20
_MAX_COMMAND: Final = 4096
# NAME_MAX of Linux.
_MAX_PROGRAM: Final = 255
# The rest of a command, up to the next one, a redirection or its input.
# What stands behind a program, whose name has ended.
_ARGUMENTS: Final = re.compile(r"[\"']?(?![\w./-])([^;&|<>(){}\n%]*)")
# Represents all jobs of a file that only root may read.
_CLOSED: Final = Job("", "", "", "")


class _Dialect(NamedTuple):
    """The rules of the installed cron: accepted names and modes of files.

    A file is refused if its mode bits in `mask` are not `mode`; `mask` is 0 if the rules are not
    known.
    """

    names: re.Pattern[str]
    is_debian: bool = False
    mask: int = 0
    mode: int = 0


# As in cron(8) of both: not writable by others; for cronie also not executable.
_OF_DEBIANS: Final = _Dialect(_DEBIAN, is_debian=True, mask=0o022)
_OF_CRONIES: Final = _Dialect(_CRONIE, mask=0o7533, mode=0o400)


@dataclass(frozen=True, slots=True)
class Cron:
    """Observer of the system's crontabs and cron folders."""

    etc: Path = Path("/etc")
    path: str = _PATH
    # the user id that must own the files
    owner: int = 0
    # returns which of some services run
    running: Callable[[Collection[str]], Awaitable[list[str]]] = pid1.active_units

    async def observe(self, report: Report) -> None:
        """List all jobs after each change of a file; raises Absent."""
        # with passwd, since cron ignores the jobs of unknown users
        files = [str(self.etc / name) for name in ("crontab", "anacrontab", "passwd")]
        folders = [str(self.etc / name) for name in ("cron.d", *_FOLDERS)]
        async for _ in edits(files, folders, _SETTLE_SECONDS):
            changed = await in_thread(self._changed_at)
            skipped = Skipped()
            programs = await in_thread(self._programs)
            # the programs of a host are not in a container with its files
            services = [] if programs else await self.running(_SERVICES)
            names = programs or [name.removesuffix(".service") for name in services]
            found = await in_thread(partial(self._list, names, skipped))
            report.skip("job", skipped)
            limits = await in_thread(lambda: [*self._limits(folders)])
            report.busy("; ".join(limits if names else [*limits, _NO_CRON]))
            cause = report.causes.run(changed) if report.has_listed("job") else ""
            report.replace("job", found, cause)

    def _changed_at(self) -> float:
        folders = [self.etc / name for name in ("cron.d", *_FOLDERS)]
        paths = [self.etc / "crontab", self.etc / "anacrontab", *folders]
        paths += [file for folder in folders for file in files_in(folder)][:_MAX_FILES]
        times = (changed_at(str(path)) for path in paths if answers(path) and path.exists())
        return max(times, default=0.0)

    def _limits(self, folders: list[str]) -> Iterator[str]:
        yield _UNREAD
        # as on hardened hosts
        paths = [Path(folder) for folder in folders if answers(folder)]
        closed = [str(path) for path in paths if path.is_dir() and not _may_read(path)]
        if closed:
            yield f"{', '.join(closed)} may be read by root only"

    def _programs(self) -> list[str]:
        found = (shutil.which(name, path=self.path) for name in _PROGRAMS)
        return [path for path in found if path]

    def _dialect(self, programs: Collection[str]) -> _Dialect:
        """Return the rules of the installed cron, recognised by strings in its program."""
        for program in filter(os.path.isabs, programs):
            with suppress(OSError):
                content, _ = read_at_most(Path(program), _MAX_PROGRAM_BYTES)
                if _OF_CRONIE in content or _OF_DEBIAN in content:
                    return _OF_CRONIES if _OF_CRONIE in content else _OF_DEBIANS
        # other distributions call it crond
        is_debian = any(Path(program).name == "cron" for program in programs)
        return _Dialect(_DEBIAN if is_debian else _CRONIE)

    def _list(self, programs: Collection[str], skipped: Skipped) -> dict[str, dict[str, Json]]:
        """Return jobs by name; raises Absent if cron has no files here."""
        places = ("crontab", "anacrontab", "cron.d", *_FOLDERS)
        if not any(os.path.lexists(self.etc / name) for name in places):
            raise Absent(f"there is no {self.etc}/crontab and no {self.etc}/cron.d")
        found: list[tuple[str, dict[str, Json]]] = []
        for name, file, job in self._jobs(self._dialect(programs), skipped):
            if job == _CLOSED:
                description = "scheduled jobs that only root may read"
                closed = {"description": description, "file": str(file), "readable": False}
                found.append((name, closed))
                continue
            zone = f" in the time zone {job.zone}" if job.zone else ""
            runs = f"runs {job.program or job.command} {job.schedule}{zone} as {job.user}"
            ignored = f", but cron ignores it: {job.ignored}" if job.ignored else ""
            properties = {
                "description": f"scheduled job, {runs}{ignored}",
                "schedule": job.schedule,
                "line": job.line,
                "timezone": job.zone,
                "ignored": job.ignored,
                "user": job.user,
                "program": job.program,
                "command": job.command,
                "file": str(file),
            }
            given = {key: value for key, value in properties.items() if value}
            found.append((f"{name} {_arguments(name, job)}".rstrip(" "), given))
        return join_by_name(found)

    def _jobs(self, dialect: _Dialect, skipped: Skipped) -> Iterator[tuple[str, Path, Job]]:
        """Yield the name, file and job of each job."""
        names = dialect.names
        tables = _files(self.etc / "cron.d", names, skipped)
        for file in (self.etc / "crontab", *(path for path in tables if not path.is_dir())):
            if answers(file) and file.is_file() and not _may_read(file):
                yield str(file), file, _CLOSED
                continue
            text = text_of(file, _MAX_BYTES, skipped)
            jobs = crontab.parse_crontab(
                text, file, skipped, is_debian=dialect.is_debian, is_user=_is_user
            )
            refused = self._reason_to_ignore(file, dialect)
            for job in jobs[:_MAX_LINES]:
                ignored = refused or job.ignored
                name = job.program.rpartition("/")[2]
                yield f"{file} {name}".rstrip(" "), file, job._replace(ignored=ignored)
        file = self.etc / "anacrontab"
        text = text_of(file, _MAX_BYTES, skipped)
        for name, job in [*crontab.parse_anacrontab(text, file, skipped)][:_MAX_LINES]:
            yield f"{file} {name}", file, job
        for folder, schedule in _FOLDERS.items():
            for file in _files(self.etc / folder, names, skipped):
                # run-parts ignores files that package managers and editors leave
                is_left = _LEFT_BESIDE.fullmatch(file.name)
                if not is_left and file.is_file() and os.access(file, os.X_OK):
                    yield str(file), file, Job("", schedule, "root", str(file))

    def _reason_to_ignore(self, file: Path, dialect: _Dialect) -> str:
        """Return why cron ignores a whole file (owner, mode or links); empty if it does not."""
        try:
            link, status = file.lstat(), file.stat() if answers(file) else file.lstat()
        except OSError:
            return ""
        if dialect.mask and (other := {link.st_uid, status.st_uid} - {self.owner}):
            return f"it belongs to {user_name(other.pop())}"
        if status.st_mode & dialect.mask != dialect.mode:
            return f"its mode is {stat.S_IMODE(status.st_mode):04o}"
        return "it has other hard links" if dialect.is_debian and status.st_nlink > 1 else ""


def _arguments(name: str, job: Job) -> str:
    """Return the words after the program that names a job: they tell it from others of that."""
    program = job.program.rpartition("/")[2]
    if not 0 < len(program) <= _MAX_PROGRAM or not name.endswith(f" {program}"):
        return ""
    # its secrets are recognized in the whole command only
    command = redact_text(job.command[:_MAX_COMMAND])
    found, at = "", command.find(program)
    while at >= 0:
        before, end = command[:at][-1:], at + len(program)
        is_name = not (before.isalnum() or before in {"_", ".", "-"})
        if is_name and (arguments := _ARGUMENTS.match(command, end)):
            found = arguments[1]
        at = command.find(program, end)
    return join_words(found)


def _is_user(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def _may_read(path: Path) -> bool:
    return os.access(path, os.R_OK | (os.X_OK if path.is_dir() else 0))


def _files(folder: Path, names: re.Pattern[str], skipped: Skipped) -> list[Path]:
    """Return the files of a folder with such names; what hangs is left out and noted."""
    found = []
    for path in [path for path in files_in(folder) if names.fullmatch(path.name)][:_MAX_FILES]:
        if answers(path):
            found.append(path)
        else:
            skipped.file(path)
    return found


OBSERVER: Final = Observer("cron", "cron", Cron().observe)
