"""What the words of a question and of an object are to each other, by the table of op-dbus."""

import json
import time

import pytest

from opdbus.index.database.store import Content, Entry
from opdbus.index.ranking.scores import Missing, Score, WordSimilarityFeatures
from opdbus.index.search import hit_features
from opdbus.models.folder import OURS
from opdbus.models.static_table import StaticTable
from opdbus.state.object import Identity

WEB = Content('{"enabled": true}', "systemd service nginx: web server and reverse proxy", b"")
MAIL = Content('{"exec": "/usr/sbin/postfix"}', "systemd service mta: sends and takes mail", b"")


def match_features(question: str, *contents: Content) -> list[WordSimilarityFeatures]:
    """Compare a question with objects."""
    return hit_features.ours().match_features(question, contents)


def test_what_an_object_lacks_is_the_word_that_tells_most() -> None:
    """Count no word that an object has in any form, in its text or its properties."""
    web, mail = match_features("does a mail server run here?", WEB, MAIL)
    assert web.worst_missing > mail.worst_missing
    assert match_features("reversed servers", WEB)[0].worst_missing == 0
    assert match_features("postfix", MAIL)[0].worst_missing == 0
    assert match_features("postfix", WEB)[0].worst_missing > 0.5


def test_a_word_like_one_of_the_objects_is_lacking_less() -> None:
    """Know words of a meaning from others."""
    near, far = (match_features(word, WEB)[0].worst_missing for word in ("website", "volcano"))
    assert near < far


def test_names_tell_more_than_words() -> None:
    """Take a word with a capital for a name, but for the first one of a question."""
    small, large, first = (
        match_features(question, WEB)[0].worst_missing
        for question in ("is there an apple", "is there an Apple", "Apple")
    )
    assert large > small
    assert first == pytest.approx(small)


def test_what_is_about_no_host_has_a_narrow_domain() -> None:
    """Tell questions about computers from others, whatever the host has."""
    about = ("which disk is nearly full", "reverse proxy", "who may log in")
    foreign = ("ground sloth", "dark grey peccary with an indistinct white collar", "a cheese")
    (widest,), (narrowest,) = (
        [f([_domain(q) for q in qs])] for f, qs in ((max, foreign), (min, about))
    )
    assert widest < narrowest


def _domain(question: str) -> float:
    return match_features(question, WEB)[0].domain


def test_a_question_without_words_is_compared() -> None:
    """Compare what has nothing to compare with anything, or with nothing."""
    assert match_features("???", WEB, Content("{}", "", b""))[0].worst_missing == 0
    assert match_features("web server") == []


def test_words_are_forgotten_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Find the same however many words came before."""
    monkeypatch.setattr(hit_features, "_KEPT", 64)
    made = hit_features.WordSimilarity(StaticTable.read(OURS, max_tokens=512))
    before = made.match_features("reverse proxy of mail", [WEB, MAIL])
    for number in range(100):
        made.match_features(f"word{number}", [])
    assert made.match_features("reverse proxy of mail", [WEB, MAIL]) == before


@pytest.mark.parametrize(
    "question",
    [
        "which mail server of the office listens on port 8080",
        "is the server key17 enabled",
        "which port does redis listen on",
        "which office is not open",
    ],
)
def test_a_screen_of_large_objects_keeps_nobody_waiting(question: str) -> None:
    """Take less time for the features of objects of a megabyte than for reading them once."""
    fields = {f"key{n}": f"mail server of the office {n}" for n in range(25_000)}
    properties = json.dumps(fields | {"enabled": False})
    content = Content(properties, "mail server " * 80_000, b"digest")
    identity = Identity("publish:test", "p", "k", "office")
    large = Entry(1, identity, 0, "", b"digest", 0, transient=False)
    rows = [(large, Score(1.0, 0.0, 1.0))] * hit_features.OVERLAPPED
    hit_features.ours()
    began = time.thread_time()
    for _ in rows:
        json.loads(properties)
    reading = time.thread_time() - began
    began = time.thread_time()
    hit_features.order_by_overlap(question, Missing(), rows, {1: content})
    hit_features.add_features(hit_features.ours(), question, rows, {1: content}, has_kind=True)
    hit_features.has_other_number(question, content)
    assert time.thread_time() - began < reading
