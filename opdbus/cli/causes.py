"""Causes of changes in plain words. Pure."""

import re
from collections.abc import Callable, Mapping
from typing import Final

_CAUSES: Final[Mapping[str, str]] = {
    "first": "listed for the first time",
    "start": "while op-dbus was not running",
    "boot": "while this host was not running",
    "reload": "systemd reloaded its units",
    "exit": "its own process ended",
    "state file": "by the state file",
    "kernel": "by the kernel",
    "source": "with its source",
    "": "cause not known",
}
_RUN: Final = re.compile(r"(dpkg|apt|rpm):\d{4}-\d\d-\d\dT(\d\d:\d\d)\S*(?: (.+))?")
_CALLER: Final = re.compile(r"bus:(:\S+) uid (\d+)")


def said(text: str, user: Callable[[int], str] = lambda uid: f"uid {uid}") -> str:
    """Say a cause in plain words; `user` names the user of a number."""
    if text in _CAUSES:
        return _CAUSES[text]
    if text.startswith("job:"):
        return f"job {text.removeprefix('job:')}"
    if run := _RUN.fullmatch(text):
        return f"package run {run[2]} {run[3] or run[1]}"
    if caller := _CALLER.fullmatch(text):
        return f"published by {user(int(caller[2]))} ({caller[1]})"
    if text.startswith("bus:"):
        return f"by {text.removeprefix('bus:')}"
    return text
