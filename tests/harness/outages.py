"""Plays outages on a store: a host as observers see it, noise, what broke a service, its failure.

The outages are those of tests/data/outages.json: odd ones may be looked at, even ones are held.
"""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from opdbus.config import Config
from opdbus.history.change import FIRST, Cause
from opdbus.history.row_filter import Filter
from opdbus.index.changes import connections, history_reader
from opdbus.index.changes.change_finder import ChangeFinder
from opdbus.index.state_store.state_store import StateStore
from opdbus.index.vectors.indexer import Indexer
from opdbus.index.vectors.object_vectors import ObjectVectors
from opdbus.observe.systemd.unit_mentions import find_mentions
from opdbus.serving.serving import Serving
from opdbus.state import conditions
from opdbus.state.object import Identity, ObjectId, StateObject

DATA = Path(__file__).parents[1] / "data" / "outages.json"
_SOURCES = {
    "systemd": "systemd",
    "files": "files",
    "net": "sockets",
    "packages": "packages",
    "users": "users",
    "mounts": "filesystems",
    "kernel": "kernel",
    "login1": "login1",
    "cron": "cron",
    "system": "host",
}
# What happens every day begins so many seconds before the failure.
_EARLIEST = 1500
_ANY = "0.0.0.0"  # noqa: S104 -- of a row
_LIBRARIES = "ssl3 c6 xml2 gnutls30 curl4 expat1 zstd1 pcre2-8-0 krb5-3 systemd0 x11-6 png16 tiff6"
_PROGRAMS = "vim-common tzdata bash coreutils openssh-server perl-base curl less base-files grub-pc"
_TIMED = "apt-daily logrotate man-db fstrim dpkg-db-backup phpsessionclean e2scrub_all certbot"
_OTHERS = "/etc/motd /etc/cron.d/statistics /etc/ssh/sshd_config.d/local.conf /etc/logrotate.d/app"
State = dict[str, Any]


class Host:
    """A host whose clock and objects change as a play says."""

    def __init__(self, memory: StateStore, clock: list[float]) -> None:
        self.memory = memory
        self._clock = clock
        self._now: dict[Identity, State] = {}

    async def begin(self, objects: Mapping[str, State]) -> None:
        """List what there is for the first time."""
        self._now = {_identity(path): dict(values) for path, values in objects.items()}
        listed = [StateObject(identity, values) for identity, values in self._now.items()]
        await self.memory.observe(listed, set(), {}, lambda _: Cause(FIRST))

    async def see(self, at: float, what: str, path: str, values: State, cause: str = "") -> None:
        """Observe one change; values are added to those that an object has."""
        self._clock[0] = at
        identity, why = _identity(path), Cause(cause)
        if what == "event":
            event = {identity: why._replace(is_event=True)}
            await self.memory.observe([], set(), {}, events=event)
        elif what == "gone":
            self._now.pop(identity, None)
            await self.memory.observe([], {identity}, {}, lambda _: why)
        else:
            state = self._now[identity] = {**self._now.get(identity, {}), **values}
            await self.memory.observe([StateObject(identity, state)], set(), {}, lambda _: why)


def read() -> dict[str, Any]:
    """Read the units and the outages."""
    found: dict[str, Any] = json.loads(DATA.read_text())
    return found


@asynccontextmanager
async def played(
    folder: Path, units: Mapping[str, Any], outage: Mapping[str, Any]
) -> AsyncIterator[StateStore]:
    """Give a memory in which an outage was played; its host's files are in `folder`/root."""
    clock = [1_800_000_000.0]
    _write(folder / "root", units)
    async with StateStore(folder / "memory.db", clock=lambda: clock[0]) as memory:
        host = Host(memory, clock)
        dice = random.Random(outage["n"])  # noqa: S311 -- repeatable noise
        await host.begin(_objects(units, outage))
        failed = clock[0] + 2 * _EARLIEST
        for at, what, path, values, cause in sorted(
            [*_noise(dice, units, outage), *_acts(outage), *_failure(units, outage)],
            key=lambda step: step[0],
        ):
            await host.see(failed + at, what, path, values, cause)
        yield memory


