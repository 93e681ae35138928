"""Sends random calls to a daemon, as many as asked for, and judges every answer."""

from contextlib import suppress

from harness.running import ROOT_PATH as ROOT
from harness.running import VECTORIZER, Running

from fuzz import files, marshal
from fuzz.drawn import each
from fuzz.health import Health, memory_mib
from fuzz.judge import Tally
from fuzz.marshal import NO_REPLY, Variant
from fuzz.shots import LAST_JOB, STATE, Shot, Shots
from fuzz.wire import Gone, Silence, Wire

# After so many calls the daemon's health is looked at.
_ROUND = 500
_SLOW_SECONDS = 30.0


class Dead(Exception):
    """The daemon cannot go on; the tally says why."""


class Gun:
    """Sends calls on one connection, which is opened again where the bus has ended it."""

    def __init__(self, daemon: Running, tally: Tally) -> None:
        self._daemon = daemon
        self._tally = tally
        self._wire = Wire(daemon.bus)
        self._health = Health(daemon)
        self._last: list[Shot] = []
        self._job = LAST_JOB

    def fire(self, shot: Shot) -> None:
        """Send one call, and judge what comes back; raises Dead."""
        self._last = [*self._last[-4:], shot]
        try:
            self._tally.note(shot, self._answered(shot))
        except Gone:
            # a fault of ours or of the bus's: what the bus itself refuses never gets there
            self._tally.rows[shot.target].errors["(refused by the bus)"] += 1
            self._wire.socket.close()
            self._wire = Wire(self._daemon.bus)
        except Silence:
            self._tally.fault(f"no answer within {_SLOW_SECONDS:g} s", shot)
        if self._tally.calls % _ROUND == 0:
            self.check()

    def _answered(self, shot: Shot) -> marshal.Message | None:
        fields = marshal.call_fields(
            shot.path.replace(LAST_JOB, self._job),
            shot.interface,
            shot.member,
            shot.signature,
            len(shot.files),
        )
        body = marshal.encode(shot.signature, shot.body)
        serial = self._wire.serial()
        with files.opened(list(shot.files)) as numbers:
            data = marshal.message(fields, body, serial, flags=shot.flags)
            self._wire.send(data, numbers)
            for kind, number in zip(shot.files, numbers, strict=True):
                if kind in files.CHANGES:
                    files.CHANGES[kind](number)
            if shot.flags & NO_REPLY:
                return None
            return self._wire.answer(serial, _SLOW_SECONDS)

    def check(self) -> None:
        """Look at the daemon's health; raises Dead where it is no more."""
        for fault in self._health.faults():
            before = "\n    ".join(shot.line() for shot in self._last)
            self._tally.fault(f"{fault}\n  after\n    {before}")
        if not memory_mib(self._daemon.pid):
            raise Dead
        self._wire.signals.clear()
        self._job = self._new_job()

    def _new_job(self) -> str:
        """Have a job done: there it stays for a minute."""
        options = {"job": Variant("b", 1)}
        body = (0, options)
        self._answered(Shot("", ROOT, VECTORIZER, "VectorizeBulk", "ha{sv}", body, ("memfd",)))
        member = "org.freedesktop.DBus.Properties.Get"
        jobs = self._wire.call(ROOT, member, "ss", VECTORIZER, "Jobs").body()[0].value
        return str(jobs[-1])

    def close(self) -> None:
        """Hang up."""
        self._wire.socket.close()
        self._health.close()


def objects(daemon: Running) -> list[str]:
    """Name the objects that there are."""
    with Wire(daemon.bus) as wire:
        answer = wire.call(STATE, "org.opdbus.State1.List", "a{sv}uu", {}, 0, 100)
        return [path for path, *_ in answer.body()[1]]


def shoot(daemon: Running, tally: Tally, count: int, seed: int) -> None:
    """Send `count` calls, the same ones for the same seed."""
    gun = Gun(daemon, tally)
    try:
        with suppress(Dead):
            gun.check()
            # some are refused by the bus, and do not count
            each(Shots(objects(daemon)).any(), count + count // 50 + 10, seed, gun.fire)
            gun.check()
    finally:
        gun.close()
