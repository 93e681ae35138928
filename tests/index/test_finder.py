"""Searches over the memory: pages, twins, and words where there is no model."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from harness.house import House, lived, observed, unit, units
from harness.sessions import Mortal

from opdbus.engine.batching import Rank
from opdbus.engine.provider import Session
from opdbus.engine.sessions import open_session
from opdbus.errors import NoVector, ProviderError, UnknownObject
from opdbus.index.search.finder import Finder
from opdbus.index.search.hits import Hit, SearchRequest
from opdbus.index.vectors.object_vectors import ObjectVectors
from opdbus.settings.parsing import ProviderRequest
from opdbus.state.conditions import Condition
from opdbus.state.object import FILE, ObjectId, StateObject

ASKED = (("~", "7"), ("=", "u7"), ("!=", "u7"), ("=", "nobody"))


@lived(engine=False)
async def test_before_the_model_lexical_answers_and_the_rest_waits(made: House) -> None:
    """Answer lexical search at once, and hybrid, vector and similar when the model is there."""
    await made.declare(unit("a", "network mail"), unit("b", "disk"))
    assert len(await made.finder.search("mail", SearchRequest(5), "lexical")) == 1
    waiting = [
        asyncio.ensure_future(made.finder.search("mail", SearchRequest(5))),
        asyncio.ensure_future(made.finder.search("mail", SearchRequest(5), "vector")),
    ]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    await made.serving.start()
    for hits in await asyncio.gather(*waiting):
        assert len(hits) == 2
    with pytest.raises(NoVector, match="wait for the signal Vectorized"):
        await made.vectors.vector(ObjectId("systemd", "unit", "a"))


@lived()
async def test_pages_are_exact(made: House) -> None:
    """Give every object once over all pages, in the order of one large page."""
    await made.declare(*units(60))
    await made.vectorized()
    for mode in ("hybrid", "vector", "lexical"):
        whole = await made.finder.search("network mail 7", SearchRequest(100), mode)
        pages = [await made.finder.search("network mail 7", SearchRequest(7, o), mode)
                 for o in range(0, 100, 7)]  # fmt: skip
        assert [h.object_id for page in pages for h in page] == [h.object_id for h in whole]
        assert len({h.object_id for h in whole}) == len(whole)
    found = await made.finder.search("network", SearchRequest(5, wanted={"plugin": "nowhere"}))
    assert found == []


def test_answers_do_not_depend_on_what_has_been(live: Callable[..., Any]) -> None:
    """Give the same hits with the same scores before and after a start, also of equals."""

    def some(first: int, count: int) -> list[StateObject]:
        # of equal texts; one in eight has the value that is asked for
        states = ("failed", *["active"] * 7)
        return [
            unit(f"u{n:03}", "network mail", active_state=states[n % 8])
            for n in range(first, first + count)
        ]

    async def asked(made: House) -> list[tuple[str, float, float]]:
        hits = [
            *await made.finder.search("failed network mail", SearchRequest(20)),
            *await made.finder.search("network mail", SearchRequest(20)),
        ]
        return [(hit.object_id.name, hit.score.total, hit.rating.confidence) for hit in hits]

    async def grown(made: House) -> list[tuple[str, float, float]]:
        await made.declare(*some(0, 200))
        # half of the places are free then, and some are another's
        await made.declare(*some(100, 100))
        await made.declare(*some(100, 100), *some(300, 20))
        return await asked(made)

    settings = {"vector_level": "none"}
    before = live(grown, settings=settings, engine=False)
    assert len(before) == 40
    assert live(asked, settings=settings, engine=False) == before


@pytest.mark.parametrize("mode", ["hybrid", "vector", "lexical"])
@lived()
async def test_a_corrected_question_is_asked_as_it_is_meant(made: House, mode: str) -> None:
    """Compare the vector of the corrected words, not of those with which the model began."""
    await made.declare(unit("a", "network"), unit("b", "disk"))
    await made.vectorized()
    meant, asked = [
        await made.finder.search(question, SearchRequest(5), mode)
        for question in ("network", "net work")
    ]
    assert [(hit.object_id, hit.score) for hit in asked] == [(h.object_id, h.score) for h in meant]


@pytest.mark.parametrize("mode", ["hybrid", "vector", "lexical"])
@lived()
async def test_a_condition_only_leaves_out(made: House, mode: str) -> None:
    """Give what meets a condition, with the scores that its entries have without one."""

    def scored(hits: Sequence[Hit]) -> dict[str, Any]:
        rows = {hit.object_id.name: hit.score for hit in hits}
        return {name: (s.cosine, s.lexical, s.values, s.boost) for name, s in rows.items()}

    failed = unit("disk7", "the disk of the user", active_state="failed", size=20)
    await made.declare(*units(60), failed)
    await made.vectorized()
    for question in ("network mail 7", "u7", "failed units of the user", "size below 30"):
        every = await made.finder.search(question, SearchRequest(100), mode)
        for condition in (Condition("name", op, value) for op, value in ASKED):
            page = SearchRequest(100, where=(condition,))
            found = await made.finder.search(question, page, mode)
            met = [hit for hit in every if condition.is_met_by([hit.object_id.name])]
            expected = scored(met).items()
            assert scored(found) == {k: pytest.approx(v, abs=1e-5) for k, v in expected}


@lived()
async def test_what_takes_the_place_of_what_met_a_condition_is_not_found(made: House) -> None:
    """Give nothing that does not meet a condition, also where objects change during a search."""

    class Changing(ObjectVectors):
        async def ask(self, question: str, priority: Rank = Rank.FEW) -> Any:
            await self.memory.replace(FILE, {o.identity for o in after}, after)
            return await super().ask(question, priority)

    after = [unit("other", "the mail"), *units(4)]

    await made.declare(unit("wanted", "the mail"), *units(4))
    page = SearchRequest(9, where=(Condition("name", "=", "wanted"),))
    assert len(await made.finder.search("the mail", page)) == 1
    finder = Finder(Changing(made.memory, made.serving))
    assert await finder.search("the mail", page) == []
    assert made.memory.catalogue.view.end == len(after), "it has another place"


@lived()
async def test_what_is_like_an_object_leaves_it_out(made: House) -> None:
    """Find an object's twin first, and never the object itself."""
    twins = [unit("mail one", "mail"), unit("mail two", "mail"), unit("disk", "disk time")]
    await made.declare(*twins)
    await made.vectorized()
    object_id = ObjectId("systemd", "unit", "mail one")
    hits = await made.finder.similar(object_id, SearchRequest(10))
    assert hits[0].object_id.name == "mail two"
    assert object_id not in [hit.object_id for hit in hits]
    with pytest.raises(UnknownObject):
        await made.finder.similar(ObjectId("a", "b", "c"), SearchRequest(10))


