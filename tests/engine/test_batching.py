"""Which rows run together."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from opdbus.engine.batching import (
    Backlog,
    BatchMetrics,
    Part,
    Rank,
    Request,
    count_rows,
)
from opdbus.engine.tokenizer import Tokens

LENGTHS = st.lists(st.integers(1, 12), max_size=8)
BUDGETS = st.integers(1, 40)
# add a request (its lengths and rank), take a batch, or let a caller leave
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), LENGTHS, st.sampled_from(Rank)),
        st.tuples(st.just("take"), BUDGETS),
        st.tuples(st.just("drop"), st.integers(0, 100)),
    ),
    max_size=40,
)


def request(lengths: list[int], rank: Rank = Rank.FEW) -> Request:
    """Make a request of rows of these lengths."""
    sizes = np.array(lengths, np.intp)
    ids, cut = np.zeros(sizes.sum(), np.int64), np.zeros(len(sizes), np.bool_)
    return Request(Tokens(ids, sizes.cumsum() - sizes, sizes, cut), rank)


def members(batch: list[Part]) -> list[tuple[Request, int]]:
    """List a batch's rows one by one."""
    return [(part.request, row) for part in batch for row in part.rows.tolist()]


class Waiting:
    """The plain model of a backlog: (age, request, row) of all that wait."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, Request, int]] = []
        self.requests: list[Request] = []
        self.age = 0

    def add(self, new: Request) -> None:
        """Note a request's rows, the longest first."""
        self.requests.append(new)
        for row in np.argsort(-new.rows.lengths, kind="stable").tolist():
            self.rows.append((self.age, new, row))
            self.age += 1

    def drop(self, gone: Request) -> None:
        """Forget a request's rows."""
        self.rows = [row for row in self.rows if row[1] is not gone]

    def take(self, batch: list, budget: int) -> None:
        """Check a batch against what waits, and forget its rows."""
        rows = members(batch)
        keys = [(id(asked), row) for asked, row in rows]
        waiting = {(id(asked), row): age for age, asked, row in self.rows}
        assert len(set(keys)) == len(keys)
        assert all(key in waiting for key in keys)
        sizes = {int(asked.rows.lengths[row]) for asked, row in rows}
        assert len(sizes) == 1
        assert len(rows) == 1 or sum(sizes) * len(rows) <= budget
        lead = batch[0].request.rank
        of_rank = [age for age, asked, _ in self.rows if asked.rank == lead]
        assert waiting[keys[0]] == min(of_rank)
        for rank in Rank:
            ages = [waiting[k] for k, (m, _) in zip(keys, rows, strict=True) if m.rank == rank]
            assert ages == sorted(ages)
        self.rows = [row for row in self.rows if (id(row[1]), row[2]) not in set(keys)]


@settings(deadline=None)
@given(STEPS)
def test_backlog_does_as_its_model(steps: list) -> None:
    """Give each row once, in batches of one length within the budget, led by the oldest."""
    backlog, waiting = Backlog(), Waiting()
    for step in [*steps, *[("take", 7)] * 400]:
        if step[0] == "add":
            new = request(step[1], step[2])
            backlog.add(new)
            waiting.add(new)
        elif step[0] == "drop" and waiting.requests:
            gone = waiting.requests[step[1] % len(waiting.requests)]
            backlog.drop(gone)
            waiting.drop(gone)
        elif step[0] == "take":
            batch = backlog.next_batch(step[1])
            assert bool(batch) == bool(waiting.rows)
            if batch:
                waiting.take(batch, step[1])
        assert len(backlog) == len(waiting.rows)
    assert not waiting.rows


@settings(deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=30), st.integers(0, 40))
def test_bulk_is_not_starved(bulk: list[int], steady: int) -> None:
    """Let bulk rows lead every ninth batch at the latest, and never before the eighth."""
    backlog = Backlog()
    backlog.add(request(bulk, Rank.BULK))
    leads = []
    for number in range(steady + 9):
        # people always wait, with lengths that no bulk row shares
        backlog.add(request([6 + number % 3, 9]))
        leads.append(backlog.next_batch(1)[0].request.rank)
    turns = [index for index, lead in enumerate(leads) if lead is Rank.BULK]
    assert turns == list(range(8, len(leads), 9))[: len(bulk)]


def test_ranks_go_in_order() -> None:
    """Run rows in the order of their ranks, however long each has waited."""
    backlog = Backlog()
    for length, rank in enumerate(reversed(Rank), 1):
        backlog.add(request([length], rank))
    assert [backlog.next_batch(100)[0].request.rank for _ in Rank] == list(Rank)


