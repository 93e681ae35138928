"""Baselines: declarations of observed objects as they are, and of differences taken over."""

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from itertools import islice
from typing import NamedTuple, TypeAlias

import structlog

from opdbus.drift import (
    batch_comparison,
    equality,
    field_comparison,
    network_values,
    rule_table,
)
from opdbus.drift.batch_comparison import ObservedParts, Plan
from opdbus.drift.field import MISSING, Field, Path
from opdbus.drift.pairs import Pairs
from opdbus.drift.rule_table import Row, Rule
from opdbus.index.catalogue.catalogue import Catalogue
from opdbus.index.database.store import Content
from opdbus.index.state_store.state_store import StateStore
from opdbus.state.object import SETTINGS, Json, KindId, ObjectId
from opdbus.state.secret_text import REDACTED

log = structlog.get_logger()
Seen: TypeAlias = Mapping[str, Json]


class Scope(IntEnum):
    """Objects and fields that are declared; each scope includes those before it."""

    # what lasts, of the kinds of the rule table
    STABLE = 0
    # objects of any kind
    KIND = 1
    # objects that do not last
    OBJECT = 2
    # all fields that are compared
    ALL = 3


class BaselineEntry(NamedTuple):
    """An object to declare, and the number of its values that are left out as secrets."""

    object_id: ObjectId
    properties: Mapping[str, Json]
    hidden: int


class Change(NamedTuple):
    """A change of a declaration that takes over a difference.

    An empty path means the whole object. Without a value in `observed` it is removed.
    """

    path: Path
    declared: Json
    observed: Sequence[Json] = ()


async def declarations(
    memory: StateStore, pairs: Pairs, object_ids: Sequence[ObjectId], scope: Scope
) -> list[BaselineEntry | None]:
    """Return the declarations of observed objects; None for one that is not worth declaring."""
    parts = await asyncio.to_thread(_find_parts, memory.catalogue, {t[:2] for t in object_ids})
    plans = [_plan(pairs, object_id, parts.get(object_id, ())) for object_id in object_ids]
    contents = await memory.content([entry for plan in plans for entry in plan.entries])

    def work() -> list[BaselineEntry | None]:
        return [_declare(plan, contents, scope) for plan in plans]

    return await asyncio.to_thread(work)


def _find_parts(
    catalogue: Catalogue, kind_ids: set[KindId]
) -> Mapping[ObjectId, Sequence[tuple[str, ObjectId]]]:
    """Return the objects that belong to those of some kinds, each with its field of the owner."""
    found: dict[ObjectId, list[tuple[str, ObjectId]]] = {}
    for kind_id, belonging in rule_table.JOINED.items():
        owners = belonging.row.observed
        for part in catalogue.of_kinds({kind_id}) if owners in kind_ids else ():
            if match := belonging.pattern.fullmatch(part.name):
                found.setdefault(ObjectId(*owners, match[1]), []).append((belonging.field, part))
    return found


def _plan(pairs: Pairs, object_id: ObjectId, parts: Sequence[tuple[str, ObjectId]]) -> Plan:
    joined = [(field, pairs.sides(part).observed) for field, part in sorted(parts)]
    own = ObservedParts(pairs.sides(object_id).observed, joined, {})
    return Plan(
        object_id, None, [own] if own.entries else [], rule_table.of_observed(object_id[:2])
    )


def _declare(plan: Plan, contents: Mapping[int, Content], scope: Scope) -> BaselineEntry | None:
    if not plan.observed or not plan.is_complete(contents):
        return None
    row, object_id = plan.row, plan.object_id
    try:
        seen = batch_comparison.view(row, plan.observed[0], contents)
        return declare(row, object_id, seen, scope)
    except Exception as error:  # noqa: BLE001 -- published values may have any shape
        log.warning("not declared", object="/".join(object_id), reason=type(error).__name__)
        return None


def declare(row: Row, object_id: ObjectId, seen: Seen, scope: Scope) -> BaselineEntry | None:
    """Return the declaration of an observed object, from which it does not drift."""
    if field_comparison.is_gone(row, seen):
        return None
    is_in_table = row.is_stable is not None
    if row.is_stable and scope < Scope.OBJECT and not row.is_stable(object_id.name, seen):
        return None
    if not is_in_table and scope < Scope.KIND:
        return None
    found = dict(_from_rules(row, object_id.name, seen))
    if scope == Scope.ALL or not is_in_table:
        others = _other_fields(row, seen, are_texts_wanted=scope == Scope.ALL)
        found = {**{key: value for key, value in others if key not in found}, **found}
    kept = {key: value for key, value in found.items() if REDACTED not in json.dumps(value)}
    drifting = {one.path[0] for one in field_comparison.compare(row, _nest(kept), seen)}
    drifting |= {path.split(".")[0] for path in field_comparison.unseen(row, "", _nest(kept), seen)}
    properties = {key: v for key, v in _nest(kept).items() if key not in drifting}
    if any(REDACTED in part for part in object_id):
        return BaselineEntry(object_id, {}, 1)
    hidden = len(found) - len(kept)
    # a name alone declares something only of a complete list; `op-dbus check` warns of others
    is_enough = properties or hidden or row.is_claimed or scope > Scope.STABLE
    if not is_enough or (row.parts and not properties):
        return None
    return BaselineEntry(_declared_id(row, object_id), properties, hidden)