def _identity(path: str) -> Identity:
    plugin, kind, name = path.split("/", 2)
    return Identity(f"live:{_SOURCES[plugin]}", plugin, kind, name)


def _write(root: Path, units: Mapping[str, Any]) -> None:
    for name, unit in units.items():
        for path, text in {_fragment(name, unit): unit["text"], **unit.get("files", {})}.items():
            file = root / path.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)


def _fragment(name: str, unit: Mapping[str, Any]) -> str:
    stem, at, _ = name.partition("@")
    file = f"{stem}@.service" if at else name
    return f"/{'usr/lib' if unit['package'] else 'etc'}/systemd/system/{file}"


def _objects(units: Mapping[str, Any], outage: Mapping[str, Any]) -> dict[str, State]:
    """Give all objects of the host before anything happened."""
    found: dict[str, State] = {}
    for name, unit in units.items():
        found |= _of_unit(name, unit)
    packages = [f"lib{name}" for name in _LIBRARIES.split()] + _PROGRAMS.split()
    packages += [f"gir{number}-data" for number in range(60)]
    mounts = "/", "/var", "/data", "/mnt/vault", "/mnt/photos", "/srv/invoices", "/home"
    found |= {f"packages/package/{name}": _package(name, f"{name} files") for name in packages}
    found |= {f"systemd/unit/{name}.service": _idle(f"{name} run") for name in _TIMED.split()}
    found |= {f"mounts/mount/{path}": _mount(path) for path in mounts}
    of_nobody = _file("configuration of no package")
    found |= {f"files/file/{path}": dict(of_nobody) for path in _OTHERS.split()}
    for what, path, values, *_ in (act[1:] for act in outage["acts"]):
        if what != "appeared":
            found[path] = _before(path, found.get(path, {}), values)
    return found


def _of_unit(name: str, unit: Mapping[str, Any]) -> dict[str, State]:
    package, user = unit["package"], unit.get("user", "root")
    of = {"package": package} if package else {}
    found: dict[str, State] = {
        f"systemd/unit/{name}": {
            "description": unit["description"], "load_state": "loaded", "masked": False,
            "active_state": "active", "sub_state": "running", "unit_file_state": "enabled",
            "fragment_path": _fragment(name, unit), "exec": unit["exec"], "user": user,
            "enabled": True, "slice": "system.slice", "type": "notify", "restart": "no",
            **of, **({"requires": unit["requires"]} if "requires" in unit else {}),
        }
    }  # fmt: skip
    if package:
        found[f"packages/package/{package}"] = _package(package, unit["description"])
    if user != "root":
        found[f"users/account/{user}"] = _account(user)
    told = f"configuration of {package or 'no package'}"
    found |= {f"files/file/{path}": _file(told) | of for path in unit.get("files", {})}
    return found | {
        f"net/listener/tcp {_ANY}:{port}": _listener("tcp", _ANY, port)
        | {"unit": name, "user": user}
        for port in unit.get("ports", ())
    }


def _before(path: str, known: State, values: State) -> State:
    """Give what an object was before it was changed or left."""
    earlier = {key: _other(value) for key, value in values.items()}
    if path.startswith("packages/"):
        name = path.rpartition("/")[2]
        return _package(name, f"{name} programs") | {**known, **values, "version": "1.0-1"}
    if path.startswith("users/account/"):
        return _account(path.rpartition("/")[2]) | {"uid": 114, **known}
    if path.startswith(("mounts/", "systemd/")):
        return known or {**_mount(path.removeprefix("mounts/mount/")), **values}
    return {**earlier, **known}


def _other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    return f"{value}0" if isinstance(value, str) and value.isalnum() else value


def _package(name: str, summary: str) -> State:
    return {
        "version": "1.0-1", "architecture": "amd64", "status": "installed",
        "description": summary, "source": name.partition("-")[0], "automatic": True,
    }  # fmt: skip


def _account(name: str) -> State:
    return {"uid": 114, "gid": 114, "group": name, "groups": [], "home": f"/var/lib/{name}",
            "shell": "/usr/sbin/nologin", "system": True, "can_log_in": False,
            "administrator": False, "type": "system account"}  # fmt: skip


def _file(description: str) -> State:
    return {"description": description, "mode": "0644", "sha256": "0000", "size": 100}


