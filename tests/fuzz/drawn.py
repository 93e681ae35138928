"""Values of a strategy one after the other, the same ones for the same seed."""

from collections.abc import Callable
from typing import TypeVar

import hypothesis
from hypothesis import HealthCheck, Phase, given
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

T = TypeVar("T")


def choice(*strategies: SearchStrategy[T]) -> SearchStrategy[T]:
    """Give one of the strategies, each as likely: `one_of` counts those inside them as well."""
    return st.sampled_from(strategies).flatmap(lambda strategy: strategy)


def each(strategy: SearchStrategy[T], count: int, seed: int, use: Callable[[T], object]) -> None:
    """Use so many values of a strategy."""

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        phases=[Phase.generate],
        derandomize=False,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def one(value: T) -> None:
        use(value)

    one()
