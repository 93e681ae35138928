"""Search in history: changes about a subject, before an event, or similar to another change."""

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from typing import Final, NamedTuple

from opdbus.engine.batching import Rank
from opdbus.errors import NotKept, UnknownObject
from opdbus.history import change_sentence, event_questions, jobs, row_filter
from opdbus.history.change import FIRST
from opdbus.history.row_filter import Clause, Filter, Row
from opdbus.history.sentence_table import Block, SentenceHit
from opdbus.index.changes import (
    change_ranking,
    change_relations,
    commands_run,
    connections,
    history_reader,
    why_not_running,
)
from opdbus.index.changes.change_ranking import SentenceCosines, SentenceCounts
from opdbus.index.changes.connections import Connections
from opdbus.index.database.store import Store
from opdbus.index.query import condition_matching, query_terms
from opdbus.index.query.query_parser import embed_question
from opdbus.index.query.question_conditions import MAX_CHARACTERS
from opdbus.index.vectors.object_vectors import ObjectVectors
from opdbus.index.vectors.vector_index import VectorIndex
from opdbus.language import kinds
from opdbus.language.object_text import UNIT_NOUNS, digest_of
from opdbus.language.synonyms import find_synonyms, gloss
from opdbus.language.vocabulary import stem
from opdbus.platform.slices import slices
from opdbus.platform.timestamps import format_utc
from opdbus.state import fields
from opdbus.state.object import FILE, UNIT, ObjectId

# Vectors, and rows of history, in a batch; other readers run between batches.
_AT_A_TIME: Final = 4096
_ROWS_AT_A_TIME: Final = 1 << 15
# Weights of cosine and of closeness in time for a change before an event.
COSINE_WEIGHT: Final = 0.3
CLOSE_WEIGHT: Final = 0.3
# Weight of a cause of a connected unit's failure.
FURTHER_WEIGHT: Final = 0.8
# Failures of connected units whose causes are considered.
_MOST_NEEDED: Final = 3
# Factor on changes before the unit's last good start: it has run with them.
OVERCOME_WEIGHT: Final = 0.5
# Penalty of changes of the state file where the event is one of the host.
_STATE_FILE_PENALTY: Final = 2.0
# How long before an event changes are read, and how long after a past change; microseconds.
WITHIN: Final = 30 * 60 * 1_000_000
FOLLOWS: Final = 10 * 60 * 1_000_000
# Candidates for the event, and the score difference within which they count as equally good.
_EVENTS: Final = 20
_TIE_MARGIN: Final = 0.15
# Rows read in a time window.
_MOST_ROWS: Final = 2000
# Failures of one outage that are followed back to the first, each at most `WITHIN` before.
_MOST_FAILURES: Final = 50
# Candidates by text; those with the same event are kept.
_CANDIDATES: Final = 256
MOST_FOLLOWING: Final = 20
# Events of objects that run, so not of files or accounts.
_OF_RUNS: Final = frozenset(
    "failed killed stopped started restarted reloaded enabled disabled masked unmasked".split()
)
# First listings of objects of a name that are read.
_MOST_LISTED: Final = 100
# Events after which a unit does not run.
_NOT_RUNNING: Final = frozenset(("failed", "killed", "stopped", "disabled", "masked", "went down"))
# Verbs in the active voice: `has not failed`, but `has not been removed`.
_ACTIVE: Final = frozenset(
    (
        "gone up",
        "gone down",
        *"failed stopped started restarted changed joined drifted left".split(),
    )
)
# A share of events that only whole ones exceed, if there is one.
_WHOLE: Final = 0.9
# Causes that change many objects at once.
_OF_MANY: Final = frozenset("apt boot dpkg kernel reload rpm source start".split())
# Questions for the changes before an event: `What happened before the database failed?`
_BEFORE = re.compile(
    r"(?:what|which|anything|something|changes?|show|list|tell)\b.*?\b(?:before|prior to|led to|"
    r"leading to|leading up to|preceded|caused)\s+(\S.{2,})",
    re.IGNORECASE | re.DOTALL,
)
# Questions for a value as it was: `what was bob's shell before`, `which address did lan0 have`.
_PAST_VALUE = re.compile(
    r"^(?:what|which|who)\b.*\b(?:"
    r"(?:was|were|did)\b.*\b(?:before|previously|earlier|originally|formerly|in the past)"
    r"|did\b.*\b(?:have|use|point to|listen on)|used? to\b.*"
    r"|(?:was|were) (?:the |its )?(?:previous|former|earlier|old)\b.*)[?.!\s]*$",
    re.IGNORECASE | re.DOTALL,
)
# Questions for a value at the time of an event: `which version of less was installed`.
_VALUE_AT_EVENT = re.compile(
    r"^(?:what|which)\s+(?:\w+\s+){1,3}of\s+\S+\s+(?:was|were|has|had|did)\b", re.IGNORECASE
)