def _declared_id(row: Row, object_id: ObjectId) -> ObjectId:
    """Return the name under which a state file declares an observed object."""
    if row.parts:
        plugin, kind = row.declared[0]
        return ObjectId(plugin, kind, plugin if kind == SETTINGS else object_id.name)
    return object_id


def _from_rules(row: Row, name: str, seen: Seen) -> Iterator[tuple[str, Json]]:
    """Yield the fields that the rules of a row declare, by dotted names."""
    for rule in dict.fromkeys(row.rules.values()):
        value = _from_rule(rule, name, seen)
        if value is not None:
            yield rule.keys.split()[0], value


def _from_rule(rule: Rule, name: str, seen: Seen) -> Json:
    """Return the value that a rule declares, None for none."""
    found = [seen[key] for key in rule.observed.split() if key in seen]
    if not rule.baseline or (rule.observed and not found and rule.default is None):
        return None
    return rule.baseline(name, found[0] if found else None, seen)


def _other_fields(row: Row, seen: Seen, *, are_texts_wanted: bool) -> Iterator[tuple[str, Json]]:
    """Yield the observed fields that are compared and that no baseline rule has declared."""
    parts = {network_values.OTHER_NAMES, *(one.field for one in row.joined)}
    used = {key for rule in row.rules.values() if rule.baseline for key in rule.observed.split()}
    for key, value in seen.items():
        if key in parts | used | row.never or equality.is_volatile(key) or "." in key:
            continue
        if are_texts_wanted or not field_comparison.is_text(key):
            yield key, value


def _nest(fields: Mapping[str, Json]) -> dict[str, Json]:
    """Return fields with the parts of dotted names nested."""
    found: dict[str, Json] = {}
    for name, value in fields.items():
        *outer, last = name.split(".")
        inner = found
        for key in outer:
            inner = inner.setdefault(key, {})
        inner[last] = value
    return found


async def take_over(memory: StateStore, plan: Plan, fields: Sequence[Field]) -> tuple[Change, ...]:
    """Return the changes of a declared object by which it has no difference in some fields."""
    contents = await memory.content(plan.entries)
    if plan.declared is None or not plan.is_complete(contents):
        return ()
    declared = json.loads(contents[plan.declared.id].properties)
    try:
        seen = batch_comparison.nearest_view(plan, declared, contents)
        changes = [_change(plan, one, declared, seen) for one in fields]
        added = _added(plan, declared, seen) if seen and all(one.path for one in changes) else ()
    except Exception as error:  # noqa: BLE001 -- published values may have any shape
        log.warning("not compared", object="/".join(plan.object_id), reason=type(error).__name__)
        return ()
    return (*changes, *added)


def _added(plan: Plan, declared: Seen, seen: Seen) -> Iterator[Change]:
    """Yield fields that the declaration lacks, and that are declared of an object as it is now."""
    if not field_comparison.is_wanted(declared) or field_comparison.is_only_observed(declared):
        return
    keys = {equality.normalize_key(key) for key in _plain(declared)}
    for rule in dict.fromkeys(plan.row.rules.values()):
        if not rule.is_added or not keys.isdisjoint(rule.keys.split()):
            continue
        path = (rule.keys.split()[0],)
        value = _from_rule(rule, plan.object_id.name, seen)
        if value is not None and _is_declarable(plan.row, path, value, seen):
            yield Change(path, None, [value])


def _plain(declared: Seen) -> Iterator[str]:
    """Yield the fields of a declaration, and those in fields."""
    for key, value in declared.items():
        yield key
        if isinstance(value, dict):
            yield from value


def _change(plan: Plan, field: Field, declared: Seen, seen: Seen | None) -> Change:
    if seen is None or field.is_absence:
        return Change((), declared)
    row = plan.row
    value: Json = declared
    for key in field.path:
        value = value.get(key) if isinstance(value, dict) else None
    rule = field_comparison.rule_of(row, field.path)
    found = [*field_comparison.observed(row, field, seen)]
    if rule and rule.baseline:
        found.insert(0, _from_rule(rule, plan.object_id.name, seen))
    if not field_comparison.is_wanted(declared):
        found += ["present", True]
    fits = (one for one in found if _is_declarable(row, field.path, one, seen))
    return Change(field.path, value, [*islice(fits, 1)])


def _is_declarable(row: Row, path: Path, value: Json, seen: Seen) -> bool:
    """Return whether an object would not differ if a field were declared with a value."""
    if value in (None, MISSING) or REDACTED in json.dumps(value):
        return False
    declared: Json = value
    for key in reversed(path):
        declared = {key: declared}
    return field_comparison.is_wanted(declared) and not field_comparison.compare(
        row, declared, seen
    )
