"""Compares the declared with the observed properties of one object."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from functools import lru_cache
from itertools import islice
from typing import Final

from opdbus.drift import equality, word_values
from opdbus.drift.field import (
    ABSENT,
    ENSURE,
    MISSING,
    NOT_DECLARED,
    PRESENCE,
    Field,
    Path,
    Severity,
)
from opdbus.drift.rule_table import Row, Rule
from opdbus.drift.word_values import Difference
from opdbus.index.catalogue.declarations import Declaration
from opdbus.platform.name_lists import cut_to_difference, shorten
from opdbus.state.conditions import same_span
from opdbus.state.fields import split
from opdbus.state.object import Json

Properties = Mapping[str, Json]

# Fields in these containers may as well stand beside them.
_CONTAINERS: Final = frozenset({"properties", "desired", "spec", "settings"})
_TEXTS: Final = frozenset(
    "description summary comment notes note title label documentation homepage purpose".split()
)
# Command lists are compared in order.
_ORDERED: Final = frozenset("command args arguments argv cmd entrypoint exec execstart".split())
_SEVERE: Final = frozenset(
    "port ports dport address addresses ip listen listens listener gateway enabled version".split()
)
_STATES: Final = ("state", "active_state", "status", "running", "active", "ensure")
# A value that no host has.
_NOBODY: Final = "\0"
_NO_FIELD: Final = "no such field is observed"
_OBSERVE_ONLY: Final = "observe_only"
# Longer values are cut, so that a difference stays readable.
_MAX_TEXT: Final = 1000
_MAX_ITEMS: Final = 100
_MAX_FIELDS: Final = 100
_MAX_NAME: Final = 200
# Longer names get no suggestions: the cost is the product of the lengths.
_MAX_COMPARED_NAME: Final = 64


def compare(
    row: Row, declared: Properties, observed: Properties | None, name: str = ""
) -> list[Field]:
    """Return the differences of an object, the worst first; `observed` is None if it is missing.

    A field that only one side has makes no difference: files declare less than hosts show, and
    observers see less than files declare. At most 100 differences are returned.
    """
    if is_only_observed(declared):
        return []
    wanted = is_wanted(declared)
    if observed is None or is_gone(row, observed):
        bad = row.missing if observed is None else row.missing or Severity.ERROR
        if not wanted or bad is None:
            return []
        if "ensure" in declared:
            return [Field(ENSURE, declared["ensure"], ABSENT, bad)]
        return [Field(PRESENCE, "present", MISSING, bad)]
    if not wanted:
        path, value = next(_presence(declared))
        if not is_wanted(observed):
            return []
        return [Field(path, value, "present", Severity.WARNING)]
    found = _Comparison(row, observed).fields(declared)
    fields = [replace(one, severity=row.worsen(name, one)) for one in found]
    return [_cut(one) for one in sorted(fields, key=lambda one: (-one.severity, one.path))][
        :_MAX_FIELDS
    ]


def unseen(row: Row, name: str, declared: Properties, observed: Properties) -> dict[str, str]:
    """Return the declared fields that cannot be compared, and why; descriptions are left out.

    A field cannot be compared if it is not observed or if its declared word is not understood.
    """
    if is_only_observed(declared) or not is_wanted(declared) or is_gone(row, observed):
        return {}
    compared = _Comparison(row, observed)
    list(compared.fields(declared))
    named = (key for key in observed if len(key) <= _MAX_COMPARED_NAME)
    known = [*row.rules, *map(equality.normalize_key, islice(named, _MAX_FIELDS))]
    found = dict(compared.puzzles)
    for path, value in compared.unseen.items():
        if path in {PRESENCE, ENSURE} and str(value).strip().lower() in word_values.INSTALLED:
            # compared with whether there is such an object
            continue
        if str(value) != name and _severity(equality.normalize_key(path[-1])) > Severity.INFO:
            is_short = len(path[-1]) <= _MAX_COMPARED_NAME
            close = next(iter(get_close_matches(path[-1], known, 1)), "") if is_short else ""
            # an equal name is no misspelling: the field can be observed, but is not
            hint = f"; did you mean {close}?" if close not in {"", path[-1]} else ""
            found[path] = f"{_NO_FIELD}{hint}"
    return {shorten(".".join(path), _MAX_NAME): why for path, why in found.items()}


def declaration(row: Row, declared: Properties, observed: Properties) -> Declaration:
    """Return the declared fields of an observed object; volatile fields count as different."""
    fields = [] if is_only_observed(declared) else compare(row, declared, observed)
    compared = _Comparison(row, observed)
    list(compared.fields(declared))
    moving = {".".join(path): (value, None) for path, value in compared.passed_over.items()}
    differing = {one.name: (one.declared, one.observed) for one in fields}
    unseen = {".".join(path): value for path, value in compared.unseen.items()}
    return Declaration({**moving, **differing}, unseen)


def observed(row: Row, field: Field, seen: Properties | None) -> list[Json]:
    """Return the observed value of a compared field in a list, empty if it is unknown."""
    if field.path in {PRESENCE, ENSURE}:
        is_there = seen is not None and not is_gone(row, seen)
        return ["present" if is_there else ABSENT if field.path == ENSURE else MISSING]
    if seen is None:
        # an object that is declared absent is absent, whichever field declares that
        return [ABSENT] if field.observed == "present" else []
    keys, rule = _keys(field.path), rule_of(row, field.path)
    if rule and rule.observed:
        found = [one for name in rule.observed.split() for one in _found(seen, name)]
        return found[:1] or ([] if rule.default is None else [rule.default])
    if rule:
        # compare with an impossible value: the difference has the whole observed value
        different = rule.means([_NOBODY], None, seen)
        return [different.observed] if different else [field.declared]
    inner: list[Properties] = [seen, *_containers(seen)]
    for key in keys[:-1]:
        inner = [one for part in inner for one in _found(part, key) if isinstance(one, dict)]
    return [one for part in inner for one in _found(part, keys[-1])][:1]


def rule_of(row: Row, path: Path) -> Rule | None:
    """Return the rule of a declared field, None if it has none."""
    return row.rules.get(".".join(map(equality.normalize_key, _keys(path))))


def _keys(path: Path) -> Path:
    """Return the path of a field without the container that it may stand in."""
    return path[1:] if path[0] in _CONTAINERS and len(path) > 1 else path


def undeclared(row: Row, observed: Properties) -> list[Field]:
    """Return the difference of an object that a complete state file does not declare."""
    if is_gone(row, observed) or not row.is_extra(observed):
        return []
    return [Field(PRESENCE, NOT_DECLARED, "present", Severity.WARNING)]


def is_only_observed(declared: Properties) -> bool:
    """Return whether an object is declared with `mode: observe_only`."""
    return equality.normalize_key(str(declared.get("mode", ""))) == _OBSERVE_ONLY


def _presence(declared: Properties) -> Iterator[tuple[Path, Json]]:
    """Yield the declared fields that require that the object does not exist."""
    for key, value in declared.items():
        name = equality.normalize_key(key)
        if name in {"ensure", "state", "status", "presence"}:
            if isinstance(value, str) and value.strip().lower() in word_values.ABSENT:
                yield (key,), value
        elif name in {"present", "exists", "installed"} and equality.is_true(value) is False:
            yield (key,), value


def is_wanted(declared: Properties) -> bool:
    """Return whether an object is declared to exist, and not to be absent."""
    return next(_presence(declared), None) is None


def is_gone(row: Row, observed: Properties) -> bool:
    """Return whether an observed object says that it does not exist."""
    name, gone = row.gone
    return bool(name) and str(observed.get(name)) in gone


def _containers(seen: Properties) -> list[Properties]:
    """Return the containers of an observed object whose fields may as well stand beside them."""
    return [one for name in _CONTAINERS if isinstance(one := seen.get(name), dict)]


class _Comparison:
    """The comparison with the properties of one observed object."""

    def __init__(self, row: Row, observed: Properties) -> None:
        self._row = row
        self._seen = observed
        # declared fields without an observed value
        self.unseen: dict[Path, Json] = {}
        # declared words that are not understood, with a suggestion
        self.puzzles: dict[Path, str] = {}
        # declared fields that are never compared, such as volatile ones
        self.passed_over: dict[Path, Json] = {}

    def fields(self, declared: Properties) -> Iterator[Field]:
        """Yield the differences from the declared properties."""
        yield from self._below(declared, (), (), [self._seen, *_containers(self._seen)])

    def _below(
        self, declared: Properties, path: Path, names: Path, seen: list[Properties]
    ) -> Iterator[Field]:
        """Yield the differences in a nested mapping, compared with the parts in `seen`."""
        for key, value in declared.items():
            name = equality.normalize_key(key)
            here, named = (*path, key), (*names, name)
            if name in self._row.never or (equality.is_volatile(key) and not self._row.each):
                self.passed_over[here] = value
                continue
            if not path and key in _CONTAINERS and isinstance(value, dict):
                yield from self._below(value, here, (), seen)
            elif (rule := self._row.rules.get(".".join(named))) and not (
                rule.observed and isinstance(value, dict)
            ):
                yield from self._by_rule(rule, here, value)
            elif isinstance(value, dict):
                inner = [one for part in seen for one in _found(part, key)]
                parts: list[Properties] = [one for one in inner if isinstance(one, dict)]
                yield from self._below(value, here, named, parts)
            else:
                yield from self._generic(here, name, value, seen)

    def _by_rule(self, rule: Rule, path: Path, value: Json) -> Iterator[Field]:
        if equality.is_hidden(value):
            return
        if puzzle := word_values.puzzle(rule.means, value):
            self.puzzles[path] = puzzle
            return
        observed: Json = None
        if rule.observed:
            found = [one for name in rule.observed.split() for one in _found(self._seen, name)]
            if not found and rule.default is None:
                self.unseen[path] = value
                return
            observed = found[0] if found else rule.default
        elif "addresses" not in self._seen:
            return
        if difference := rule.means(value, observed, self._seen):
            yield _field(path, value, difference, rule.severity)

    def _generic(
        self, path: Path, name: str, value: Json, seen: list[Properties]
    ) -> Iterator[Field]:
        found = [one for part in seen for one in _found(part, path[-1])]
        is_state = name in _STATES and isinstance(value, str | bool)
        if not found and is_state and word_values.is_state(value):
            # `running` may be declared where `state` is observed
            others = (one for part in seen for key in _STATES for one in _found(part, key))
            found = list(filter(word_values.is_state, others))
        if not found:
            if not equality.is_hidden(value):
                self.unseen[path] = value
            return
        is_same_span = same_span(name, value, found[0])
        if is_same_span is not None:
            difference = None if is_same_span else Difference(found[0])
        elif is_state:
            difference = word_values.state(value, found[0], seen[0])
        else:
            means = (
                word_values.in_order if not _ORDERED.isdisjoint(split(name)) else self._row.means
            )
            difference = means(value, found[0], seen[0])
        if difference:
            yield _field(path, value, difference, _severity(name))


def is_text(key: str) -> bool:
    """Return whether a field has a text for people, such as a description."""
    return _severity(equality.normalize_key(key)) == Severity.INFO


@lru_cache(maxsize=4096)
def _severity(name: str) -> Severity:
    parts = set(name.split("_"))
    if parts & _TEXTS:
        return Severity.INFO
    return Severity.WARNING if parts & _SEVERE else Severity.NOTICE


def _found(properties: Properties, key: str) -> list[Json]:
    if key in properties:
        return [properties[key]]
    return equality.find_value(properties, equality.by_words(properties), key)


def _field(path: Path, declared: Json, found: Difference, usual: Severity) -> Field:
    severity = usual if found.severity is None else found.severity
    said = declared if found.declared is None else found.declared
    return Field(path, said, found.observed, severity, found.patience)


def _cut(field: Field) -> Field:
    path = tuple(shorten(key, _MAX_NAME) for key in field.path)
    declared, observed = field.declared, field.observed
    if isinstance(declared, str) and isinstance(observed, str):
        declared, observed = cut_to_difference(declared, observed, _MAX_TEXT)
    else:
        declared, observed = _shorten(declared), _shorten(observed)
    return replace(field, path=path, declared=declared, observed=observed)


def _shorten(value: Json) -> Json:
    if isinstance(value, str):
        return shorten(value, _MAX_TEXT)
    if isinstance(value, list) and len(value) > _MAX_ITEMS:
        return [*map(_shorten, value[:_MAX_ITEMS]), f"and {len(value) - _MAX_ITEMS} more"]
    if isinstance(value, list):
        return list(map(_shorten, value))
    return value
