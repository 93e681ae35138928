"""Topics: planted groups are found, the same each time, and are named by their words."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from harness.house import House, observed, unit, units

from opdbus.bus.service.insight_rows import clusters
from opdbus.errors import InvalidArgs, NoModel, NoVector
from opdbus.index.search.hits import SearchRequest
from opdbus.insight import clustering
from opdbus.insight.naming import Vocabulary
from opdbus.insight.topics import MOST, count_for
from opdbus.state.conditions import parse

RANDOM = np.random.default_rng(7)
# 5 groups of 40 vectors each
MIDDLES = clustering.normalize(RANDOM.normal(size=(5, 16)).astype(np.float32))
PLANTED = np.repeat(np.arange(5), 40)
VECTORS = clustering.normalize(
    MIDDLES[PLANTED] + RANDOM.normal(scale=0.08, size=(200, 16)).astype(np.float32)
)
KEYS = RANDOM.integers(1 << 63, size=200).astype(np.uint64)


def groups(places: Any) -> set[frozenset[int]]:
    """Give the groups of vectors at some places."""
    centres = clustering.centres(VECTORS[places], KEYS[places], 5)
    labels, _ = clustering.nearest(VECTORS[places], centres)
    return {frozenset(places[labels == n].tolist()) for n in range(len(centres))}


def test_planted_groups_are_found_in_any_order() -> None:
    """Vectors about five directions are five groups, in whatever order they come."""
    planted = {frozenset(np.flatnonzero(n == PLANTED).tolist()) for n in range(5)}
    assert groups(np.arange(200)) == groups(RANDOM.permutation(200)) == planted
    # with some of them gone, the others are as they were
    assert groups(np.arange(3, 200)) == {group - {0, 1, 2} for group in planted}


def test_equal_vectors_are_one_group() -> None:
    """There are no more groups than there are different vectors."""
    same = np.repeat(MIDDLES[:2], 10, axis=0)
    assert len(clustering.centres(same, KEYS[:20], 8)) == 2


def test_a_group_is_named_by_its_words() -> None:
    """Words of one group name it; words of all, of a kind, and hashes and numbers do not."""
    texts = [f"systemd service mail-{n}: The IMAP server, 9f86d081 1.{n}.123" for n in range(6)]
    texts += [f"systemd service disk-{n}: The Backup of a disk" for n in range(6)]
    texts += ["systemd service [redacted]: The other"] * 2
    labels = np.array([0] * 6 + [1] * 6 + [-1] * 2)
    (mail, disk) = Vocabulary(texts).names(labels, ["service"] * 14, 2)
    assert set(mail) == {"mail", "IMAP", "server"}
    assert set(disk) == {"disk", "backup"}


def test_a_kind_is_not_what_a_group_is_about() -> None:
    """What all texts of a kind have is no name for a group across kinds."""
    kinds = ["package"] * 20 + ["file"] * 20
    texts = [f"software package x{n} {'mail' if n < 5 else 'java'}" for n in range(20)]
    texts += [f"configuration file y{n} {'mail' if n < 5 else 'java'}" for n in range(20)]
    labels = np.array(([0] * 5 + [1] * 15) * 2)
    (mail, _) = Vocabulary(texts).names(labels, kinds, 2)
    assert mail == ["mail"]


def test_a_group_that_no_word_tells_has_no_name() -> None:
    """Words that are as frequent elsewhere name nothing: then members do."""
    texts = [f"user group {n}" for n in range(8)]
    assert Vocabulary(texts).names(np.array([0, 1] * 4), ["group"] * 8, 2) == [[], []]


def test_a_host_has_as_many_topics_as_can_be_read() -> None:
    """There are more topics of more objects, up to a limit."""
    assert [count_for(n) for n in (1, 5, 6, 100, 1_600)] == [1, 1, 2, 10, 40]
    assert count_for(1_000_000) == MOST


def test_topics_of_a_memory(live: Callable[..., Any]) -> None:
    """Every object is in one topic at most; filters and conditions choose what is grouped."""

    async def work(made: House) -> None:
        await made.declare(unit("a", "network"))
        await made.serving.start()
        with pytest.raises(NoVector, match="no object has a vector yet"):
            await made.insight.topics(SearchRequest(1))
        published = [observed(f"p{n}", "mail user mail", state="up") for n in range(9)]
        await made.declare(*units(60))
        await made.publish(*published)
        async with made.indexing():
            await made.vectorized()
            found = await made.insight.topics(SearchRequest(1))
            object_ids = [object_id for topic in found for object_id, _ in topic.members]
            assert len(object_ids) == len(set(object_ids)) > 60
            assert await made.insight.topics(SearchRequest(5)) is found
            up = await made.insight.topics(SearchRequest(1, where=parse("state=up")))
            names = {object_id.name for topic in up for object_id, _ in topic.members}
            assert names
            assert names <= {item.name for item in published}
            assert await made.insight.topics(SearchRequest(1, wanted={"plugin": "nowhere"})) == []
            await made.publish(observed("q", "disk time"))
            assert await made.insight.topics(SearchRequest(1)) is not found

    live(work, engine=False)


def test_a_topic_is_asked_for_by_number_or_word(live: Callable[..., Any]) -> None:
    """A topic is found by what `topics` shows of it; one that there is not is refused."""

    async def work(made: House) -> None:
        await made.declare(*units(60))
        await made.vectorized()

        async def ask(limit: int, **options: Any) -> Any:
            return await clusters(made.insight, made.memory, limit, options)

        first, *_ = every = await ask(99, objects=100)
        name, size, more = first
        assert size == len(more["objects"].value) == max(size for _, size, _ in every)
        for topic in ("1", name, name.upper()):
            assert await ask(1, topic=topic, objects=100) == [first]
        assert await ask(1, offset=1, objects=100) == every[1:2]
        with pytest.raises(InvalidArgs, match=f"there is no topic 'zzz'; there are {len(every)}"):
            await ask(1, topic="zzz")
        for wrong in ({"objects": 10_001}, {"topics": "1"}, {"plugin": "nowhere"}):
            with pytest.raises(InvalidArgs):
                await ask(1, **wrong)

    live(work)


def test_without_a_model_there_are_no_topics(live: Callable[..., Any]) -> None:
    """Say at level none that topics need a model."""

    async def work(made: House) -> None:
        await made.declare(unit("a", "network"))
        with pytest.raises(NoModel):
            await made.insight.topics(SearchRequest(1))

    live(work, settings={"vector_level": "none"}, engine=False)