# Questions for everybody who logged in, and the plugin of logins.
_LOGINS = re.compile(
    r"(?:who|which (?:users|people|accounts|user|person))(?: all| else| has| have| was| had| just"
    r"| recently)* (?:logged|signed) (?:in|on)(?: (?:here|to (?:this|the) \w+|recently))?[?!. ]*$",
    re.IGNORECASE,
)
_LOGIN: Final = "login1"


# Questions for an event of one object: `did postgresql restart`, `who restarted postgresql`.
_OF_ONE = re.compile(
    r"(?:(?:did|was|has|had|when (?:did|was|has)|how often (?:did|was|has))|who (?:has )?\w+ed)"
    r" (?:the )?(?P<name>[\w.@-]+)(?:[ ?!.]|$)",
    re.IGNORECASE,
)


# The same in the active voice, which names no user: `did anyone restart postgresql`.
_BY_ANYBODY = re.compile(
    r"^(?:who (?:has |had )?(?:tried|attempted) to"
    r"|did (?:anyone|anybody|someone|somebody)(?: try to| attempt to)?)"
    r" (?P<verb>\w+) (?:the )?(?P<name>[\w@-]{1,99}(?:\.[\w@-]{1,99}){0,9})[?!. ]*$",
    re.IGNORECASE,
)


# The event of `why isn't chrony running`.
_NOT_FIRST = re.compile(r"^not (?P<name>\S+) (?P<verb>\w+(?: up)?)$", re.IGNORECASE)


# The first words of an event of one object: `cron failed`.
_FIRST_NAME = re.compile(rf"{_OF_ONE.pattern}|(?:the )?(?P<first>[\w.@-]+)(?: |$)", re.IGNORECASE)