def _listener(protocol: str, address: str, port: int) -> State:
    return {"protocol": protocol, "address": address, "family": "ipv4", "port": port,
            "state": "listening", "exposed": "all addresses"}  # fmt: skip


def _mount(path: str) -> State:
    return {"description": "", "source": f"/dev/{path.count('/')}", "fstype": "ext4",
            "options": "rw,relatime", "read_only": False, "network": False, "size_gb": 40.0,
            "used_percent": 45}  # fmt: skip


def _idle(description: str) -> State:
    return {
        "description": description, "load_state": "loaded", "masked": False,
        "active_state": "inactive", "sub_state": "dead", "unit_file_state": "static",
    }  # fmt: skip


Step = tuple[float, str, str, State, str]
_APT = "apt:2027-01-15T08:00:00 apt-get upgrade"


def _acts(outage: Mapping[str, Any]) -> list[Step]:
    steps: list[Step] = []
    for act in outage["acts"]:
        at, what, path, values = act[:4]
        cause = act[4] if len(act) > 4 else ""
        if path.startswith("net/listener/") and what == "appeared":
            protocol, _, where = path.removeprefix("net/listener/").partition(" ")
            address, _, port = where.rpartition(":")
            values = _listener(protocol, address, int(port)) | values
            # whoever had it lost it before
            steps.append((at - 1, "gone", path, {}, "job:801 stop"))
        elif path.startswith("files/") and what == "appeared":
            values = _file("configuration of no package") | values
        steps.append((at, what, path, values, _APT if cause == "apt" else cause))
    return steps


def _failure(units: Mapping[str, Any], outage: Mapping[str, Any]) -> list[Step]:
    """Let a unit fail, by itself or when it is restarted, and somebody try again."""
    path, unit = f"systemd/unit/{outage['unit']}", units[outage["unit"]]
    is_restart = outage["kind"] in {"file", "certificate", "package", "port", "user"}
    failed = {"active_state": "failed", "sub_state": "failed", "result": "exit-code",
              "exit_status": 1}  # fmt: skip
    cause = "job:812 restart" if is_restart else "exit"
    taken = {act[2] for act in outage["acts"]}
    ports = [f"net/listener/tcp 0.0.0.0:{port}" for port in unit.get("ports", ())]
    closed = [(-0.5, "gone", port, {}, cause) for port in ports if port not in taken]
    again = [(30.0, "event", path, {}, "job:820 start, failed")]
    return [*closed, (0.0, "changed", path, failed, cause), *again]


def _noise(dice: random.Random, units: Mapping[str, Any], outage: Mapping[str, Any]) -> list[Step]:
    """Give what else happens in the half hour before: some of it just before the failure."""
    others = [name for name in units if name != outage["unit"]]
    touched = {act[2] for act in outage["acts"]} | {
        f"systemd/unit/{name}" for name in units[outage["unit"]].get("requires", ())
    }
    steps: list[Step] = []

    def some_time(latest: float = 2.0) -> float:
        # half of it within two minutes
        return -dice.uniform(latest, dice.choice((120, _EARLIEST)))

    for name in dice.sample(_TIMED.split(), 4):
        at = some_time()
        steps.append(
            (at, "event", f"systemd/unit/{name}.service", {}, f"job:{700 + len(steps)} start")
        )
    for number in range(3):
        at = some_time()
        session = {"user": dice.choice(("alice", "bob")), "type": "tty", "class": "user"}
        steps.append((at, "appeared", f"login1/session/{20 + number}", session, ""))
    gauged = {"mounts/mount//", "mounts/mount//var"} - touched
    steps += [(some_time(), "changed", each, {"used_percent": 50}, "") for each in sorted(gauged)]
    path = dice.choice(_OTHERS.split())
    steps.append((some_time(), "changed", f"files/file/{path}", {"sha256": "1111", "size": 7}, ""))
    # another service is reconfigured and restarted
    other = dice.choice([name for name in others if units[name].get("files")])
    at, file = some_time(8), dice.choice(list(units[other]["files"]))
    if f"systemd/unit/{other}" not in touched:
        steps.append((at, "changed", f"files/file/{file}", {"sha256": "2222", "size": 9}, ""))
        steps.append((at + 4, "event", f"systemd/unit/{other}", {}, "job:790 restart"))
    # one more fails by itself, and is started again
    third = dice.choice([name for name in others if name != other])
    if f"systemd/unit/{third}" not in touched:
        at = some_time(20)
        path, down = f"systemd/unit/{third}", {"active_state": "failed", "sub_state": "failed"}
        steps.append((at, "changed", path, {**down, "result": "signal"}, "exit"))
        up = {"active_state": "active", "sub_state": "running", "result": ""}
        steps.append((at + 10, "changed", path, up, "job:795 start"))
    account = f"users/account/trainee{dice.randrange(9)}"
    steps.append((some_time(), "appeared", account, _account(account[-8:]) | {"uid": 1100}, ""))
    if outage["kind"] == "package" or dice.random() < 0.6:
        steps += _upgrade(dice, outage)
    return steps


