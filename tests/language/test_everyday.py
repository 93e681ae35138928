"""Everyday phrases: which a question has, and what they find."""

import pytest
from harness.house import House, lived, unit

from opdbus.index.search.finder import Finder
from opdbus.index.search.hit_features import overlap_shares
from opdbus.index.search.hits import SearchRequest
from opdbus.language import tables
from opdbus.language.synonyms import find_synonyms


def test_phrases_stand_for_single_words() -> None:
    """Keep to words that can be looked up one by one, each phrase in one row, and once."""
    phrases = []
    for said, words in tables.rows("everyday"):
        assert all(
            word.isascii() and word.isalnum() and word == word.lower() for word in words.split()
        )
        phrases += said.split("|")
    assert all(phrase == " ".join(tables.words_of(phrase)) for phrase in phrases)


@pytest.mark.parametrize(
    ("question", "phrase", "word"),
    [
        ("where is our phone exchange for phone calls", "phone calls", "asterisk"),
        ("Which safety copies are there?", "safety copies", "backup"),
        ("what is synchronising folders", "synchronising folders", "rsync"),
    ],
)
def test_phrases_are_read_in_any_form(question: str, phrase: str, word: str) -> None:
    """Read regular nouns and verbs as the table has them in another form."""
    assert any(
        " ".join(said.phrase) == phrase and word in said.words for said in find_synonyms(question)
    )


def test_what_is_asked_is_not_meant_besides() -> None:
    """Leave out words that the question has itself, and say nothing of what no row has."""
    assert all("postfix" not in said.words for said in find_synonyms("mail from postfix"))
    assert not find_synonyms("cheese and apples")
    assert not find_synonyms("")


def test_long_questions_are_not_read_to_their_end() -> None:
    """Take what is far back in a document for no phrase: a question is short."""
    assert find_synonyms("phone calls")
    assert not find_synonyms(f"{'x ' * 10_000}phone calls")


@lived(engine=False)
async def test_hosts_words_are_found_after_those_of_the_question(made: House) -> None:
    """Find what has another word, behind what has the one asked for, and raise nothing else."""

    async def names(finder: Finder, question: str) -> list[str]:
        return [
            hit.object_id.name for hit in await finder.search(question, SearchRequest(2), "lexical")
        ]

    others = [unit(f"u{n}", "nothing of that sort") for n in range(40)]
    await made.declare(*others, unit("z", "the asterisk server"))
    assert await names(made.finder, "telephone") == ["z"]
    await made.declare(*others, unit("z", "the asterisk server"), unit("y", "a telephone"))
    assert await names(made.finder, "telephone") == ["y", "z"]


def test_a_text_is_said_in_other_words_too() -> None:
    """Count the words of a text that stand for what the question says."""
    assert overlap_shares("telephone", ["asterisk", "telephone", "cheese"]) == [1.0, 1.0, 0.0]
