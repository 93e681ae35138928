"""Verdicts on yes-or-no questions: `yes: ...` or `no: ...`, from observed values that decide them.

There is a verdict only where these values are certain: see `index.query.yes_or_no` for the forms.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Final, NamedTuple

from opdbus.index.catalogue.catalogue import representative
from opdbus.index.changes.connections import LISTENER
from opdbus.index.database.store import Store
from opdbus.index.query import condition_matching, query_terms, yes_or_no
from opdbus.index.query.yes_or_no import StateWords, YesOrNo
from opdbus.index.state_store.state_store import StateStore
from opdbus.language import kinds
from opdbus.language.object_text import UNIT_NOUNS
from opdbus.language.synonyms import find_synonyms, gloss
from opdbus.language.vocabulary import stem
from opdbus.platform import name_lists
from opdbus.state import presence
from opdbus.state.conditions import AllOf, Condition, parse
from opdbus.state.fields import IDENTITY
from opdbus.state.object import Json, ObjectId

_ACCOUNT: Final = ("users", "account")
_MEMBERS: Final = "members"
_COUNT: Final = "member_count"
_SERVICE: Final = ".service"
_STARTERS: Final = (".timer", ".socket", ".path")
_GROUPINGS: Final = (".target", ".slice")
# Set in the fields of each object that is looked at; true if it was looked for and is not there.
_MISSING: Final = presence.MISSING
_OF_HOST: Final = "live:"
# Nouns that any object may be.
_ANYBODY: Final = frozenset("anyone anybody someone somebody anything something one".split())
# Fields of a port that its verdict names, objects and members that a verdict lists.
_OF_PORT: Final = ("exposed", "unit")
_MOST: Final = 3
_MOST_MEMBERS: Final = 20
# Objects in whose values a name is looked for.
_MOST_READ: Final = 200


class Verdict(NamedTuple):
    """The answer to a yes-or-no question, and the sources of the values that decide it.

    `is_absence`: the text says that no object has a name of the question, and not yes or no.
    `is_of_list`: it depends on the whole list of a kind, which an observer may not have. `objects`
    decide it and are the first hits; if it `is_whole`, the only ones, and weak where it `is_none`.
    """

    text: str
    sources: frozenset[str] = frozenset()
    is_absence: bool = False
    is_of_list: bool = False
    objects: tuple[ObjectId, ...] = ()
    is_whole: bool = False
    is_none: bool = False


class Fact(NamedTuple):
    """The answer that objects give, its words, and these objects."""

    is_yes: bool
    text: str
    objects: tuple[ObjectId, ...] = ()


class Found(NamedTuple):
    """An object with a name of the question, its observed fields, and their sources."""

    object_id: ObjectId
    fields: Mapping[str, Json]
    sources: frozenset[str]

    @property
    def is_only_declared(self) -> bool:
        """True if the object is declared, was looked for, and is not observed at all."""
        return not self.sources

    @property
    def is_there(self) -> bool:
        """True if no field says that the object is not there."""
        return not presence.find_absence(self.fields)

    @property
    def path(self) -> str:
        """The object as PLUGIN/KIND/NAME."""
        return "/".join(self.object_id)

    def fact(self, *names: str, is_yes: bool) -> Fact:
        """Return a fact about the object, with the values of some of its fields."""
        own = (self.object_id,)
        if self.is_only_declared:
            return Fact(is_yes, f"{self.path} is declared, and is not there", own)
        values = [f"{name} {_in_words(self.fields[name])}" for name in names if name in self.fields]
        return Fact(is_yes, f"{self.path}: {', '.join(values)}" if values else self.path, own)

    def presence(self) -> Fact:
        """Return whether the object is there, with what says that it is not."""
        if self.is_there:
            return Fact(is_yes=True, text=self.path, objects=(self.object_id,))
        field = presence.find_absence(self.fields)
        if field == _MISSING and not self.is_only_declared:
            return Fact(is_yes=False, text=f"{self.path} is not there", objects=(self.object_id,))
        return self.fact(field, is_yes=False)


async def find_verdict(memory: StateStore, question: str) -> Verdict | None:
    """Return the verdict on a question; None if it is no such question, or nothing is certain."""
    asked = await asyncio.to_thread(yes_or_no.read, question)
    if asked is None:
        return None
    if asked.relation == yes_or_no.PORT:
        return await _of_port(memory, asked)
    if asked.relation == yes_or_no.NUMBER:
        return await _of_number(memory, asked)
    group: Found | None = None
    if asked.relation == yes_or_no.MEMBER:
        groups = [one for one in await _find(memory, asked.of) if _MEMBERS in one.fields]
        if len(groups) != 1:
            return None if groups else await _of_absent(memory, asked.of)
        group = groups[0]
    facts, sources = list[Fact](), set[str]()
    for name in asked.names:
        found = await _find(memory, name, asked.noun)
        sources |= {source for one in (*found, *filter(None, [group])) for source in one.sources}
        if asked.state and not asked.noun:
            found += await _beside(memory, found)
        if (fact := _fact(asked, name, found, group)) is None:
            if found:
                return None
            none = await _none_of_kind(memory, asked, name)
            return none or await _of_absent(memory, name)
        facts.append(fact)
    return _verdict(asked, facts, frozenset(sources))


def _verdict(asked: YesOrNo, facts: Sequence[Fact], sources: frozenset[str]) -> Verdict:
    word = "yes" if all(fact.is_yes != asked.is_negated for fact in facts) else "no"
    text = "; ".join(dict.fromkeys(fact.text for fact in facts))
    objects = dict.fromkeys(chain.from_iterable(fact.objects for fact in facts))
    return Verdict(f"{word}: {text}", sources, objects=tuple(objects))


def _of_list(asked: YesOrNo, text: str, sources: frozenset[str]) -> Verdict:
    return _verdict(asked, [Fact(is_yes=False, text=text)], sources)._replace(is_of_list=True)


def _fact(asked: YesOrNo, name: str, found: Sequence[Found], group: Found | None) -> Fact | None:
    """Return the fact about one name of a question; None if its objects do not decide it."""
    if group:
        members = group.fields[_MEMBERS]
        listed = [str(one) for one in members] if isinstance(members, list) else []
        is_in = name in {one.lower() for one in listed}
        # the list is cut where a group has very many members
        is_cut = group.fields.get(_COUNT, len(listed)) != len(listed)
        if not is_in and (is_cut or not any(one.object_id[:2] == _ACCOUNT for one in found)):
            return None
        shown = name_lists.join_first(listed, _MOST_MEMBERS) or "none"
        return Fact(is_in, f"{group.path}: members {shown}", (group.object_id,))
    if asked.state:
        return _fact_of_state(asked.state, found)
    if there := [one for one in found if one.is_there]:
        paths = name_lists.join_first([one.path for one in there], _MOST)
        objects = tuple(one.object_id for one in there[:_MOST])
        return Fact(is_yes=True, text=paths, objects=objects)
    return found[0].presence() if found else None


def _fact_of_state(state: StateWords, found: Sequence[Found]) -> Fact | None:
    """Return the fact about the objects of one name, services first; None if they differ.

    That of a service names its timer and the like where the answer for that is another one.
    """
    facts = []
    for one in found:
        for is_yes, ways in ((True, state.yes), (False, state.no)):
            if way := next((way for way in ways if _is_met(way, one)), None):
                names = [c.field for c in way.conditions if c.field not in IDENTITY]
                facts.append((one, one.fact(*(n for n in names if n != _MISSING), is_yes=is_yes)))
                break
    services = [row for row in facts if row[0].object_id.name.endswith(_SERVICE)]
    answers = [fact for _, fact in services or facts]
    if len({fact.is_yes for fact in answers}) != 1:
        return None
    is_yes = answers[0].is_yes
    starters = [fact for one, fact in facts if services and _is_starter(one.object_id)]
    texts = [fact.text for fact in answers[:_MOST]]
    texts += [f"but {fact.text}" for fact in starters if fact.is_yes != is_yes]
    objects = chain.from_iterable(fact.objects for fact in answers[:_MOST])
    return Fact(is_yes, "; ".join(texts), tuple(objects))


def _is_starter(object_id: ObjectId) -> bool:
    return object_id.name.endswith(_STARTERS)


async def _beside(memory: StateStore, found: Sequence[Found]) -> list[Found]:
    """Return the timers, sockets and paths that start services, by their names."""
    names = (
        one.object_id._replace(name=one.object_id.name.removesuffix(_SERVICE) + suffix)
        for one in found
        if one.object_id.name.endswith(_SERVICE)
        for suffix in _STARTERS
    )
    known = {one.object_id for one in found}
    there = [one for one in names if memory.catalogue.has(one) and one not in known]
    return [one for one in [await read_observed(memory, each) for each in there] if one]


def _is_met(way: AllOf, one: Found) -> bool:
    values = {**one.fields, **one.object_id._asdict()}
    return all(c.is_met_by([values[c.field]] if c.field in values else []) for c in way.conditions)


async def _find(memory: StateStore, name: str, noun: str = "") -> list[Found]:
    """Return the objects of a name, observed or missing; of the noun's kinds if there is one."""
    written = [f"{name}.{noun}", name] if noun in UNIT_NOUNS else [name]
    for each in written:
        object_ids, _ = await condition_matching.resolve(memory, each)
        own = dict.fromkeys(map(memory.declarations.one, object_ids))
        # `swap.target` is no swap, and a slice is only a group of units
        named = (one for one in own if one.name == each or not one.name.endswith(_GROUPINGS))
        found = [one for object_id in named if (one := await read_observed(memory, object_id))]
        wanted = kinds.requested(noun, frozenset()).named
        of_kind = [one for one in found if kinds.of_object(one.object_id)[0] & wanted]
        if of_kind or (found and not wanted):
            return of_kind or found
    return []


