"""How many tokens run together, learnt from what ran and from what did not fit."""

from itertools import pairwise

import pytest

from opdbus.engine.batching import LEAST, LEAST_RELAXED, TARGET_SECONDS, Budget

MOST = 1 << 14


def measured(rate: float, batches: int = 60, most: int = MOST) -> Budget:
    """Give the budget after many full batches at a rate in tokens a second."""
    budget = Budget(most)
    for _ in range(batches):
        budget.ran(budget.tokens, budget.tokens / rate)
    return budget


@pytest.mark.parametrize("rate", [20_000.0, 100_000.0, 1_000_000.0])
def test_the_target_time(rate: float) -> None:
    """Settle at a step that takes about the target time, and no more."""
    assert 0.6 * rate * TARGET_SECONDS < measured(rate).tokens <= rate * TARGET_SECONDS


def test_a_slow_machine() -> None:
    """Go no lower than the least that a slow processor is good at; and that is more at leisure."""
    budget = measured(100.0)
    assert (budget.tokens, budget.relaxed) == (LEAST, LEAST_RELAXED)
    assert Budget(LEAST_RELAXED // 2).relaxed == LEAST_RELAXED // 2


def test_a_fast_machine() -> None:
    """Go no higher than the most that the provider takes."""
    assert measured(1e9).tokens == MOST


def test_a_small_most() -> None:
    """Begin within what the provider takes, however little that is."""
    assert Budget(100).tokens == 100


def test_a_fixed_budget() -> None:
    """Keep to a setting, whatever is measured and whatever the provider takes."""
    budget = Budget(MOST, fixed=48)
    for seconds in (1e-6, 10.0):
        budget.ran(48, seconds)
    assert budget.tokens == 48
    assert Budget(10, fixed=48).tokens == 48


def test_one_slow_batch_changes_little() -> None:
    """Let a batch that something else held up move the budget by one step at most."""
    budget = measured(100_000.0)
    before = budget.tokens
    budget.ran(before, 10.0)
    assert 0.6 * before < budget.tokens <= before


def test_no_step_while_in_doubt() -> None:
    """Give batches of the same shapes while measurements waver."""
    budget = measured(100_000.0)
    seen = []
    for rate in (1.03, 0.99, 1.05, 1.0, 1.06, 0.98) * 20:
        budget.ran(budget.tokens, budget.tokens / (100_000.0 * rate))
        seen.append(budget.tokens)
    assert sum(one != other for one, other in pairwise(seen)) <= 1


def test_a_machine_that_changes() -> None:
    """Follow a rate that stays changed."""
    budget = measured(1_000_000.0)
    for _ in range(60):
        budget.ran(budget.tokens, budget.tokens / 100_000.0)
    assert budget.tokens == 1024


def test_small_batches_say_little() -> None:
    """Learn nothing from batches that are mostly fixed costs, and nothing from no time at all."""
    budget = measured(100_000.0)
    before = budget.tokens
    budget.ran(before // 3, 1.0)
    budget.ran(before, 0.0)
    assert budget.tokens == before


def test_out_of_memory_halves() -> None:
    """Halve what did not fit, again and again, down to one token."""
    budget = Budget(MOST, fixed=1000)
    seen = []
    for _ in range(12):
        budget.out_of_memory(budget.tokens)
        seen.append(budget.tokens)
    assert seen[:4] == [500, 250, 125, 62]
    assert seen[-1] == 1


def test_what_did_not_fit_may_be_less_than_the_budget() -> None:
    """Halve the batch that failed, where that was smaller than the budget."""
    budget = Budget(MOST, fixed=1000)
    budget.out_of_memory(200)
    assert budget.tokens == 100


def test_two_lanes_that_fail_at_once() -> None:
    """Not rise again when a larger batch, begun before, fails after a smaller one."""
    budget = Budget(MOST, fixed=1000)
    budget.out_of_memory(100)
    budget.out_of_memory(1000)
    assert budget.tokens <= 50


def test_memory_comes_back_slowly() -> None:
    """Recover by a few percent with each full batch, and wholly in the end."""
    budget = Budget(MOST, fixed=1000)
    budget.out_of_memory(1000)
    before = budget.tokens
    budget.ran(before, 0.01)
    assert before < budget.tokens < 1.05 * before
    for _ in range(100):
        budget.ran(budget.tokens, 0.01)
    assert budget.tokens == 1000


def test_small_batches_bring_no_memory_back() -> None:
    """Take no batch that had room to spare as a sign that there is more."""
    budget = Budget(MOST, fixed=1000)
    budget.out_of_memory(1000)
    for _ in range(100):
        budget.ran(200, 0.01)
    assert budget.tokens == 500


def test_measurement_goes_on_below_a_shortage() -> None:
    """Keep to the memory that there is though the measured rate asks for more."""
    budget = measured(1_000_000.0)
    assert budget.tokens > 5000
    budget.out_of_memory(600)
    for _ in range(3):
        budget.ran(budget.tokens, budget.tokens / 1_000_000.0)
    assert 300 < budget.tokens < 330


def test_nobody_in_a_hurry() -> None:
    """Have four times the tokens at ease, within what the provider takes and memory holds."""
    assert Budget(MOST).relaxed == 4 * Budget(MOST).tokens
    assert Budget(300).relaxed == 300
    assert Budget(MOST, fixed=48).relaxed == 48
    budget = Budget(MOST)
    budget.out_of_memory(400)
    assert budget.relaxed == budget.tokens == 200
