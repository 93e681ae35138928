"""Questions of state over all hosts: `packages on hold`, `is cron masked`, `which hosts run nginx`.

They are read as on one host, by opdbus.index.query, and their values become conditions. An answer
has every object that is so, and of a question that names objects the hosts that say yes and no.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from opdbus.fleet.questions.fleet_conditions import Content, find_any, find_contents
from opdbus.fleet.questions.where_found import find_holders
from opdbus.index.query import question_patterns, state_questions, yes_or_no
from opdbus.language import kinds, routes, vocabulary
from opdbus.platform import name_lists
from opdbus.state import presence
from opdbus.state.conditions import Condition

if TYPE_CHECKING:
    import asyncpg

    from opdbus.fleet.questions.fleet_scope import Hosts
    from opdbus.index.query.yes_or_no import YesOrNo

_MACHINES: Final = r"(?:hosts?|machines?|servers?|computers?)"
# Questions for hosts, and the question that each host answers for itself.
_OF_HOSTS: Final = (
    (re.compile(rf"^(?:on )?(?:which|what) {_MACHINES} (is|are|does|do|has|have) (.+)$"), r"\1 \2"),
    (re.compile(rf"^(?:which|what) {_MACHINES} runs? (.+)$"), r"is \1 running"),
    (re.compile(r"^where (is|are) (.+)$"), r"\1 \2"),
)
# `have failed units` asks for failed units.
_HAVING: Final = re.compile(r"^(?:has|have|are) ")
_SERVICE: Final = ".service"
_MEMBERS: Final = "members"
_MOST_NAMED: Final = 5
_ORDER: Final = (None, False, True)


class StateAnswer(NamedTuple):
    """The states that answer a question, and the verdict of the hosts in words, or empty."""

    contents: Mapping[bytes, Content]
    verdict: str = ""


class _Said(NamedTuple):
    """The answer of a state to a question, None if it decides nothing."""

    is_yes: bool | None
    content: Content

    @property
    def name(self) -> str:
        """The name of the object."""
        return self.content.identity.name


async def find_states(
    connection: asyncpg.Connection, question: str, hosts: Hosts
) -> StateAnswer | None:
    """Return the answer to a question of state; None for any other question.

    None, too, if nothing decides it: then words and vectors may find what was meant.
    """
    own, of_hosts = _read_own(question)
    asked = yes_or_no.read(own)
    if asked and (decided := await _decide(connection, asked, hosts)):
        answer = await _count_hosts(connection, asked, decided, hosts)
        if answer and of_hosts:
            # the states of hosts that say yes
            is_yes = not asked.is_negated
            wanted = {k: one for k, one in answer.contents.items() if decided[k].is_yes is is_yes}
            return answer._replace(contents=wanted)
        return answer
    return await _having_values(connection, _HAVING.sub("", own) if of_hosts else own, hosts)


def _read_own(question: str) -> tuple[str, bool]:
    """Return the question that a host answers for itself, and whether it was one for hosts."""
    text = routes.plain(question)
    for pattern, own in _OF_HOSTS:
        if pattern.match(text):
            return pattern.sub(own, text), True
    return state_questions.state_in_adjectives(question), False


async def _having_values(
    connection: asyncpg.Connection, question: str, hosts: Hosts
) -> StateAnswer | None:
    """Return the states with all values of a question that has only values and kinds."""
    form = question_patterns.of(question)
    if not form.is_pure or not form.values:
        return None
    found: dict[bytes, Content] | None = None
    for bits in form.values:
        having = await _having_any(connection, bits, hosts)
        found = having if found is None else {key: found[key] for key in found.keys() & having}
    met = {
        key: one
        for key, one in (found or {}).items()
        if not form.holders or kinds.of_object(one.identity.object_id)[0] & form.holders
    }
    if met or await _is_strict(connection, form):
        return StateAnswer(met)
    return None


async def _having_any(
    connection: asyncpg.Connection, bits: vocabulary.Traits, hosts: Hosts
) -> dict[bytes, Content]:
    """Return the states that have one of some values."""
    rows = [row for number, row in enumerate(vocabulary.rows()) if bits >> number & 1]
    alternatives = [each for row in rows for each in row.alternatives]
    contents = await find_any(connection, alternatives, hosts.only)
    return {one.digest: one for one in contents}


async def _is_strict(connection: asyncpg.Connection, form: question_patterns.Form) -> bool:
    """Return whether nothing answers where no object has the values, as on one host."""
    if form.is_strict or len(form.values) > 1:
        return form.is_strict
    wanted = [Condition(name, "~", "") for name in vocabulary.fields(form.values[0])]
    return all([await find_contents(connection, [one], most=1) for one in wanted])


async def _decide(
    connection: asyncpg.Connection, asked: YesOrNo, hosts: Hosts
) -> dict[bytes, _Said]:
    """Return the states of the objects that a question of yes or no names, with their answers.

    Nothing if none of them decides it.
    """
    names = [asked.of] if asked.relation == yes_or_no.MEMBER else asked.names
    wanted = kinds.requested(asked.noun, frozenset()).named if asked.noun else 0
    found: dict[bytes, _Said] = {}
    for name in names:
        contents = await find_contents(connection, [], hosts.only, name=name)
        said = [
            _Said(_answer(asked, one), one)
            for one in contents
            if not wanted or kinds.of_object(one.identity.object_id)[0] & wanted
        ]
        # `nginx` is the service rather than the package, if that has the state
        services = [each for each in said if each.name.endswith(_SERVICE)]
        if any(each.is_yes is not None for each in services):
            said = services
        if all(each.is_yes is None for each in said):
            return {}
        found |= {each.content.digest: each for each in said}
    return found


def _answer(asked: YesOrNo, content: Content) -> bool | None:
    """Return the answer of a state to a question; None if it decides nothing."""
    own = content.properties
    if asked.relation == yes_or_no.MEMBER:
        members = own.get(_MEMBERS)
        if not isinstance(members, list):
            return None
        return {*asked.names} <= {str(one).lower() for one in members}
    if asked.relation == yes_or_no.EXISTS:
        return not presence.find_absence(own)
    if asked.state:
        for is_yes, ways in ((True, asked.state.yes), (False, asked.state.no)):
            if any(way.hold(content.identity, own) for way in ways):
                return is_yes
    return None


async def _count_hosts(
    connection: asyncpg.Connection, asked: YesOrNo, decided: Mapping[bytes, _Said], hosts: Hosts
) -> StateAnswer | None:
    """Return the states that hosts have, with the hosts that say yes and no; None without any."""
    holders = await find_holders(connection, hosts, list(decided))
    of_host: dict[int, dict[str, bool | None]] = {}
    for content, ids in holders.items():
        said = decided[content]
        name = said.name.lower().removesuffix(_SERVICE)
        for host in ids:
            answers = of_host.setdefault(host, {})
            # one that is so is enough, and one that is not is more than one that nobody knows
            answers[name] = max((answers.get(name), said.is_yes), key=_ORDER.index)
    said_by = {key: decided[key] for key in holders}
    contents = {key: said.content for key, said in said_by.items() if said.is_yes is not None}
    if not contents:
        return None
    parts: dict[str, list[int]] = {"yes": [], "no": [], "not known": [], "not there": []}
    for host in hosts.ids:
        parts[_word(of_host.get(host), is_negated=asked.is_negated)].append(host)
    total = len(hosts.ids)
    texts = [_say_where(word, hosts.names(ids), total) for word, ids in parts.items() if ids]
    return StateAnswer(contents, "; ".join(texts))


def _word(answers: Mapping[str, bool | None] | None, *, is_negated: bool) -> str:
    """Return what a host says about all the names of a question."""
    if not answers:
        return "not there"
    if None in answers.values():
        return "not known"
    return "yes" if all(each != is_negated for each in answers.values()) else "no"


def _say_where(word: str, names: Sequence[str], total: int) -> str:
    if len(names) == total:
        return f"{word} on all {total:,} hosts" if total > 1 else f"{word} on {names[0]}"
    if len(names) > _MOST_NAMED:
        return f"{word} on {len(names):,} of {total:,} hosts"
    return f"{word} on {name_lists.join_first(names, _MOST_NAMED)}"