def _upgrade(dice: random.Random, outage: Mapping[str, Any]) -> list[Step]:
    """Give a run of apt: of some packages or of nearly all."""
    names = [f"lib{name}" for name in _LIBRARIES.split()] + _PROGRAMS.split()
    names += [f"gir{number}-data" for number in range(60)]
    ours = [act[0] for act in outage["acts"] if act[4:] == ["apt"]]
    at = ours[0] - 3 if ours else -dice.uniform(20, 600)
    some = dice.sample(names, dice.choice((8, 25, len(names))))
    return [
        (at + 6 * n / len(some), "changed", f"packages/package/{name}", {"version": "1.1-1"}, _APT)
        for n, name in enumerate(some)
    ]


async def measure(
    folder: Path, units: Mapping[str, Any], outage: Mapping[str, Any], settings: Config
) -> dict[str, Any]:
    """Ask what led to an outage and what changed around its unit; give the places of the cause."""
    async with played(folder, units, outage) as memory, Serving(settings) as serving:
        vectors = ObjectVectors(memory, serving)
        if settings.vector_level != "none":
            await _embed(vectors, serving)
        look = partial(find_mentions, root=folder / "root")
        finder = ChangeFinder(vectors, look)
        found = await finder.before(outage["asks"], Filter(), 3)
        unit = ObjectId("systemd", "unit", outage["unit"])
        near = await connections.around(memory, unit, look)
        object_ids = near.among(
            {*memory.catalogue.all_object_ids(), *await history_reader.object_ids(memory)}
        )
        object_ids |= await connections.earlier(memory, unit)
        failed = (
            await history_reader.first_rows(
                memory, Filter(where=conditions.parse("active_state=failed"), object_ids=[unit]), 1
            )
        )[0]
        minutes = 5 if outage["acts"][0][0] > -300 else 15
        window = Filter(
            object_ids=object_ids,
            since=failed.at - minutes * 60_000_000,
            is_oldest_first=True,
            has_first=False,
        )
        rows = await history_reader.first_rows(memory, window, 1000)
        named = ["/".join(row.identity[1:]) for row in rows]
        best = ["/".join(each.row.identity[1:]) for each in found]
        return {
            "before": _place(outage["cause"], best),
            "around": _place(outage["cause"], list(dict.fromkeys(named))),
            "best": best,
            "total": sum(getattr(each, "others", 0) + each.total for each in found[:1]),
            "rows": named,
            "event": "/".join(
                found
                and (await history_reader.rows_by_seq(memory, [found[0].event]))[0].identity[1:]
            ),
        }


def _place(cause: str, names: Sequence[str]) -> int:
    return names.index(cause) + 1 if cause in names else 0


async def _embed(vectors: ObjectVectors, serving: Serving) -> None:
    """Give every sentence its vector."""
    embedder = await serving.embedder()
    engine = (await vectors.index(embedder.numerics, embedder.dimension)).numerics_key
    indexing = asyncio.create_task(Indexer(vectors).run())
    async with asyncio.timeout(300):
        while await vectors.memory.archive.read(lambda store: store.sentences.waiting(engine, 1)):  # noqa: ASYNC110 -- nothing says when a sentence has its vector
            await asyncio.sleep(0.05)
    indexing.cancel()
