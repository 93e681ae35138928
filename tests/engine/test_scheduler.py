"""One queue, a thread for each lane, and a settled future for everyone."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from typing import Any

import numpy as np
import pytest

from opdbus.engine.batching import Budget, Rank
from opdbus.engine.scheduler import Scheduler
from opdbus.engine.tokenizer import Tokens
from opdbus.errors import Internal, LimitsExceeded, ProviderLost, ShuttingDown

RANKS = (Rank.FEW, Rank.BULK)
SOON = 60.0  # seconds: a limit for what should take none, not a measurement


def row(first: int, length: int = 3) -> Tokens:
    """Make a row that is known by its first id."""
    ids = np.array([first] + [0] * (length - 1), np.int64)
    return Tokens(ids, np.zeros(1, np.intp), np.array([length]), np.zeros(1, np.bool_))


async def embed(tested: Scheduler, rows: list[Tokens], *rank: Rank, **named: Rank) -> np.ndarray:
    """Embed rows together."""
    return await tested.embed(Tokens.joined(rows), *rank, **named)


def vectors_of(ids: np.ndarray) -> np.ndarray:
    """Give vectors that tell which row they belong to: its first id and its length."""
    return np.stack([ids[:, 0], np.full(len(ids), ids.shape[1])], axis=1).astype(np.float32)


class Model:
    """A model that keeps what it ran, and waits at a gate if told to."""

    def __init__(self, *, shut: bool = False) -> None:
        self.ran: list[list[int]] = []
        self.threads: set[str] = set()
        self.entered = threading.Event()
        self.gate = threading.Event()
        if not shut:
            self.gate.set()

    def run(self, ids: np.ndarray) -> np.ndarray:
        """Embed, when the gate is open."""
        self.ran.append(ids[:, 0].tolist())
        self.threads.add(threading.current_thread().name)
        self.entered.set()
        assert self.gate.wait(SOON)
        return vectors_of(ids)

    async def is_running(self) -> None:
        """Wait until a batch has begun."""
        assert await asyncio.to_thread(self.entered.wait, SOON)


def scheduler(
    *lanes: Callable[[np.ndarray], np.ndarray], budget: int = 12, **settings: Any
) -> Scheduler:
    """Make a scheduler of two dimensions, and of one lane for each of the runs."""
    more = {"dimension": 2, "limit": 100, "patience": SOON, **settings}
    return Scheduler(lanes, budget=Budget(1 << 16, fixed=budget), **more)


def model_threads() -> list[threading.Thread]:
    """List the model's threads."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("model")]


