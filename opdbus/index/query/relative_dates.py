"""Dates relative to today in a question: `expired`, `no backup for ten days`.

Compares end dates, such as a certificate's `not_after`, and dates of last success, such as a
backup's `last_success`. Times given as options are read by `language.timestamps`, with the same
lengths of months and years.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Final, NamedTuple

from opdbus.index.catalogue.entry_view import EntryRefs
from opdbus.index.query import condition_matching
from opdbus.index.state_store.state_store import StateStore
from opdbus.platform.timestamps import MONTH, YEAR
from opdbus.state.conditions import Condition

# Fields with an end of validity, and fields with the time of the last run.
ENDS: Final = (
    "not_after expires expiry expiration expires_at expiration_date expiry_date valid_until"
    " valid_to end_of_support end_of_life paid_until"
).split()
LASTS: Final = (
    "last_success last_run last_backup last_successful last_seen last_login last_sync"
    " last_completed last_finished last_update"
).split()
_DAY: Final = timedelta(days=1)
_SOON: Final = timedelta(days=30)
_UNITS: Final = {
    "hour": 1 / 24,
    "day": 1.0,
    "week": 7.0,
    "month": MONTH / _DAY,
    "year": YEAR / _DAY,
}
_NUMBERS: Final = {
    **dict.fromkeys(("", "a", "an", "one", "the", "this", "next", "last"), 1),
    **dict(zip("two three four five six seven eight nine ten".split(), range(2, 11), strict=True)),
    "twelve": 12, "fourteen": 14, "thirty": 30,
}  # fmt: skip
_SPAN: Final = (
    rf"(?:(?:(?P<count>\d{{1,4}}|{'|'.join(filter(None, _NUMBERS))}) )?"
    rf"(?:few )?(?P<unit>{'|'.join(_UNITS)})s?|(?P<day>today|tomorrow|yesterday))\b"
)
_PAST: Final = re.compile(
    r"\b(?:expired|lapsed|(?:have|has|had|did)(?: \w+){0,3}? run out|ran out|no longer valid"
    r"|not valid any ?more|no longer (?:supported|paid)|out of support"
    r"|(?:contract|subscription|licen[cs]e|warranty|guarantee|support)s?(?: \w+){0,2}? "
    r"(?:ended|is over|are over)"
    r"|past (?:its|their) (?:end|date|expiry))\b(?! of )"
)
_COMING: Final = re.compile(
    r"\b(?:expir(?:e|es|ing|y)|lapses?|run(?:s|ning)? out|renewed|renewal|valid)\b(?! of )"
    rf"(?:\W+\w+){{0,3}}?\W+(?:soon|(?:(?:with)?in|for|over|before)? ?(?:the )?(?:next )?{_SPAN})"
)
_AGO: Final = re.compile(
    r"\b(?:not|never|no|last|older)\b(?:\W+\w+){0,5}?\W+"
    r"(?:(?:for|in|since|than)(?: (?:more than|over|at least|the last|the past|about))?) "
    rf"{_SPAN}|\b(?:more than|over|at least) (?P<count2>\d{{1,4}}) (?P<unit2>day|week|month)s? "
    r"(?:ago|old)\b"
)
_DATE = re.compile(r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d(?::\d\d)?))?")
_MOST: Final = 3
# Characters of a question that are read; a longer one is a document.
_CHARACTERS: Final = 1000
# Dates are compared of at most this many objects.
_MANY: Final = 5000


class DateConstraint(NamedTuple):
    """Words of a question, and the fields whose date must be in the range [first, last)."""

    words: str
    fields: Sequence[str]
    first: datetime
    last: datetime


def now() -> datetime:
    """Return the present time in UTC, with which dates are compared."""
    return datetime.now(UTC)


def find(question: str, today: datetime) -> list[DateConstraint]:
    """Return the first `_MOST` date constraints of a question."""
    return list(islice(_all(question[:_CHARACTERS].lower(), today), _MOST))


def _all(question: str, today: datetime) -> Iterator[DateConstraint]:
    first = datetime.min.replace(tzinfo=UTC)
    for match in _COMING.finditer(question):
        yield DateConstraint(match[0], ENDS, today, today + _span(match.groupdict()))
    for match in _PAST.finditer(question):
        yield DateConstraint(match[0], ENDS, first, today)
    for match in _AGO.finditer(question):
        yield DateConstraint(match[0], LASTS, first, today - _span(match.groupdict()))


def _span(told: Mapping[str, str | None]) -> timedelta:
    unit = told.get("unit") or told.get("unit2")
    if unit is None:
        return _DAY if told.get("day") else _SOON
    count = told.get("count") or told.get("count2") or ""
    return timedelta(days=_UNITS[unit] * (_NUMBERS[count] if count in _NUMBERS else int(count)))


async def met(memory: StateStore, asked: DateConstraint) -> EntryRefs:
    """Return the entries of objects with a date in the range."""
    unread = memory.fields.unread()
    # an object that the index does not cover yet may have any of the fields
    is_read = unread.after >= unread.last and not unread.ids
    names = [name for name in asked.fields if not is_read or memory.fields.index.knows(name)]
    having = [
        await condition_matching.object_ids(memory, [Condition(name, "~", "-")]) for name in names
    ]
    object_ids = sorted(frozenset().union(*having))[:_MANY]
    found = await condition_matching.values(memory, object_ids, asked.fields)
    return memory.catalogue.found(
        object_id
        for object_id, values in zip(object_ids, found, strict=True)
        if any(
            date and asked.first <= date < asked.last
            for each in values.values()
            for date in map(_date, each)
        )
    )


def _date(value: object) -> datetime | None:
    """Return the ISO 8601 time at the start of a value, read as UTC; None if there is none."""
    match = _DATE.match(value) if isinstance(value, str) else None
    try:
        return datetime.fromisoformat(f"{match[1]}T{match[2] or '00:00'}+00:00") if match else None
    except ValueError:
        return None
