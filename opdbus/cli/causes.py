"""Plain words for the causes of changes; pure."""

import re
from collections.abc import Callable, Mapping
from typing import Final

from opdbus.history import jobs

# Cause of a drift that the host should have followed after a recent declaration, but did not in
# time.
NOT_FOLLOWED: Final = "state file:not followed"
_CAUSES: Final[Mapping[str, str]] = {
    "first": "listed for the first time",
    "start": "while op-dbus was not running",
    "boot": "while this host was not running",
    "reload": "systemd reloaded its units",
    "exit": "its own process ended",
    "state file": "by the state file",
    jobs.GAVE_UP: "it ended too often: systemd gave up",
    NOT_FOLLOWED: "the state file was not followed",
    "kernel": "by the kernel",
    "source": "with its source",
    "": "cause not known",
}
# Causes with a value after a colon: their text, which may include the value.
_WITH_MORE: Final[Mapping[str, str]] = {
    "start": _CAUSES["start"],
    "exit": f"{_CAUSES['exit']} ({{}})",
    "job": "job {}",
    "bus": "by {}",
}
_RUN: Final = re.compile(r"(dpkg|apt|rpm):\d{4}-\d\d-\d\dT(\d\d:\d\d)\S*(?: (.+))?")
_CALLER: Final = re.compile(r"bus:(:\S+) uid ([0-9]{1,10})")


def said(text: str, user: Callable[[int], str] = lambda uid: f"uid {uid}") -> str:
    """Return a cause in plain words; `user` returns the name of a uid."""
    if text.startswith("during "):
        return f"during {said(text.removeprefix('during '))}"
    if text.startswith("unit exit"):
        return said(text.removeprefix("unit ")).replace("its own process", "its unit's process")
    text = jobs.alone(text)
    if run := _RUN.fullmatch(text):
        return f"package run {run[2]} {run[3] or run[1]}"
    if caller := _CALLER.fullmatch(text):
        return f"by {user(int(caller[2]))} ({caller[1]})"
    sort, colon, rest = text.partition(":")
    if text not in _CAUSES and colon and sort in _WITH_MORE:
        return _WITH_MORE[sort].format(rest)
    return _CAUSES.get(text, text)
