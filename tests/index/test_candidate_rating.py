"""Tests of the order and confidence of candidates that no index of this host holds."""

from opdbus.index.search.candidate_rating import Candidate, Corpus, order
from opdbus.state.object import Identity

_TEXTS = 5000


def candidate(name: str, text: str, cosine: float = 0.0, level: str = "") -> Candidate:
    """Return a unit with a text, and perhaps the cosine of a level."""
    identity = Identity("live:systemd", "systemd", "unit", name)
    return Candidate(identity, {"active_state": "active"}, text, cosine, level, 0.1, 0.1)


NGINX = candidate("nginx.service", "service nginx: serves web pages", 0.7, "static")
CRON = candidate("cron.service", "service cron: runs jobs at times", 0.15, "static")


def test_the_named_object_is_first_and_sure() -> None:
    """Order by words and cosines; confidences fall from hit to hit."""
    found = order("nginx service", [CRON, NGINX], Corpus({"nginx": 2, "service": 900}, _TEXTS))
    assert [each.place for each in found] == [1, 0]
    assert not found[0].rating.is_weak
    assert found[0].rating.confidence > 0.5
    assert found[0].rating.confidence >= found[1].rating.confidence


def test_nothing_answers_a_foreign_question() -> None:
    """Make all hits weak where no text has the words or is near."""
    near = [each._replace(cosine=0.1) for each in (NGINX, CRON)]
    found = order("what do ground sloths eat", near, Corpus({"sloths": 0, "ground": 0}, _TEXTS))
    assert all(each.rating.is_weak for each in found)


def test_levels_are_merged_by_rank() -> None:
    """Give the best of each level a chance, whatever its cosines are."""
    others = [candidate(f"web{n}.service", "serves web pages", 0.9, "medium") for n in range(3)]
    found = order("web pages", [*others, NGINX], Corpus({"web": 4, "pages": 4}, _TEXTS))
    assert 3 in [each.place for each in found[:2]]
    assert order("web pages", [], Corpus({}, 0)) == []