async def read_observed(memory: StateStore, object_id: ObjectId) -> Found | None:
    """Read the observed fields of an object; None if it is only declared."""
    is_missing = memory.declarations.is_missing(object_id)
    if not memory.catalogue.is_observed(object_id):
        return Found(object_id, {_MISSING: True}, frozenset()) if is_missing else None
    entries = memory.catalogue.entries(object_id)
    fields = memory.merge_properties(entries, await memory.content(entries))
    sources = frozenset(one.identity.source for one in entries)
    return Found(representative(entries).identity.object_id, {_MISSING: False, **fields}, sources)


async def _of_port(memory: StateStore, asked: YesOrNo) -> Verdict | None:
    """Return the verdict on whether something listens on a port."""
    where = parse(f"plugin={LISTENER[0]}, kind={LISTENER[1]}, port={asked.of}")
    if asked.protocol:
        where = (*where, Condition("protocol", "=", asked.protocol))
    object_ids = sorted(await condition_matching.object_ids(memory, where))
    read = [await read_observed(memory, each) for each in object_ids]
    found = [one for one in read if one and one.is_there]
    if found:
        facts = [one.fact(*_OF_PORT, is_yes=True) for one in found[:_MOST]]
        return _verdict(asked, facts, frozenset().union(*(one.sources for one in found)))
    if not (sources := sources_of_kind(memory, LISTENER)):
        return None
    number = f"{asked.protocol} port {asked.of}".strip()
    return _of_list(asked, f"nothing here listens on {number}", sources)