# Questions for what is not so now: a later change may have undone it.
_NO_LONGER = re.compile(r"\bno longer\b|\bany ?more\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class RankedChange:
    """The newest change that has a given sentence, how many changes have it, and its score."""

    row: Row
    count: int
    score: float
    # sequence number of the event that it preceded or resembles, 0 if none was asked for
    event: int = 0
    # other objects changed likewise by the same cause, and changes that match in all
    others: int = 0
    total: int = 0
    # an answer in words, of which the rows are particulars; empty if the rows are the answer
    note: str = ""


@dataclass(frozen=True, slots=True)
class ChangeChain:
    """A change and the rows of it and of connected objects that followed."""

    found: RankedChange
    rows: Sequence[Row]


class _Named(NamedTuple):
    """Words that may name an object, those that surely do, and the objects with these names."""

    names: Sequence[str]
    certain: Sequence[str]
    object_ids: Sequence[ObjectId]


class ChangeFinder:
    """Search over history, with nothing of it held in memory.

    Ranks by cosine and words; without a working engine, by words alone.
    """

    def __init__(self, vectors: ObjectVectors, look: connections.ReadMentions) -> None:
        self._vectors = vectors
        self._look = look
        self._memory = vectors.memory

    async def about(
        self, asked: str, wanted: Filter, limit: int, *, priority: Rank = Rank.FEW
    ) -> list[RankedChange]:
        """Return the changes that best answer a question, one for each sentence, best first.

        `What happened before EVENT?` is answered by `before`. If the question names an object and
        an event of it, only changes that have its name are returned; if that did not happen to it,
        the commands that were to bring it about. `What did bob do?` is answered by the commands of
        bob, if the journal was read. Raises NotKept if the event did not happen, nor was tried.
        """
        asked = _BY_ANYBODY.sub(r"did \g<name> \g<verb>", asked[:MAX_CHARACTERS])
        if event := _BEFORE.match(asked.strip()):
            return await self.before(event[1], wanted, limit)
        if wanted.object_ids is None and (rows := await self._acts_of_users(asked, wanted)):
            return _answer_with(rows, limit)
        if _PAST_VALUE.search(asked) and not event_questions.find_events(asked):
            return await self._past_values(asked, wanted, limit, priority)
        # a question without a verb, such as `settings of lan0`, needs no matching event
        stems = {stem(word) for word in event_questions.event_words(asked)}
        names: Sequence[str] = []
        if not stems.isdisjoint(map(stem, event_questions.saying(asked))):
            span = Filter(since=wanted.since, before=wanted.before)
            try:
                if await self._find_event_of_named(asked, span):
                    names = (await self._find_named(asked)).names
            except NotKept as error:
                # such a value may be in any change of the object
                if not _VALUE_AT_EVENT.match(asked):
                    if rows := await self._find_tries(asked, wanted):
                        return _answer_with(rows, limit, f"{error}, but this was tried:")
                    raise
                names = change_ranking.naming_words(asked)
            # the same event of another object is no answer
            names = names or _only_name(asked)
        if not _NO_LONGER.search(asked):
            return await self._about(asked, wanted, limit, priority, names=names)
        found = await self._about(asked, wanted, _CANDIDATES, priority, names=names)
        found = [each for each in found if await self._lasts(each.row)]
        return [replace(each, total=len(found)) for each in found[:limit]]

    async def _acts_of_users(self, asked: str, wanted: Filter) -> list[Row]:
        """Return the rows of commands that a question asks for, or of users who logged in.

        The newest comes first.
        """
        if not _LOGINS.match(asked.strip()):
            return await commands_run.find_commands(self._memory, asked, wanted)
        span = replace(wanted, plugin=_LOGIN, what="appeared", is_oldest_first=False)
        rows = await history_reader.first_rows(self._memory, span, _MOST_ROWS)
        observed = (row for row in rows if row.identity.source != FILE)
        return [row for row in observed if row.identity.kind in {"user", "session"}]

    async def _lasts(self, row: Row) -> bool:
        """Return whether no later change of its object has undone a change."""
        span = Filter(object_ids=[row.identity.object_id], after_seq=row.seq)
        later = await history_reader.first_rows(self._memory, span, _EVENTS)
        return not any(event_questions.undoes(each.sentence, row.sentence) for each in later)

    async def _past_values(
        self, asked: str, wanted: Filter, limit: int, rank: Rank
    ) -> list[RankedChange]:
        """Return the changes of the value that a question asks for as it was earlier.

        Raises NotKept if history has none, since the present value is no answer.
        """
        names = change_ranking.naming_words(asked)
        every = query_terms.terms(change_ranking.subject(asked))
        values = [stem(word) for word in every if word not in names]
        changed = replace(wanted, has_first=False)
        found = [
            each
            for each in await self._about(asked, changed, _CANDIDATES, rank, names=names)
            if all(any(w.startswith(v) for w in _words_of(each.row.sentence)) for v in values)
        ]
        if not found:
            if not await self._have_field(names, values):
                return await self._about(asked, changed, limit, rank)
            since = await history_reader.begin(self._memory, wanted)
            what = " ".join(every) or "what was asked for"
            raise NotKept(f"history has no earlier value of {what} (since {since})")
        return [replace(each, total=len(found)) for each in found[:limit]]

    async def _have_field(self, names: Sequence[str], values: Sequence[str]) -> bool:
        """Return whether an object with one of some names has fields with all words of a value.

        If it has none, the value is that of another object, such as the port of a service.
        """
        memory, found = self._memory, set[str]()
        for name in names:
            object_ids, _ = await condition_matching.resolve(memory, name)
            entries = [one for each in object_ids for one in memory.catalogue.entries(each)]
            for content in (await memory.content(entries)).values():
                paths = fields.paths(json.loads(content.properties))
                found.update(stem(word) for path in paths for word in fields.split(path))
        return all(any(word.startswith(value) for word in found) for value in values)

    async def before(
        self, event: str, wanted: Filter, limit: int, *, within: int = WITHIN
    ) -> list[RankedChange]:
        """Return the changes that may have led to an event, of the `within` microseconds before it.

        The event is the best match of all changes from `since` to `before`. Changes related to it
        come first, then those similar to it or close in time. Raises UnknownObject if neither an
        object nor history has the names in `event`, and NotKept as `about` does.
        """
        event = _NOT_FIRST.sub(r"\g<name> not \g<verb>", event[:MAX_CHARACTERS].strip())
        span = Filter(since=wanted.since, before=wanted.before)
        if wanted.before == row_filter.MAX_INT64 and (
            found := await self._why_not_running(event, wanted, limit)
        ):
            return found
        if named := await self._find_event_of_named(event, span):
            return await self._find_causes(named, wanted, limit, within)
        events = await self._about(event, span, _EVENTS, Rank.FEW)
        if rest := change_ranking.naming_words(event):
            if not await self._memory.archive.read(partial(_has_any, rest)):
                name = " ".join(rest)
                raise UnknownObject(f"there is no object named {name}, and history has none")
            # the same event of another object is no answer
            about = await self._about(" ".join(rest), span, _CANDIDATES, Rank.FEW)
            numbers = {each.row.seq for each in about}
            events = [
                each
                for each in events
                if each.row.seq in numbers and _has_happened(event, each.row)
            ]
        if not events:
            return []
        # take the newest that is the same event of the same object; where words besides the
        # object's may tell one from another, the newest of nearly equal matches
        best = events[0]
        its_words = best.row.sentence.rpartition("; ")[0]
        is_any = all(_has_name([word], its_words) for word in rest)
        tied = [
            each.row
            for each in events
            if (is_any or best.score - each.score <= _TIE_MARGIN)
            and each.row.identity == best.row.identity
            and event_questions.is_alike(each.row.sentence, best.row.sentence)
        ]
        newest = max(tied, key=lambda row: row.seq)
        return await self._find_causes(newest, wanted, limit, within)

    async def _why_not_running(self, event: str, wanted: Filter, limit: int) -> list[RankedChange]:
        """Return why a named unit does not run, where that is in its fields and not in history.

        A condition for which it was not started comes before earlier stops and failures. The
        changes are those of the unit, and the commands that were to start or to stop it.
        """
        if _NOT_RUNNING.isdisjoint(event_questions.event_words(event)):
            return []
        named = await self._find_named(event)
        units = [one for one in named.object_ids if one[:2] == UNIT]
        units.sort(key=lambda one: not one.name.endswith(".service"))
        unit = units[0] if units else None
        if unit is None or not self._memory.catalogue.has(unit):
            return []
        fields_of_unit = await connections.fields_of(self._memory, unit)
        note = why_not_running.find_reason(unit.name, fields_of_unit)
        if not why_not_running.unmet_condition(fields_of_unit):
            span = Filter(since=wanted.since, before=wanted.before)
            try:
                await self._newest(event, named.certain[0], replace(span, object_ids=units))
            except NotKept as error:
                note = f"{error}; {note}" if note else ""
            else:
                return []
        if not note:
            return []
        rows = await commands_run.find_tries(self._memory, units, ("started", "stopped"), wanted)
        own = replace(wanted, object_ids=units, is_oldest_first=False, has_first=False)
        rows += await history_reader.first_rows(self._memory, own, limit)
        if not rows:
            first = replace(own, has_first=True)
            rows = await history_reader.first_rows(self._memory, first, 1)
        return _answer_with(sorted(rows, key=lambda row: -row.seq), limit, note)

    async def _find_event_of_named(self, event: str, span: Filter) -> Row | None:
        """Return the newest row of an event of the object that it names; None if it names none.

        Raises NotKept if history has no such event of the object.
        """
        named = await self._find_named(event)
        if not named.object_ids:
            return None
        wanted = replace(span, object_ids=named.object_ids)
        return await self._newest(event, named.certain[0], wanted)

    async def _find_named(self, event: str) -> _Named:
        """Return the words that name an object in a question or an event, and these objects."""
        words = change_ranking.naming_words(event)
        catalogue, known = self._memory.catalogue, await history_reader.object_ids(self._memory)
        if not words and (match := _FIRST_NAME.match(event.strip())):
            # the name of a service may be a word for a kind: `who stopped cron`
            first = (match["name"] or match["first"]).lower()
            service = ObjectId(*UNIT, f"{first}.service")
            words = [first] if catalogue.has(service) or service in known else []
        certain = [word for word in words if len(words) == 1 or not word.isalpha()]
        if not certain:
            return _Named(words, certain, [])
        is_run = not _OF_RUNS.isdisjoint(event_questions.event_words(event))

        def called() -> list[ObjectId]:
            every = set(known).union(*map(catalogue.names_containing, certain))
            return [one for one in every if any(_is_called(one, word) for word in certain)]

        object_ids = await asyncio.to_thread(called)
        for word in certain:
            object_ids += await condition_matching.aliased(self._memory, word)
        object_ids = [one for one in object_ids if not is_run or one[:2] not in kinds.STATELESS]
        return _Named(words, certain, object_ids)

    async def _find_tries(self, event: str, wanted: Filter) -> list[Row]:
        """Return the rows of commands that were to bring an event of a named object about."""
        named, events = await self._find_named(event), event_questions.event_words(event)
        services = [ObjectId(*UNIT, f"{word}.service") for word in named.certain]
        return await commands_run.find_tries(
            self._memory, {*named.object_ids, *services}, events, wanted
        )

    async def _newest(self, event: str, name: str, wanted: Filter) -> Row:
        """Return the newest row of an event of some objects with a name; raises NotKept if none."""
        wanted = replace(wanted, has_first=False)
        # a restart is a stop, but one that was no restart is meant first
        whole = partial(_has_happened, event, least=_WHOLE)
        found: Row | None = None
        async with aclosing(history_reader.row_parts(self._memory, wanted)) as parts:
            async for part in parts:
                if row := next(filter(whole, part.rows), None):
                    return row
                in_part = (row for row in part.rows if _has_happened(event, row))
                found = found or next(in_part, None)
        if found:
            return found
        verbs = event_questions.event_words(event) or ["changed"]
        verb = next((each for each in verbs if each in event.lower()), verbs[0])
        verb = verb.replace("went ", "gone ")
        been = "not" if verb in _ACTIVE else "not been" if verb.endswith("ed") else "no"
        until = (
            f" and before {format_utc(wanted.before)}"
            if wanted.before < row_filter.MAX_INT64
            else ""
        )
        since = await history_reader.begin(self._memory, wanted)
        if await self._was_listed_first(verb, wanted):
            has = "has" if verb in _ACTIVE else "was"
            raise NotKept(f"{name} {has} {verb} before the history begins (at {since})")
        raise NotKept(f"{name} has {been} {verb} in the history (since {since}{until})")

    async def _was_listed_first(self, verb: str, wanted: Filter) -> bool:
        """Return whether an object that an event brings was there at its first listing."""
        listed = replace(wanted, cause=FIRST, what="appeared", has_first=True)
        rows = await history_reader.first_rows(self._memory, listed, _MOST_LISTED)
        return any(verb in change_sentence.comings_of(row.identity.kind) for row in rows)

    async def nearest(self, to: Row | str, wanted: Filter, limit: int) -> list[ChangeChain]:
        """Return the changes most similar to one, each with the changes that followed from it.

        `to` is a text or a row of history. For a row, only earlier rows are returned in which the
        same happened to an object of the same kind.
        """
        said, seq = (to.sentence, to.seq) if isinstance(to, Row) else (to[:MAX_CHARACTERS], 0)
        if seq:
            wanted = replace(wanted, before_seq=min(wanted.before_seq, seq))
        most = _CANDIDATES if seq else limit
        found = await self._about(said, wanted, most, Rank.FEW, is_question=not seq)
        if isinstance(to, Row):
            kind, sentence = to.identity[1:3], to.sentence
            found = [
                each
                for each in found
                if each.row.identity[1:3] == kind
                and event_questions.is_alike(each.row.sentence, sentence)
            ][:limit]
        return [
            ChangeChain(replace(each, event=seq), await self._read_followers(each.row))
            for each in found
        ]

    async def _about(
        self,
        asked: str,
        wanted: Filter,
        limit: int,
        rank: Rank,
        *,
        is_question: bool = True,
        names: Collection[str] = (),
    ) -> list[RankedChange]:
        """Return the changes about a question; with `names`, of those that have one of them."""
        counts = await self._count_sentences(wanted)
        cosines = await self._sentence_cosines(change_ranking.subject(asked) or asked, counts, rank)

        def read(store: Store) -> list[tuple[SentenceHit, float]]:
            candidates = change_ranking.candidates(store, asked, cosines.cosines, counts)
            about = {each.hit.seq for each in candidates}
            if is_question:
                about = change_ranking.about(asked, cosines, candidates)
            if names:
                about &= {each.hit.seq for each in candidates if _has_name(names, each.hit.text)}
            ranked = change_ranking.rank(store, asked, candidates) if about else []
            return [each for each in ranked if each[0].seq in about]

        ranked = await self._memory.archive.read(read)
        best = ranked[:limit]
        numbers = [said.seq for said, _ in best]
        rows = {row.seq: row for row in await history_reader.rows_by_seq(self._memory, numbers)}
        return [
            RankedChange(rows[said.seq], said.count, score, total=len(ranked))
            for said, score in best
            if said.seq in rows
        ]

    async def _find_causes(
        self, event: Row, wanted: Filter, limit: int, within: int
    ) -> list[RankedChange]:
        event = await self._find_first_failure(event)
        since, below = max(wanted.since, event.at - within), min(wanted.before_seq, event.seq)
        window = replace(
            wanted, since=since, before_seq=below, is_oldest_first=False, has_first=False
        )
        rows = await history_reader.first_rows(self._memory, window, _MOST_ROWS)
        most = min(wanted.before, event.at + change_relations.MOST_LATE)
        after = replace(
            window, since=event.at, before=most, after_seq=event.seq, before_seq=wanted.before_seq
        )
        later = await history_reader.first_rows(self._memory, after, _MOST_ROWS)
        rows = [*(row for row in later if change_relations.is_seen_late(row, event)), *rows]
        sentence_cosines = await self._cosines_of_rows(event, rows)
        object_ids = await connections.around(self._memory, event.identity.object_id, self._look)
        further = [
            (row, await connections.around(self._memory, row.identity.object_id, self._look))
            for row in _failures_of_connected(event, rows, object_ids)
        ]
        started = change_relations.last_start(event, rows)
        unrelated = set[int]()

        def score(row: Row) -> float:
            likely = change_relations.likelihood(row, event, object_ids)
            behind = (change_relations.likelihood(row, other, of) for other, of in further)
            likely = max(likely, FURTHER_WEIGHT * max(behind, default=0.0))
            likely *= OVERCOME_WEIGHT if row.seq < started else 1.0
            less = 0.0 if likely else kinds.of_object(row.identity.object_id)[1]
            less += _STATE_FILE_PENALTY * _is_declaration_only(row, event)
            if not likely:
                unrelated.add(row.seq)
            close = change_relations.closeness(row, event, within)
            alike = sentence_cosines.get(row.sentence, 0.0)
            return likely - less + COSINE_WEIGHT * alike + CLOSE_WEIGHT * close

        def scored() -> list[RankedChange]:
            # the best change of each sentence
            counts = Counter(row.sentence for row in rows)
            every = [RankedChange(r, counts[r.sentence], score(r), event.seq) for r in rows]
            best: dict[str, RankedChange] = {}
            for each in sorted(every, key=lambda each: (-each.score, -each.row.seq)):
                best.setdefault(each.row.sentence, each)
            found = _without_bulk([*best.values()], unrelated)
            return [replace(each, total=len(found)) for each in found[:limit]]

        return await asyncio.to_thread(scored)

    async def _find_first_failure(self, event: Row) -> Row:
        """Return the first failure of the outage that a failure belongs to.

        A failure that ended another way than the one before begins an outage of its own.
        """
        end = change_relations.end_of(event)
        for _ in range(_MOST_FAILURES):
            if "failed" not in event_questions.happened(event.sentence):
                break
            object_id = event.identity.object_id
            before = Filter(object_ids=[object_id], since=event.at - WITHIN, before_seq=event.seq)
            rows = await history_reader.first_rows(self._memory, before, _MOST_ROWS)
            since_start = takewhile(lambda row: not change_relations.is_start(row), rows)
            failed = [
                row for row in since_start if "failed" in event_questions.happened(row.sentence)
            ]
            if not failed:
                break
            for row in failed:
                earlier = change_relations.end_of(row)
                if any(end[name] != earlier[name] for name in end.keys() & earlier.keys()):
                    return event
                event, end = row, end or earlier
        return event

    async def _read_followers(self, row: Row) -> list[Row]:
        """Return the changes of an object and of connected ones in the `FOLLOWS` after a row.

        Of rows with the same sentence, such as those of a restart loop, only the first is returned.
        """
        window = Filter(
            since=row.at, before=row.at + FOLLOWS, after_seq=row.seq, is_oldest_first=True
        )
        rows = await history_reader.first_rows(self._memory, window, _MOST_ROWS)
        object_ids = await connections.around(self._memory, row.identity.object_id)

        def followed() -> list[Row]:
            related = (
                each
                for each in reversed(rows)
                if change_relations.relation(each, row, object_ids) >= change_relations.SAME
                and not _is_declaration_only(each, row)
            )
            first = {each.sentence or each.seq: each for each in related}
            return sorted(first.values(), key=lambda each: each.seq)[:MOST_FOLLOWING]

        return await asyncio.to_thread(followed)

    async def _cosines_of_rows(self, event: Row, rows: Sequence[Row]) -> Mapping[str, float]:
        """Return the cosine of each row's sentence with that of an event."""
        texts = await asyncio.to_thread(
            lambda: {digest_of(row.sentence): row.sentence for row in rows if row.sentence}
        )
        ids = await self._memory.archive.read(lambda store: store.sentences.numbers(list(texts)))
        cosines = await self._sentence_cosines(event.sentence, dict.fromkeys(ids, (0, 0)), Rank.FEW)
        return {texts[ids[number]]: cosine for number, cosine in cosines.cosines.items()}

    async def _count_sentences(self, wanted: Filter) -> SentenceCounts:
        """Return (newest row, number of rows) of each sentence in a filter.

        None if the filter selects everything.
        """
        if wanted == Filter(is_oldest_first=wanted.is_oldest_first):
            return None
        found: dict[int, tuple[int, int]] = {}

        def read(clause: Clause) -> Awaitable[list[tuple[int, int, int]]]:
            return self._memory.archive.read(lambda store: store.sentences.meant(*clause))

        async for clause in self._clauses(wanted):
            rows = await read(clause)
            for number, newest, count in rows:
                before = found.get(number, (0, 0))
                found[number] = max(before[0], newest), before[1] + count
        return found

    async def _clauses(self, wanted: Filter) -> AsyncIterator[Clause]:
        """Yield SQL clauses, one for each part, that together select the rows of a filter."""
        if wanted.where:
            # its conditions cannot be written in SQL
            async with aclosing(history_reader.row_parts(self._memory, wanted)) as parts:
                async for part in parts:
                    rows = json.dumps([row.seq for row in part.rows])
                    yield Clause("seq IN (SELECT value FROM json_each(?))", [rows])
            return
        numbers = await self._memory.archive.read(
            lambda store: store.history.candidate_range(wanted)
        )
        sql, values = row_filter.clause(wanted)
        for some in slices(numbers, _ROWS_AT_A_TIME):
            yield Clause(f"seq BETWEEN ? AND ? AND {sql}", [some.start, some.stop - 1, *values])

    async def _sentence_cosines(
        self, asked: str, counts: SentenceCounts, rank: Rank
    ) -> SentenceCosines:
        """Return the cosines of sentences with a text, by sentence number; empty without an engine.

        `counts` limits the sentences; None means all.
        """
        asking = await embed_question(self._vectors, asked, rank)
        if asking is None:
            return SentenceCosines({})
        index, vector = asking
        found: dict[int, float] = {}
        async for block in self._blocks(index, counts):
            found |= zip(block.ids, (block.vectors @ vector).tolist(), strict=True)
        return SentenceCosines(found, index.baseline(vector) if found else None)

    async def _blocks(self, index: VectorIndex, counts: SentenceCounts) -> AsyncIterator[Block]:
        """Yield blocks of vectors; other readers run between them."""
        read, engine, dimension = self._memory.archive.read, index.numerics_key, index.dimension

        def read_some(ids: Sequence[int]) -> Awaitable[Block]:
            return read(lambda store: store.sentences.block_of(engine, dimension, ids))

        def read_next(after: int) -> Awaitable[Block]:
            return read(lambda store: store.sentences.block(engine, dimension, after, _AT_A_TIME))

        if counts is not None:
            for part in slices(list(counts), _AT_A_TIME):
                yield await read_some(part)
            return
        last = 0
        while last >= 0:
            block = await read_next(last)
            yield block
            last = block.ids[-1] if len(block.ids) == _AT_A_TIME else -1


def _answer_with(rows: Sequence[Row], limit: int, note: str = "") -> list[RankedChange]:
    """Return the first rows as an answer in words and its particulars."""
    return [RankedChange(row, 1, 1.0, total=len(rows), note=note) for row in rows[:limit]]


def _is_called(object_id: ObjectId, word: str) -> bool:
    """Return whether a word is an object's name; for a service, with or without its instance."""
    name = object_id.name.lower()
    stem = name.removesuffix(".service")
    return word in {name, stem, stem.partition("@")[0]}


def _words_of(sentence: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", sentence.lower())


def _only_name(asked: str) -> list[str]:
    """Return the name in a question for an event of one object; none if it has another form."""
    match, named = _OF_ONE.match(asked.strip()), change_ranking.naming_words(asked)
    is_only = match and named == [match["name"].lower()] and not find_synonyms(named[0])
    return named if is_only else []


def _has_name(names: Collection[str], sentence: str) -> bool:
    """Return whether a sentence has one of some names, also with a suffix or within a path."""
    words = sentence.lower()
    # sentences have services without the suffix
    every = {part for name in names for part in (name, name.removesuffix(".service"))}
    return any(re.search(rf"(?<![^\W_]){re.escape(name)}(?![^\W_])", words) for name in every)


def _has_happened(event: str, row: Row, least: float = 0.0) -> bool:
    """Return whether more than a share of the events happened in a row.

    Without a verb it is any change of the host.
    """
    happened = event_questions.find_events(event)
    if not happened or change_ranking.asks_for_any_change(event):
        return not event_questions.is_of_declaration(row.sentence)
    return event_questions.share(happened, row.sentence) > least


def _has_any(words: Sequence[str], store: Store) -> bool:
    """Return whether an object, a change or a word table has one of the words."""
    texts = [word for word in words if word.rpartition(".")[2] not in UNIT_NOUNS]
    tables = store.words, store.sentences.words
    return any(
        find_synonyms(word) or gloss(word) or any(table.count_matches(word) for table in tables)
        for word in texts
    )


def _is_declaration_only(row: Row, other: Row) -> bool:
    """Return whether the first row is one of the state file and the other is not.

    Such a change leads to nothing on the host.
    """
    is_of_file, of_file = (event_questions.is_of_declaration(r.sentence) for r in (row, other))
    return is_of_file and not of_file


def _failures_of_connected(event: Row, rows: Sequence[Row], connected: Connections) -> list[Row]:
    """Return the last failure, stop or removal of each connected unit before an event."""
    failed = {
        row.identity.object_id: row for row in reversed(rows) if change_relations.is_harm(row)
    }
    failed.pop(event.identity.object_id, None)
    return [row for object_id, row in failed.items() if object_id in connected][-_MOST_NEEDED:]


def _without_bulk(found: Sequence[RankedChange], unrelated: Collection[int]) -> list[RankedChange]:
    """Merge the changes that one cause made to many objects, unless the event concerns them.

    `unrelated` are the numbers of rows without a relation to the event.
    """
    best: dict[object, RankedChange] = {}
    for each in found:
        row = each.row
        cause, did = jobs.alone(row.cause), event_questions.happened(row.sentence)[0]
        is_bulk = row.seq in unrelated and cause.partition(":")[0] in _OF_MANY
        key = (cause, row.identity[1:3], did) if is_bulk else row.seq
        if first := best.get(key):
            best[key] = replace(first, others=first.others + 1)
        else:
            best[key] = each
    return list(best.values())
