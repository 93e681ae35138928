"""Jobs of cron and anacron: what runs when, as whom."""

import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from opdbus.observe import crontab
from opdbus.observe.crontab import Job
from opdbus.observe.reading import changed_at, files_in, in_thread, text_of
from opdbus.observe.report import Absent, Observer, Report
from opdbus.state.object import Json
from opdbus.state.watch import edits

# How often what lies in a folder runs.
_FOLDERS: Final = {
    "cron.hourly": "every hour",
    "cron.daily": "every day",
    "cron.weekly": "every week",
    "cron.monthly": "every month",
    "cron.yearly": "every year",
}
# As run-parts chooses; cron takes names with dots on some systems, but never those of other tools.
_RUN = re.compile(r"[A-Za-z0-9_-]+")
_LEFT = re.compile(
    r"\..*|.*(?:~|#|,v|\.(?:dpkg|ucf)-\w+|\.rpm(?:save|new|orig)|\.sw.|\.bak|\.orig)"
)
_PROGRAMS: Final = ("cron", "crond", "anacron", "fcron", "bcron-start")
_PATH: Final = "/usr/sbin:/usr/bin:/sbin:/bin"
_UNREAD: Final = "crontabs of users in /var/spool/cron are not read"
# Far more than any job's file has, and than there are.
_MAX_BYTES: Final = 1 << 20
_MAX_FILES: Final = 2_000
_MAX_LINES: Final = 5_000
_SETTLE_SECONDS: Final = 0.1
# Stands for all jobs of a file.
_CLOSED: Final = Job("", "", "", "")


@dataclass(frozen=True, slots=True)
class Cron:
    """Observes the files of the system's cron."""

    etc: Path = Path("/etc")
    path: str = _PATH

    async def observe(self, report: Report) -> None:
        """List all jobs whenever a file has changed; raises Absent."""
        files = [str(self.etc / name) for name in ("crontab", "anacrontab")]
        folders = [str(self.etc / name) for name in ("cron.d", *_FOLDERS)]
        async for _ in edits(files, folders, _SETTLE_SECONDS):
            changed = await in_thread(self._changed_at)
            found = await in_thread(self._list)
            none = "" if self._has_cron() else "there is no cron here that would run them"
            report.busy("; ".join(filter(None, [_UNREAD, *self._closed(), none])))
            cause = report.causes.run(changed) if report.has_listed("job") else ""
            report.replace("job", found, cause)

    def _changed_at(self) -> float:
        folders = [self.etc / name for name in ("cron.d", *_FOLDERS)]
        paths = [self.etc / "crontab", self.etc / "anacrontab", *folders]
        paths += [file for folder in folders for file in files_in(folder)][:_MAX_FILES]
        return max((changed_at(str(path)) for path in paths if path.exists()), default=0.0)

    def _closed(self) -> Iterator[str]:
        """Say which folders may not be looked into: hardened hosts close them."""
        folders = (self.etc / name for name in ("cron.d", *_FOLDERS))
        closed = [str(path) for path in folders if path.is_dir() and not _may_read(path)]
        if closed:
            yield f"{', '.join(closed)} may be read by root only"

    def _has_cron(self) -> bool:
        return any(shutil.which(name, path=self.path) for name in _PROGRAMS)

    def _list(self) -> dict[str, dict[str, Json]]:
        """Return jobs by their names; raises Absent where there is nothing of cron."""
        places = ("crontab", "anacrontab", "cron.d", *_FOLDERS)
        if not any((self.etc / name).exists() for name in places):
            raise Absent(f"there is no {self.etc}/crontab and no {self.etc}/cron.d")
        found: dict[str, dict[str, Json]] = {}
        times: Counter[str] = Counter()
        for name, file, job in self._jobs():
            # of several jobs with one program, each has a number
            unique = name
            while unique in found:
                times[name] += 1
                unique = f"{name} {times[name] + 1}"
            found[unique] = _properties(file, job)
        return found

    def _jobs(self) -> Iterator[tuple[str, Path, Job]]:
        """Yield the name of each job, its file, and the job."""
        for file in (self.etc / "crontab", *_files(self.etc / "cron.d")):
            if file.is_file() and not _may_read(file):
                yield str(file), file, _CLOSED
            for job in [*crontab.jobs(text_of(file, _MAX_BYTES))][:_MAX_LINES]:
                yield f"{file} {crontab.program(job.command)}".strip(), file, job
        file = self.etc / "anacrontab"
        for name, job in [*crontab.anacron_jobs(text_of(file, _MAX_BYTES))][:_MAX_LINES]:
            yield f"{file} {name}", file, job
        for folder, schedule in _FOLDERS.items():
            for file in _files(self.etc / folder):
                if _RUN.fullmatch(file.name) and os.access(file, os.X_OK):
                    yield str(file), file, Job("", schedule, "root", str(file))


def _properties(file: Path, job: Job) -> dict[str, Json]:
    if job == _CLOSED:
        said = "scheduled jobs that only root may read"
        return {"description": said, "file": str(file), "readable": False}
    program = crontab.program(job.command)
    what = program or job.command
    found: dict[str, Json] = {
        "description": f"scheduled job, runs {what} {job.schedule} as {job.user}",
        "schedule": job.schedule,
        "line": job.line,
        "user": job.user,
        "program": program,
        "command": job.command,
        "file": str(file),
    }
    return {key: value for key, value in found.items() if value}


def _may_read(path: Path) -> bool:
    return os.access(path, os.R_OK | (os.X_OK if path.is_dir() else 0))


def _files(folder: Path) -> list[Path]:
    return [path for path in files_in(folder) if not _LEFT.fullmatch(path.name)][:_MAX_FILES]


OBSERVER: Final = Observer("cron", "cron", Cron().observe)
