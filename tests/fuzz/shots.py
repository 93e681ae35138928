"""Strategies for calls to the daemon, from the XML: most reach a handler, many should not."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any
from xml.etree import ElementTree as ET

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from fuzz import files, values
from fuzz.drawn import choice
from fuzz.marshal import INTERACTIVE, NO_REPLY, NO_START, Variant, split
from opdbus.bus import names
from opdbus.bus.service import contract, standard
from opdbus.config import SEVERITIES

ROOT, STATE, JOB = "/org/opdbus", "/org/opdbus/state", "/org/opdbus/job"
HISTORY = "/org/opdbus/history"
_FILES = resources.files("opdbus.bus") / "interfaces"
OWN = tuple(sorted(f.name.removesuffix(".xml") for f in _FILES.iterdir() if f.name[-4:] == ".xml"))
# Whoever sends the call puts the number of a job there that is known to exist.
LAST_JOB = f"{JOB}/LAST"
LEVELS = ["", "", "medium", "medium", "none", "low", "high", "med", "MEDIUM"]
PROVIDERS = ["cpu", "cpu:onnxruntime", "cuda,cpu", "cuda", "auto", "", ",", "CPU", "\u00e9"]
MODES = ["hybrid", "vector", "lexical", "", "fuzzy"]
DTYPES = ["float32", "float16", "int8", "ubinary", "", "float64"]


@dataclass(frozen=True, slots=True)
class Shot:
    """A call as it will be sent; `target` is the method that it is about, with its interface."""

    target: str
    path: str
    interface: str
    member: str
    signature: str
    body: tuple[Any, ...]
    files: tuple[str, ...] = ()
    flags: int = 0

    def line(self) -> str:
        """Write it much as busctl takes it, values as Python writes them, files by their kind."""
        shown = " ".join(_short(v) for v in self.body)
        kinds = f" # files: {', '.join(self.files)}" if self.files else ""
        flags = " --expect-reply=no" if self.flags & NO_REPLY else ""
        words = f"{self.path} {self.interface or chr(39) * 2} {self.member} {self.signature!r}"
        return f"busctl call{flags} org.opdbus {words} {shown}{kinds}"


def _string(text: str) -> Variant:
    return Variant("s", text)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 400 else f"{text[:300]}...({len(text)} characters)"


class Shots:
    """Strategies that know which objects there are."""

    def __init__(self, objects: Sequence[str]) -> None:
        self._objects = list(objects)
        self._known = st.sampled_from(self._objects)
        self._jobs = st.sampled_from([LAST_JOB, LAST_JOB, f"{JOB}/999999", f"{JOB}/01"])
        self._paths = {
            **{name: st.just("/" + name.replace(".", "/")) for name in OWN},
            names.VECTORIZER: st.just(ROOT),
            names.STATE: st.just(STATE),
            names.HISTORY: st.just(HISTORY),
            names.OBJECT: self._known,
            names.JOB: self._jobs,
        }
        # made once: hypothesis is slow with strategies that are new at each call
        methods = [self._method(i, m) for i, m in _methods()]
        self._fitting = choice(*methods, *[self._standard()] * 5)
        self._wrong = st.tuples(self._fitting, st.integers(0, 5)).flatmap(self._spoilt)

    def any(self) -> SearchStrategy[Shot]:
        """Give a call: in three of four cases one that fits, else one with something wrong."""
        return choice(self._fitting, self._fitting, self._fitting, self._wrong)

    def _method(self, interface: str, method: contract.MethodInfo) -> SearchStrategy[Shot]:
        body = st.tuples(*[self._argument(method.name, *a) for a in _arguments(interface, method)])
        kinds = [*files.KINDS, *files.CHANGES, *files.GOOD * 5]
        given = st.tuples(*[st.sampled_from(kinds) for c in method.inputs if c == "h"])
        flags = st.sampled_from([0] * 13 + [NO_REPLY, NO_START, INTERACTIVE])
        return st.builds(
            lambda path, body, given, named, flags: Shot(
                f"{interface}.{method.name}",
                path,
                interface if named else "",
                method.name,
                method.inputs,
                body,
                given,
                flags,
            ),
            self._paths[interface],
            body,
            given,
            st.integers(0, 9),
            flags,
        )

    def _argument(self, method: str, name: str, kind: str) -> SearchStrategy[Any]:
        known: dict[str, SearchStrategy[Any]] = {
            "object": choice(self._known, self._known, self._known, values.object_paths),
            "objects": st.lists(choice(self._known, values.object_paths), max_size=3),
            "limit": choice(st.integers(0, 20), st.integers(1, 50), values.value("u")),
            "offset": choice(st.integers(0, 20), st.integers(0, 50), values.value("u")),
            "provider": choice(st.sampled_from(PROVIDERS), st.just("cpu"), values.words),
            "device": st.sampled_from(["", "", "", "0", "-1", "all", "mail"]),
            "source": choice(st.sampled_from(["a", "b.c", "fuzz"]), values.texts),
        }
        if kind == "h":
            return st.just(0)
        if kind == "a{sv}":
            return self._options(method)
        if name == "objects" and kind != "ao":
            return st.lists(self._published(), max_size=4)
        return known[name] if name in known else values.value(kind)

    def _published(self) -> SearchStrategy[tuple[Any, ...]]:
        """Give an object to publish: few names, so that some are published again."""
        part = st.sampled_from(["a", "b", "systemd", "unit", "sshd.service"])
        return st.tuples(
            part,
            part,
            choice(part, values.texts),
            st.dictionaries(values.texts, values.variants(), max_size=4),
        )

    def _options(self, method: str) -> SearchStrategy[dict[str, Variant]]:
        """Give options: known ones of the right type, at times of a wrong one, or unknown ones."""
        right = st.fixed_dictionaries({}, optional=OPTIONS.get(method, {}))
        keys = st.one_of(st.sampled_from(sorted(ALL_OPTIONS)), values.texts)
        wrong = st.dictionaries(keys, values.variants(), max_size=2)
        return st.integers(0, 9).flatmap(
            lambda n: right if n < 8 else st.builds(lambda a, b: a | b, right, wrong)
        )

    def _standard(self) -> SearchStrategy[Shot]:
        """Give a call of Properties, Introspectable or Peer."""
        return choice(*[self._properties(name) for name in OWN], self._introspection())

    def _properties(self, interface: str) -> SearchStrategy[Shot]:
        listed = sorted(contract.interface(interface).properties)
        members = choice(*[st.sampled_from(listed or ["None"])] * 5, values.texts)
        target = standard.PROPERTIES
        path = self._paths[interface]
        get = st.builds(
            lambda p, m: Shot(f"{target}.Get", p, target, "Get", "ss", (interface, m)),
            path,
            members,
        )
        put = st.builds(
            lambda p, m, v: Shot(f"{target}.Set", p, target, "Set", "ssv", (interface, m, v)),
            path,
            members,
            choice(values.variants(), st.sampled_from(["info", "warning", "x"]).map(_string)),
        )
        every = st.builds(
            lambda p, i: Shot(f"{target}.GetAll", p, target, "GetAll", "s", (i,)),
            path,
            st.sampled_from([interface, "", "org.example.None"]),
        )
        return choice(get, get, put, every)

    def _introspection(self) -> SearchStrategy[Shot]:
        places = st.one_of(
            st.sampled_from(["/", "/org", ROOT, STATE, HISTORY, JOB, f"{STATE}/systemd"]),
            self._known,
            self._jobs,
        )
        calls = st.sampled_from(
            [
                (standard.INTROSPECTABLE, "Introspect"),
                (standard.PEER, "Ping"),
                (standard.PEER, "GetMachineId"),
            ]
        )
        return st.builds(lambda p, c: Shot(f"{c[0]}.{c[1]}", p, c[0], c[1], "", ()), places, calls)

    def _spoilt(self, given: tuple[Shot, int]) -> SearchStrategy[Shot]:
        """Make something wrong: types, path, interface, member, or files."""
        shot, how = given
        if how <= 1:
            return _retyped(shot)
        if how == 2:
            near = self._known.map(lambda path: path[:-1] or "/")
            strange = self._known.flatmap(lambda p: values.elements.map(f"{p}/{{}}".format))
            paths = st.one_of(values.object_paths, near, strange, self._known, self._jobs)
            return paths.map(lambda path: replace(shot, path=path))
        if how == 3:
            others = st.sampled_from([*OWN, "org.example.None", "", standard.PROPERTIES])
            return others.map(lambda name: replace(shot, interface=name))
        if how == 4:
            members = st.sampled_from(["get", "__init__", "Close", "A" * 255, "_", *_MEMBERS])
            return members.map(lambda name: replace(shot, member=name))
        kinds = st.lists(st.sampled_from(sorted(files.KINDS)), max_size=4).map(tuple)
        return kinds.map(lambda given: replace(shot, files=given))


def _retyped(shot: Shot) -> SearchStrategy[Shot]:
    signatures = st.one_of(
        st.lists(values.signatures, max_size=3).map("".join),
        st.sampled_from([shot.signature + "s", shot.signature[1:], "h" + shot.signature]),
    ).map(lambda signature: signature if _is_sound(signature) else "s")
    return signatures.flatmap(
        lambda signature: values.values(signature).map(
            lambda body: replace(shot, signature=signature, body=body)
        )
    )


def _is_sound(signature: str) -> bool:
    try:
        return all(signature.count(a) == signature.count(b) for a, b in ("()", "{}")) and bool(
            split(signature) or not signature
        )
    except IndexError:
        return False


def _methods() -> list[tuple[str, contract.MethodInfo]]:
    return [(name, m) for name in OWN for m in contract.interface(name).methods.values()]


def _arguments(interface: str, method: contract.MethodInfo) -> list[tuple[str, str]]:
    """Give (name, type) of what a method takes, from the XML."""
    root = ET.fromstring(contract.interface(interface).xml)  # noqa: S314 -- our own file
    given = root.findall(f"method[@name='{method.name}']/arg[@direction='in']")
    return [(arg.attrib["name"], arg.attrib["type"]) for arg in given]


_MEMBERS = sorted(m.name for _, m in _methods())


def _typed(kind: str, strategy: SearchStrategy[Any]) -> SearchStrategy[Variant]:
    return strategy.map(lambda value: Variant(kind, value))


_NAMES = ["systemd", "unit", "net", "interface", "a", "b", "", "publish:a", "file"]
_FILTER = {key: _typed("s", st.sampled_from(_NAMES)) for key in ("plugin", "kind")}
_FILTERS = {key: _typed("s", st.sampled_from(_NAMES)) for key in ("source", "name")}
_CONDITIONS = ["state=failed", "port>1", "a=b, kind=unit", 'x~"', "a==b", "", "size>x"]
_WHERE = {"where": _typed("s", st.one_of(st.sampled_from(_CONDITIONS), values.value("s")))}
_LEVEL = {"level": _typed("s", st.sampled_from(LEVELS))}
_DIMENSIONS = {"dimensions": _typed("u", st.one_of(st.integers(0, 40), values.value("u")))}
_DTYPE = {"dtype": _typed("s", st.sampled_from(DTYPES))}
_TRUNCATE = {"truncate": _typed("b", st.integers(0, 1))}
_TIMEOUT = {"timeout": _typed("d", st.one_of(st.just(5.0), values.value("d")))}
_OFFSET = {"offset": _typed("u", st.one_of(st.integers(0, 9), values.value("u")))}
_VECTORS = _LEVEL | _DIMENSIONS | _TRUNCATE
_TIME = st.one_of(st.integers(0, 9), st.integers(1_700_000_000_000_000, 1_900_000_000_000_000))
_ROWS = {
    **_FILTER,
    **_WHERE,
    **{key: _typed("t", _TIME) for key in ("since", "before", "after", "below")},
    "what": _typed("s", st.sampled_from(["appeared", "changed", "drift", "", "exploded"])),
    "cause": _typed("s", st.sampled_from(["job", "bus:", "", "state file"])),
    "order": _typed("s", st.sampled_from(["newest", "oldest", "best"])),
    "about": _typed("s", values.texts),
}
OPTIONS: dict[str, dict[str, SearchStrategy[Variant]]] = {
    "Vectorize": _VECTORS | _TIMEOUT,
    "VectorizeMany": _VECTORS | _TIMEOUT | _DTYPE,
    "VectorizeBulk": _VECTORS | _DTYPE | {"job": _typed("b", st.integers(0, 1))},
    "CountTokens": _LEVEL,
    "Tokenize": _LEVEL | {"wait": _typed("b", st.integers(0, 1))},
    "Search": _FILTER
    | _OFFSET
    | _WHERE
    | {"mode": _typed("s", st.sampled_from(MODES)), "rerank": _typed("s", st.sampled_from(LEVELS))}
    | {name: _typed("b", st.integers(0, 1)) for name in ("all", "explain")},
    "Similar": _FILTER | _OFFSET | _WHERE,
    "List": _FILTER | _FILTERS | _WHERE,
    "Fields": _FILTER,
    "Vector": _DTYPE | _DIMENSIONS,
    "GetVector": _DTYPE | _DIMENSIONS,
    "Publish": {"lifetime": _typed("s", st.sampled_from(["kept", "connection", "", "forever"]))},
    "Changes": _ROWS | {"before_event": _typed("s", values.texts)},
    "Nearest": _ROWS | {"seq": _typed("t", st.integers(0, 20))},
    "ObjectAt": {"large": _typed("b", st.integers(0, 1))},
    "Forget": {
        "row": _typed("t", st.integers(0, 20)),
        "containing": _typed("s", values.texts),
    },
    "Baseline": {
        "scope": _typed("s", st.sampled_from(["stable", "kind", "object", "all", "none"])),
        "changes": _typed("b", st.integers(0, 1)),
    },
    "DriftReport": _FILTER
    | {"name": _FILTERS["name"]}
    | {
        "severity": _typed("s", st.sampled_from([*SEVERITIES, "worst"])),
        "class": _typed("s", st.sampled_from(["drift", "intended", "healed", ""])),
    },
}
ALL_OPTIONS = {key for options in OPTIONS.values() for key in options}