def test_no_rank_is_starved() -> None:
    """Let the oldest row of another rank lead once in a while, whichever rank that is."""
    backlog = Backlog()
    for length, rank in ((1, Rank.BULK), (2, Rank.BUSY_CALLER), (3, Rank.MANY)):
        backlog.add(request([length], rank))
    leads = []
    for _ in range(30):
        backlog.add(request([6]))
        leads.append(backlog.next_batch(1)[0].request.rank)
    others = [(index, rank) for index, rank in enumerate(leads) if rank is not Rank.FEW]
    assert others == [(8, Rank.BULK), (17, Rank.BUSY_CALLER), (26, Rank.MANY)]


def test_equal_lengths_ride_along() -> None:
    """Fill a batch with rows of the other class while the budget lasts, after its own."""
    backlog = Backlog()
    backlog.add(request([4, 4, 4], Rank.BULK))
    backlog.add(request([4, 4]))
    first, second = backlog.next_batch(16), backlog.next_batch(16)
    assert [asked.rank for asked, _ in members(first)] == [Rank.FEW] * 2 + [Rank.BULK] * 2
    assert [row for _, row in members(second)] == [2]


def test_a_row_above_the_budget_runs_alone() -> None:
    """Run a row that is longer than the budget, by itself."""
    backlog = Backlog()
    backlog.add(request([50, 50]))
    assert [count_rows(backlog.next_batch(10)) for _ in range(3)] == [1, 1, 0]


def test_rows_have_a_limit_too() -> None:
    """Run no more rows than the provider is built for, however short they are."""
    backlog = Backlog()
    backlog.add(request([1] * 5, Rank.BULK))
    backlog.add(request([1] * 3))
    assert [count_rows(backlog.next_batch(100, most_rows=4)) for _ in range(3)] == [4, 4, 0]


@settings(deadline=None)
@given(
    st.lists(st.tuples(LENGTHS, st.sampled_from(Rank)), max_size=6),
    st.lists(BUDGETS, min_size=1, max_size=3, unique=True),
)
def test_whole_batches_have_few_shapes(
    asked: list[tuple[list[int], bool]], sizes: list[int]
) -> None:
    """Give batches of exactly the rows that a budget has room for, or of one, and every row."""
    backlog, left = Backlog(), 0
    whole = sorted(sizes, reverse=True)
    for lengths, rank in asked:
        backlog.add(request(lengths, rank))
        left += len(lengths)
    while batch := backlog.next_batch(1, whole=whole):
        (length,) = {part.length for part in batch}
        assert count_rows(batch) in {1, *(max(1, size // length) for size in whole)}
        left -= count_rows(batch)
        assert len(backlog) == left
    assert (left, backlog.tokens) == (0, 0)


def test_the_largest_whole_batch_comes_first() -> None:
    """Take the largest of the budgets that enough rows wait for, of both classes together."""
    backlog = Backlog()
    backlog.add(request([2] * 5, Rank.BULK))
    backlog.add(request([2] * 6))
    assert [count_rows(backlog.next_batch(1, whole=(16, 4))) for _ in range(4)] == [8, 2, 1, 0]
    backlog.add(request([2] * 9))
    assert count_rows(backlog.next_batch(1, most_rows=3, whole=(16, 4))) == 3


def test_waiting_tokens_are_counted() -> None:
    """Count the tokens of what waits as rows come, run, come back and leave."""
    backlog = Backlog()
    first, second = request([3, 3, 5]), request([3])
    backlog.add(first)
    backlog.add(second)
    assert backlog.tokens == 14
    batch = backlog.next_batch(6)
    assert backlog.tokens == 9
    backlog.put_back(batch)
    assert backlog.tokens == 14
    backlog.drop(first)
    assert backlog.tokens == 3


def test_drop_leaves_others() -> None:
    """Take out the rows of one request, and of no other of the same lengths."""
    backlog = Backlog()
    kept, gone = request([3, 5]), request([3, 5, 7])
    backlog.add(gone)
    backlog.add(kept)
    backlog.drop(gone)
    backlog.drop(gone)
    batches = members(backlog.next_batch(100)) + members(backlog.next_batch(100))
    assert batches == [(kept, 1), (kept, 0)]
    assert len(backlog) == 0


def test_metrics_count_texts_and_what_was_computed_beside_them() -> None:
    """Count each text with its own time in the queue, and tokens beyond those of the texts."""
    few, many = request([3, 3]), request([3, 3, 3], Rank.MANY)
    backlog, metrics = Backlog(), BatchMetrics()
    for one in (few, many):
        backlog.add(one)
    batch = backlog.next_batch(12)
    assert [len(part.rows) for part in batch] == [2, 2]
    began = many.queued_at + 1.0
    metrics.add(batch, 16, began, 0.25)
    assert (metrics.tokens, metrics.padding) == (12, 4)
    assert (metrics.texts_a_batch.sum, metrics.tokens_a_batch.sum) == (4, 16)
    assert sum(metrics.queue_seconds.counts) == 4
    assert metrics.queue_seconds.sum == 2 * (began - few.queued_at) + 2.0
    assert (sum(metrics.run_seconds.counts), metrics.run_seconds.sum) == (1, 0.25)