def completes(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test within a limit of time, and see that no model thread outlives it."""

    @wraps(test)
    def run(**given: Any) -> None:
        async def limited() -> None:
            await asyncio.wait_for(test(**given), SOON)

        asyncio.run(limited())
        assert model_threads() == []

    return run


async def queued(call: Awaitable[np.ndarray]) -> asyncio.Task:
    """Begin a call and let it come as far as the queue."""
    task = asyncio.ensure_future(call)
    await asyncio.sleep(0)
    return task


@completes
async def test_results_in_order() -> None:
    """Give each row its own vector, in the order asked, whatever its length."""
    rows = [row(number, 1 + number * 7 % 5) for number in range(60)]
    async with scheduler(Model().run) as tested:
        found = await embed(tested, rows)
    assert found.tolist() == [[number, 1 + number * 7 % 5] for number in range(60)]
    assert found.dtype == np.float32


@completes
async def test_concurrent_requests() -> None:
    """Give each of many callers their own vectors, bulk or not."""
    async with scheduler(Model().run, limit=10_000) as tested:
        calls = [
            embed(tested, [row(100 * caller + n, 1 + n) for n in range(5)], RANKS[caller % 2 == 0])
            for caller in range(50)
        ]
        for caller, found in enumerate(await asyncio.gather(*calls)):
            assert found.tolist() == [[100 * caller + n, 1 + n] for n in range(5)]
        assert (tested.depth, tested.texts) == (0, 250)


@completes
async def test_budget_is_kept() -> None:
    """Run no batch of more tokens than the budget."""
    model = Model()
    async with scheduler(model.run, budget=12) as tested:
        await embed(tested, [row(n, 3) for n in range(10)])
    assert [len(batch) for batch in model.ran] == [4, 4, 2]


@completes
async def test_rows_have_a_limit() -> None:
    """Run no batch of more rows than the budget says."""
    model = Model()
    budget = Budget(100, fixed=100, rows=3)
    async with Scheduler([model.run], dimension=2, budget=budget, limit=100) as tested:
        await embed(tested, [row(n) for n in range(7)])
    assert [len(batch) for batch in model.ran] == [3, 3, 1]


@completes
async def test_model_thread() -> None:
    """Run a lane on one thread, named `model` and its number."""
    model = Model()
    async with scheduler(model.run) as tested:
        await asyncio.gather(*(embed(tested, [row(n)]) for n in range(9)))
        assert tested.lanes == 1
    assert model.threads == {"model-0"}


@completes
async def test_no_rows() -> None:
    """Give no vectors for no rows, without running the model, though it be busy."""
    model = Model(shut=True)
    async with scheduler(model.run) as tested:
        busy = await queued(embed(tested, [row(1)]))
        assert (await tested.embed(row(1).take([]))).shape == (0, 2)
        model.gate.set()
        await busy
    assert model.ran == [[1]]


@completes
async def test_full_queue_refuses_at_once() -> None:
    """Refuse what does not fit while the model is busy, and take it when there is room."""
    model = Model(shut=True)
    async with scheduler(model.run, limit=4) as tested:
        first = await queued(embed(tested, [row(n) for n in range(3)]))
        with pytest.raises(LimitsExceeded, match="holds 3 of at most 4 texts, so 2 more"):
            await embed(tested, [row(8), row(9)])
        assert tested.depth == 3
        model.gate.set()
        await first
        assert len(await embed(tested, [row(n) for n in range(4)])) == 4


@completes
async def test_a_caller_that_left_is_not_run() -> None:
    """Take a cancelled caller's rows out of the queue, and nobody else's."""
    model = Model(shut=True)
    async with scheduler(model.run) as tested:
        first = await queued(embed(tested, [row(1)]))
        await model.is_running()
        gone = await queued(embed(tested, [row(2), row(3)]))
        last = await queued(embed(tested, [row(4)]))
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        assert tested.depth == 2
        model.gate.set()
        await asyncio.gather(first, last)
    assert model.ran == [[1], [4]]


@completes
async def test_a_caller_that_leaves_during_the_run() -> None:
    """Go on when a caller leaves whose rows are being run."""
    model = Model(shut=True)
    async with scheduler(model.run) as tested:
        gone = await queued(embed(tested, [row(1)]))
        await model.is_running()
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        model.gate.set()
        assert (await embed(tested, [row(2)])).tolist() == [[2, 3]]
        assert tested.depth == 0


def _raise(ids: np.ndarray) -> np.ndarray:
    raise RuntimeError(f"no memory for {len(ids)} rows")


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (_raise, "no memory for 2 rows"),
        (lambda ids: vectors_of(ids)[:1], r"shape \(1, 2\)"),
        (lambda ids: np.zeros((len(ids), 3), np.float32), r"shape \(2, 3\)"),
        (lambda ids: vectors_of(ids) * np.nan, "not finite"),
        (lambda _ids: None, "NoneType"),
    ],
)
@completes
async def test_a_failed_batch(wrong: Callable[[np.ndarray], np.ndarray], reason: str) -> None:
    """Tell Internal to the callers of a batch that failed, and only to them."""

    def run(ids: np.ndarray) -> np.ndarray:
        return wrong(ids) if ids.shape[1] == 5 else vectors_of(ids)

    async with scheduler(run) as tested:
        # the first loses its other rows with the row that failed
        calls = [
            embed(tested, [row(13, 5), *(row(n, 6) for n in range(9))]),
            embed(tested, [row(14, 5)]),
            embed(tested, [row(15, 3)]),
        ]
        bad, worse, good = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(bad, Internal)
        assert isinstance(worse, Internal)
        assert good.tolist() == [[15, 3]]
        with pytest.raises(Internal, match=reason):
            await embed(tested, [row(1, 5), row(2, 5)])
        assert (await embed(tested, [row(16, 4)])).tolist() == [[16, 4]]
        assert tested.depth == 0


@completes
async def test_shutdown_settles_everyone() -> None:
    """Finish the running batch at shutdown and tell the others ShuttingDown."""
    model = Model(shut=True)
    tested = scheduler(model.run)
    await tested.__aenter__()
    running = await queued(embed(tested, [row(1)]))
    await model.is_running()
    halfway = await queued(embed(tested, [row(2)]))
    bulk = await queued(embed(tested, [row(n) for n in range(20)], Rank.BULK))
    leaving = asyncio.ensure_future(tested.__aexit__(None, None, None))
    await asyncio.sleep(0)
    with pytest.raises(ShuttingDown):
        await embed(tested, [row(3)])
    model.gate.set()
    await leaving
    assert (await running).tolist() == [[1, 3]]
    for task in (halfway, bulk):
        with pytest.raises(ShuttingDown, match="stopping"):
            await task
    assert model.ran == [[1]]
    assert tested.depth == 0


def test_shutdown_does_not_wait_for_a_stuck_model() -> None:
    """Settle everyone at shutdown though the model hangs, and survive its late answer."""

    async def main(model: Model) -> None:
        tested = scheduler(model.run, patience=0.05)
        async with tested:
            stuck = await queued(embed(tested, [row(1)]))
            waiting = await queued(embed(tested, [row(2)]))
            await model.is_running()
        for task in (stuck, waiting):
            with pytest.raises(ShuttingDown):
                await task

    model = Model(shut=True)
    asyncio.run(main(model))
    # the loop is closed now; an exception in the thread would fail this test
    model.gate.set()
    for thread in model_threads():
        thread.join(SOON)
        assert not thread.is_alive()


def test_join_waits_for_long_batches() -> None:
    """Wait on demand for the threads whose batches outlive the patience."""

    async def main() -> None:
        model = Model(shut=True)
        async with scheduler(model.run, patience=0.05) as tested:
            call = asyncio.create_task(embed(tested, [row(1)]))
            await model.is_running()
        with pytest.raises(ShuttingDown):
            await call
        joining = asyncio.create_task(asyncio.to_thread(tested.join))
        done, _ = await asyncio.wait([joining], timeout=0.1)
        assert not done
        model.gate.set()
        await joining

    asyncio.run(main())


@completes
async def test_shutdown_is_quick_when_idle() -> None:
    """Stop an idle scheduler without waiting for its patience to end."""
    async with scheduler(Model().run, patience=10 * SOON):
        pass


@completes
async def test_shutdown_needs_no_thread() -> None:
    """Stop at once though every thread of asyncio's pool is busy."""
    gate = threading.Event()
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    busy = asyncio.ensure_future(asyncio.to_thread(gate.wait, SOON))
    async with scheduler(Model().run, patience=SOON) as tested:
        await embed(tested, [row(1)])
    assert not busy.done()
    gate.set()
    await busy


@completes
async def test_not_open() -> None:
    """Refuse texts before opening and after closing."""
    tested = scheduler(Model().run)
    with pytest.raises(ShuttingDown):
        await embed(tested, [row(1)])
    async with tested:
        await embed(tested, [row(1)])
    with pytest.raises(ShuttingDown):
        await embed(tested, [row(1)])


@completes
async def test_interactive_overtakes_bulk() -> None:
    """Run a person's row before bulk rows that were queued earlier."""
    model = Model(shut=True)
    async with scheduler(model.run, budget=1) as tested:
        first = await queued(embed(tested, [row(0, 2)]))
        await model.is_running()
        bulk = await queued(embed(tested, [row(n, 3) for n in (1, 2)], Rank.BULK))
        person = await queued(embed(tested, [row(7, 4)]))
        model.gate.set()
        await asyncio.gather(first, bulk, person)
    assert model.ran == [[0], [7], [1], [2]]


@completes
async def test_a_caller_with_few_calls_overtakes_one_with_many() -> None:
    """Run a row of priority FEW before one of priority BUSY_CALLER that was queued earlier."""
    model = Model(shut=True)
    async with scheduler(model.run, budget=1) as tested:
        first = await queued(embed(tested, [row(0, 2)]))
        await model.is_running()
        crowd = await queued(embed(tested, [row(1, 3)], priority=Rank.BUSY_CALLER))
        few = await queued(embed(tested, [row(7, 4)]))
        model.gate.set()
        await asyncio.gather(first, crowd, few)
    assert model.ran == [[0], [7], [1]]


@completes
async def test_lanes_run_at_once() -> None:
    """Run as many batches at once as there are lanes, each on its own thread."""
    together = threading.Barrier(3, timeout=SOON)
    threads = set()

    def run(ids: np.ndarray) -> np.ndarray:
        together.wait()
        threads.add(threading.current_thread().name)
        return vectors_of(ids)

    async with scheduler(run, run, run, budget=1) as tested:
        found = await embed(tested, [row(n) for n in range(9)])
        assert found[:, 0].tolist() == list(range(9))
        assert tested.lanes == 3
    assert threads == {"model-0", "model-1", "model-2"}


class Small:
    """A device with room for so many tokens at once, over all of its lanes."""

    def __init__(self, room: int, complaint: str = "CUDA failure 2: out of memory") -> None:
        self.room = room
        self.complaint = complaint
        self.used = 0
        self.ran: list[list[int]] = []
        self.refused = 0
        self._lock = threading.Lock()
        # what a row of one token waits for
        self.entered, self.gate = threading.Event(), threading.Event()

    def run(self, ids: np.ndarray) -> np.ndarray:
        """Embed, if there is room."""
        with self._lock:
            if self.used + ids.size > self.room:
                self.refused += 1
                raise RuntimeError(self.complaint)
            self.used += ids.size
            self.ran.append(ids[:, 0].tolist())
        if ids.shape[1] == 1:
            self.entered.set()
            assert self.gate.wait(SOON)
        with self._lock:
            self.used -= ids.size
        return vectors_of(ids)


@pytest.mark.parametrize(
    "complaint",
    [
        "CUDA out of memory. Tried to allocate 2.00 GiB",
        "CUDA failure 2: out of memory ; GPU=0 ; hostname=x ; expr=cudaMalloc(&p, size);",
        "bfc_arena.cc:376 Failed to allocate memory for requested buffer of size 1024",
        "CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED",
        "std::bad_alloc",
        "Unable to allocate 1.2 GiB for an array",
        "the model's run failed: MemoryError",
    ],
)
@completes
async def test_out_of_memory_halves(complaint: str) -> None:
    """Run in halves what did not fit at once, for every way of saying so, and fail nobody."""
    device = Small(room=13, complaint=complaint)
    async with scheduler(device.run, budget=60) as tested:
        found = await embed(tested, [row(n, 3) for n in range(20)])
        assert found[:, 0].tolist() == list(range(20))
        assert tested.budget < 16
    assert device.refused == 3  # of 20 rows, of 10, of 5
    assert max(map(len, device.ran)) <= 4


@completes
async def test_memory_is_shared_by_the_lanes() -> None:
    """Fail no row that fits alone, however many lanes there are and whatever the others run."""
    device = Small(room=9)
    rows = [row(n, 2 + n * 7 % 8) for n in range(80)]
    async with scheduler(*[device.run] * 4, budget=40) as tested:
        calls = [embed(tested, rows[n : n + 8], RANKS[n % 16 == 0]) for n in range(0, 80, 8)]
        found = np.concatenate(await asyncio.gather(*calls))
    assert found.tolist() == [[n, 2 + n * 7 % 8] for n in range(80)]
    assert device.refused


@completes
async def test_a_row_that_only_fits_alone() -> None:
    """Let the other lanes finish and hold them back for a row that needs the whole device."""
    device = Small(room=9)
    async with scheduler(*[device.run] * 3) as tested:
        first = await queued(embed(tested, [row(1, 1)]))
        assert await asyncio.to_thread(device.entered.wait, SOON)
        large = await queued(embed(tested, [row(2, 9)]))
        # it has failed beside the first, and waits for the device
        assert await asyncio.to_thread(settled, tested, lambda: tested._exclusive == 1)
        later = [await queued(embed(tested, [row(n, 4)])) for n in (3, 4)]
        device.gate.set()
        found = await asyncio.gather(first, large, *later)
        assert [int(vectors[0, 0]) for vectors in found] == [1, 2, 3, 4]
    assert device.refused == 1
    assert device.ran[:2] == [[1], [2]]


def settled(tested: Scheduler, condition: Callable[[], bool]) -> bool:
    """Wait until the scheduler's threads have come to a state; it tells when they change it."""
    with tested._wake:
        return tested._wake.wait_for(condition, SOON)


@completes
async def test_a_row_that_never_fits() -> None:
    """Tell only its caller that a row has no room even alone, and go on."""
    device = Small(room=9)
    async with scheduler(device.run, device.run) as tested:
        bad, good = await asyncio.gather(
            embed(tested, [row(1, 10), row(2, 4)]),
            embed(tested, [row(3, 4)]),
            return_exceptions=True,
        )
        assert isinstance(bad, Internal)
        assert "batch of 1: CUDA failure 2: out of memory" in str(bad)
        assert good.tolist() == [[3, 4]]
        assert (await embed(tested, [row(4, 9)])).tolist() == [[4, 9]]
        assert tested.depth == 0


class Mortal:
    """A model that dies at the row 13: from then on nothing runs."""

    def __init__(self, complaint: str = "CUDA failure 700: an illegal memory access") -> None:
        self.complaint = complaint
        self.is_dead = False
        self.runs = 0

    def run(self, ids: np.ndarray) -> np.ndarray:
        """Embed, while it lives."""
        self.runs += 1
        if 13 in ids[:, 0]:
            self.is_dead = True
        if self.is_dead:
            raise RuntimeError(self.complaint)
        return vectors_of(ids)


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("complaint", ["illegal memory access", "CUDA out of memory"])
@completes
async def test_a_provider_that_dies(lanes: int, complaint: str) -> None:
    """Settle every future with ProviderLost when not even two tokens run, and say why."""
    model = Mortal(complaint)
    async with scheduler(*[model.run] * lanes, budget=3, limit=1000) as tested:
        assert tested.fault == ""
        calls = [embed(tested, [row(n) for n in range(20)], rank) for rank in RANKS]
        more = [embed(tested, [row(n)]) for n in range(20, 40)]
        found = await asyncio.gather(*calls, *more, return_exceptions=True)
        lost = [error for error in found if isinstance(error, Exception)]
        assert {type(error) for error in lost} == {ProviderLost}
        assert isinstance(found[0], ProviderLost)
        assert isinstance(found[1], ProviderLost)
        assert f"the provider stopped working: {complaint}" in str(lost[0])
        # other lanes may still be finding it out
        await asyncio.to_thread(tested.join)
        runs = model.runs
        with pytest.raises(ProviderLost, match=complaint):
            await embed(tested, [row(1)])
        assert model.runs == runs
        assert tested.depth == 0
        await tested.lost()
        assert complaint in tested.fault


@completes
async def test_lanes_that_die_together() -> None:
    """Lose the model once though every lane finds it at the same moment."""
    together = threading.Barrier(3, timeout=SOON)

    def run(ids: np.ndarray) -> np.ndarray:
        if ids[0, 0] >= 10:
            together.wait()
        raise RuntimeError("gone")

    async with scheduler(run, run, run, budget=1) as tested:
        with pytest.raises(ProviderLost, match="gone"):
            await embed(tested, [row(n) for n in (10, 11, 12)])
        await tested.lost()
        assert tested.fault == "the provider stopped working: gone"


@completes
async def test_a_batch_that_fails_beside_others() -> None:
    """Fail only the callers of a bad batch while the other lanes go on."""

    def run(ids: np.ndarray) -> np.ndarray:
        return vectors_of(ids)[:, :1] if ids.shape[1] == 5 else vectors_of(ids)

    async with scheduler(*[run] * 3, limit=1000) as tested:
        calls = [embed(tested, [row(n, 1 + n % 7)]) for n in range(70)]
        found = await asyncio.gather(*calls, return_exceptions=True)
        for number, answer in enumerate(found):
            if 1 + number % 7 == 5:
                assert isinstance(answer, Internal)
            else:
                assert answer.tolist() == [[number, 1 + number % 7]]


@completes
async def test_shutdown_of_many_lanes() -> None:
    """Finish what each lane runs, and settle the rest, when several are busy."""
    models = [Model(shut=True) for _ in range(3)]
    tested = scheduler(*(model.run for model in models), budget=1)
    await tested.__aenter__()
    calls = [await queued(embed(tested, [row(n)], RANKS[n > 6])) for n in range(9)]
    for model in models:
        await model.is_running()
    leaving = asyncio.ensure_future(tested.__aexit__(None, None, None))
    for model in models:
        model.gate.set()
    await leaving
    found = await asyncio.gather(*calls, return_exceptions=True)
    ran = [n for model in models for (n,) in model.ran]
    for number, answer in enumerate(found):
        if number in ran:
            assert answer.tolist() == [[number, 3]]
        else:
            assert isinstance(answer, ShuttingDown)
    assert len(ran) >= 3


def test_shutdown_while_a_row_waits_for_the_device() -> None:
    """Stop though one lane waits for another that is stuck."""

    async def main(device: Small) -> None:
        async with scheduler(device.run, device.run, patience=0.05) as tested:
            calls = [await queued(embed(tested, [row(1, 1)]))]
            assert await asyncio.to_thread(device.entered.wait, SOON)
            calls.append(await queued(embed(tested, [row(2, 9)])))
            assert await asyncio.to_thread(settled, tested, lambda: tested._exclusive == 1)
        for call in calls:
            with pytest.raises(ShuttingDown):
                await call

    device = Small(room=9)
    asyncio.run(main(device))
    device.gate.set()
    for thread in model_threads():
        thread.join(SOON)
    assert model_threads() == []


@completes
async def test_a_caller_that_leaves_before_a_retry() -> None:
    """Run nothing again for a caller that left while the batch was failing."""
    model = Model(shut=True)

    def run(ids: np.ndarray) -> np.ndarray:
        model.run(ids)
        if len(ids) > 1:
            raise RuntimeError("out of memory")
        return vectors_of(ids)

    async with scheduler(run, budget=100) as tested:
        gone = await queued(embed(tested, [row(1), row(2)]))
        await model.is_running()
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        model.gate.set()
        assert (await embed(tested, [row(7)])).tolist() == [[7, 3]]
    assert model.ran == [[1, 2], [7]]


@completes
async def test_limits_beside_work_that_goes_on() -> None:
    """Refuse at once what is past the limit, while all that was taken finishes."""
    models = [Model(shut=True) for _ in range(2)]
    async with scheduler(*(model.run for model in models), limit=10, budget=1) as tested:
        taken = [await queued(embed(tested, [row(n)])) for n in range(10)]
        refused = [embed(tested, [row(n)]) for n in range(20)]
        answers = await asyncio.gather(*refused, return_exceptions=True)
        assert {type(answer) for answer in answers} == {LimitsExceeded}
        # bulk work has its own bounds
        bulk = await queued(embed(tested, [row(99)] * 30, Rank.BULK))
        for model in models:
            model.gate.set()
        for number, vectors in enumerate(await asyncio.gather(*taken)):
            assert vectors.tolist() == [[number, 3]]
        assert len(await bulk) == 30


@completes
async def test_bulk_is_not_starved() -> None:
    """Run bulk rows while people never stop asking."""
    async with scheduler(Model().run, budget=1) as tested:
        bulk = asyncio.ensure_future(embed(tested, [row(n, 2) for n in range(5)], Rank.BULK))
        asked = 0
        while not bulk.done():
            # two at a time: one always waits while the other runs
            await asyncio.gather(*(embed(tested, [row(n, 3)]) for n in range(2)))
            asked += 1
            assert asked < 1000
        assert (await bulk)[:, 0].tolist() == list(range(5))


# a text that comes alone


LONG = 16


@completes
async def test_a_text_that_comes_alone() -> None:
    """Run it on the solo lane, again and again, on the thread of whoever was free."""
    lane, solo = Model(), Model()
    async with scheduler(lane.run, lane.run, solo=solo.run) as tested:
        for number in range(300):
            assert (await embed(tested, [row(number, LONG)])).tolist() == [[number, LONG]]
        assert tested.lanes == 2
    assert (lane.ran, solo.ran) == ([], [[number] for number in range(300)])
    assert solo.threads <= {"model-0", "model-1"}


@completes
async def test_a_short_text_that_comes_alone() -> None:
    """Run it on one thread: a second one would gain nothing, and is wanted for the words."""
    lane, solo = Model(), Model()
    async with scheduler(lane.run, solo=solo.run) as tested:
        for length in (3, 12, 13):
            await embed(tested, [row(length, length)])
    assert (lane.ran, solo.ran) == ([[3], [12]], [[13]])


@completes
async def test_texts_that_come_together() -> None:
    """Leave the solo lane alone while several texts run together or wait."""
    lane, solo = Model(), Model()
    async with scheduler(lane.run, solo=solo.run) as tested:
        await embed(tested, [row(1), row(2)])
        assert (lane.ran, solo.ran) == ([[1, 2]], [])
        # of another length each: all wait but the last, which nothing runs beside
        await embed(tested, [row(n, LONG + n) for n in (3, 4, 5)])
    assert (lane.ran[1:], solo.ran) == ([[5], [4]], [[3]])


@completes
async def test_a_text_beside_another() -> None:
    """Run a text on a lane of its own while another one runs, though that be the solo lane's."""
    lane, solo = Model(), Model(shut=True)
    async with scheduler(lane.run, lane.run, solo=solo.run) as tested:
        first = await queued(embed(tested, [row(1, LONG)]))
        await solo.is_running()
        assert (await embed(tested, [row(2)])).tolist() == [[2, 3]]
        solo.gate.set()
        await first
    assert (lane.ran, solo.ran) == ([[2]], [[1]])


@completes
async def test_a_solo_lane_that_dies() -> None:
    """Give up the model where the solo lane is dead, though the other lanes live."""
    lane, solo = Model(), Mortal()
    async with scheduler(lane.run, solo=solo.run) as tested:
        with pytest.raises(ProviderLost, match="illegal memory access"):
            await embed(tested, [row(13, LONG)])
        await tested.lost()
    assert lane.ran == []


# how much runs together


async def first_bulk_batch(*before: list[Tokens]) -> int:
    """Count the rows of bulk work's first batch, after others have asked."""
    model = Model()
    budget = Budget(1 << 16)
    async with Scheduler([model.run], dimension=2, budget=budget, limit=10_000) as tested:
        for rows in before:
            await embed(tested, rows)
        count = len(model.ran)
        await embed(tested, [row(n, 8) for n in range(512)], Rank.BULK)
    return len(model.ran[count])


@completes
async def test_nobody_is_in_a_hurry() -> None:
    """Run four budgets together where only bulk work and long requests came of late."""
    assert await first_bulk_batch() == 4 * 256 // 8
    assert await first_bulk_batch([row(n, 2) for n in range(17)]) == 4 * 256 // 8


@completes
async def test_somebody_is_in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep to one budget for a while after somebody asked for few texts."""
    monkeypatch.setattr("opdbus.engine.scheduler._ATTENTION_SECONDS", 600.0)
    assert await first_bulk_batch([row(1)]) == 256 // 8
    assert await first_bulk_batch([row(n, 2) for n in range(16)]) == 256 // 8


@completes
async def test_whole_batches() -> None:
    """Run batches of a whole budget or of one row, for a provider that pays for every shape."""
    model = Model()
    budget = Budget(100, fixed=12, whole=True)
    async with Scheduler([model.run], dimension=2, budget=budget, limit=100) as tested:
        await embed(tested, [row(n) for n in range(10)])
    assert [len(batch) for batch in model.ran] == [4, 4, 1, 1]