@lived()
async def test_a_thing_counts_once(made: House) -> None:
    """Give one hit for a thing that is both declared and observed."""
    await made.declare(unit("a", "network"))
    await made.publish(observed("a", "network mail"))
    await made.vectorized()
    assert len(await made.finder.search("network", SearchRequest(10))) == 1
    assert len(made.memory.catalogue) == 1


def test_searches_go_on_when_no_provider_is_left(live: Callable[..., Any]) -> None:
    """Answer by words and say why while nothing can be proven, take in what comes, and recover."""
    dead: set[str] = set()
    faults: asyncio.Queue[str] = asyncio.Queue()

    def opener(*given: Any) -> Session:
        return Mortal(open_session(*given), given[1].name, dead)

    async def work(made: House) -> None:
        await made.declare(unit("a", "network mail"))
        await made.vectorized()
        dead.add("cpu:onnxruntime")
        await made.publish(observed("b", "mail disk"))
        async with asyncio.timeout(60):
            while "stopped working" not in await faults.get():
                pass
            hits = await made.finder.search("mail", SearchRequest(5))
            assert {hit.object_id.name for hit in hits} == {"a", "b"}
            # what was computed before is still compared
            assert await made.finder.similar(ObjectId("systemd", "unit", "a"), SearchRequest(5))
            with pytest.raises(ProviderError, match="cpu:onnxruntime"):
                await made.finder.search("mail", SearchRequest(5), "vector")
            await made.publish(observed("c", "mail user"))
            dead.clear()
            await made.vectorized()
            assert await made.finder.search("mail", SearchRequest(5), "vector")

    only = {"execution_provider": ProviderRequest(("cpu:onnxruntime",))}
    fast = {"retry_seconds": (0.01,), "serving_retry": (0.2,)}
    live(work, opener=opener, on_fault=faults.put_nowait, settings=only, **fast)
