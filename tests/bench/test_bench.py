"""The texts that are measured with, and the description of the machine."""

from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import pytest

from opdbus import config
from opdbus.bench import measures, texts
from opdbus.engine.tokenizer import Tokenizer
from opdbus.models.folder import find_model
from opdbus.models.level_table import LEVELS

Make = Callable[..., list[str]]


@pytest.mark.parametrize("make", [texts.objects, texts.shorts])
@pytest.mark.parametrize("count", [1, 100, 256, 1000])
def test_texts_are_different_and_always_the_same(make: Make, count: int) -> None:
    """Make as many texts as asked for, no two alike, the same in every run."""
    made = make(count)
    assert len(set(made)) == count
    assert make(count) == made
    assert make(count, seed=1) != made


@pytest.mark.model
@pytest.mark.parametrize(("make", "mean"), [(texts.objects, 56), (texts.shorts, 19)])
@pytest.mark.parametrize("count", [256, 512, 2000])
def test_texts_have_their_length(make: Make, mean: int, count: int) -> None:
    """Give texts the mean length in tokens that they are named for, and the spread of real ones."""
    folder = find_model(LEVELS["medium"], config.load({"HOME": "/"}))
    lengths = Tokenizer(folder / "tokenizer.json", 512).count(make(count))
    assert fmean(lengths) == pytest.approx(mean, abs=1)
    ordered = sorted(lengths)
    assert ordered[count // 10] < 0.8 * mean
    assert ordered[-count // 10] > 1.2 * mean
    # no contender cuts any, whatever limit its tokenizer bakes in
    assert ordered[-1] <= 128


def test_machine_is_described_from_proc(tmp_path: Path) -> None:
    """Name the processor and those features that matter, also where nothing is known."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("model name\t: Fast\nflags\t\t: fpu amx_bf16 avx2\n")
    found = measures.describe(tmp_path)
    assert (found.processor, found.features) == ("Fast", ("avx2", "amx_bf16"))
    assert measures.describe(tmp_path / "none").features == ()