async def _of_number(memory: StateStore, asked: YesOrNo) -> Verdict | None:
    """Return the verdict on whether an object has a number in a field."""
    wanted = kinds.requested(asked.noun, frozenset()).named
    # `a second account` is not any account
    is_kind = all(kinds.requested(word, frozenset()).named for word in asked.noun.split())
    if not is_kind and asked.noun not in _ANYBODY:
        return None
    met = await condition_matching.object_ids(memory, [Condition(asked.field, "~", "")])
    having = [one for one in met if not wanted or kinds.of_object(one)[0] & wanted]
    sources = sources_of_kind(memory, *{object_id[:2] for object_id in having})
    object_ids = await condition_matching.object_ids(
        memory, [Condition(asked.field, "=", asked.of)]
    )
    read = [await read_observed(memory, one) for one in sorted(object_ids.intersection(having))]
    found = [one for one in read if one and one.is_there and asked.field in one.fields]
    if found:
        facts = [one.fact(asked.field, is_yes=True) for one in found[:_MOST]]
        return _verdict(asked, facts, frozenset().union(*(one.sources for one in found)))
    noun = asked.noun if wanted else "object"
    text = f"no {noun} here has {asked.field} {asked.of}"
    return _of_list(asked, text, sources) if sources else None


def sources_of_kind(memory: StateStore, *kind_ids: tuple[str, str]) -> frozenset[str]:
    """Return the observers of this host that list some kinds, by the sources of their objects."""
    every = memory.catalogue.view.source_kinds.copy()
    sources = (source for source, *kind_id in every if tuple(kind_id) in kind_ids)
    return frozenset(source for source in sources if source.startswith(_OF_HOST))


async def _none_of_kind(memory: StateStore, asked: YesOrNo, name: str) -> Verdict | None:
    """Return that no object of the noun's kind has a name, if observers list that kind."""
    wanted = kinds.requested(asked.noun, frozenset()).named
    if asked.relation != yes_or_no.EXISTS or not wanted:
        return None
    every = [
        kind_id
        for kind_id in memory.catalogue.kinds
        if kinds.of_object(ObjectId(*kind_id, ""))[0] & wanted
    ]
    sources = sources_of_kind(memory, *every)
    return _of_list(asked, f"there is no {asked.noun} named {name}", sources) if sources else None


async def _of_absent(memory: StateStore, name: str) -> Verdict | None:
    """Return that nothing has a name, if it is a name and no part or meaning of another one."""
    none = Verdict(f"nothing here is named {name}", is_absence=True)
    has_near = any(map(str.isdigit, name)) and memory.catalogue.names_containing(name)
    if has_near and await _is_nowhere(memory, name):
        return none
    if gloss(name) or find_synonyms(name) or kinds.requested(name, frozenset()).named:
        return None
    if memory.catalogue.names_containing(stem(name)):
        return None

    def is_unknown(store: Store) -> bool:
        return any(not store.words.having(term, 1) for term in query_terms.terms(name))

    is_absent = await memory.archive.read(is_unknown)
    return none if is_absent else None


async def _is_nowhere(memory: StateStore, name: str) -> bool:
    """Return whether no object has a name with a digit anywhere, but as a part of longer names."""
    term = max(query_terms.terms(name), key=len, default="")
    ids = await memory.archive.read(lambda store: store.words.having(term, _MOST_READ))
    view = memory.catalogue.view
    places = view.existing(view.refs_of(set(ids))).tolist()
    entries = [entry for entry in map(view.at, places) if entry]
    alone = re.compile(rf"(?<![\w@.-]){re.escape(name)}(?![\w@-]|\.\w)", re.IGNORECASE)
    contents = (await memory.content(entries)).values()
    texts = [
        *(one.identity.name for one in entries),
        *(f"{c.text} {c.properties}" for c in contents),
    ]
    return bool(term) and len(ids) < _MOST_READ and not any(map(alone.search, texts))


def _in_words(value: Json) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
