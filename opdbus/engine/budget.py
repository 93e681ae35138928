"""Tokens a batch: as many as take a few milliseconds and fit into the memory."""

from typing import Final

# A batch of this duration is short enough for the next text to wait for, and loses little:
# MiniLM-L6 on a fast core is within 3% of its best from 128 tokens on, and one that is so slow that
# these take 40 ms computes as many tokens a second in batches of 32.
TARGET_SECONDS: Final = 0.012
LEAST: Final = 32
_START: Final = 256
# A larger step is taken when the measurement exceeds it by this factor.
_DOUBT: Final = 1.2
# A batch of four times the target's tokens saves another 10% (MiniLM-L6, int8 on Zen 4), and so
# does one of 512 (fp32 on a slow core).
_RELAXED: Final = 4
LEAST_RELAXED: Final = 512
# The share of a new measurement in the running rate.
_SHARE: Final = 0.2
# Growth, with each full batch, of a limit that a shortage of memory has set.
_RECOVERY: Final = 1.02


class Budget:
    """Most tokens a batch, found by measurement while serving; not thread-safe.

    `fixed` is a setting that replaces the measurement; only a lack of memory goes below it.
    `rows` is the most rows a batch, for a provider that is built for so many. `whole` is for one
    that pays for every new shape: its batches are full or of one row.
    """

    def __init__(
        self, most: int, *, fixed: int | None = None, rows: int = 1 << 16, whole: bool = False
    ) -> None:
        self.rows = rows
        self.whole = whole
        self._most = fixed or most
        self._is_fixed = fixed is not None
        self._wanted = self._most if fixed else min(_START, most)
        self._room = float(self._most)
        self._rate = 0.0

    @property
    def tokens(self) -> int:
        """Most tokens of the next batch; at least one row runs whatever its length."""
        return max(1, min(self._wanted, int(self._room)))

    @property
    def relaxed(self) -> int:
        """Most tokens of the next batch while only bulk work waits."""
        most = max(LEAST_RELAXED, self._wanted * _RELAXED)
        wanted = self._wanted if self._is_fixed else min(self._most, most)
        return max(1, min(wanted, int(self._room)))

    def ran(self, tokens: int, seconds: float) -> None:
        """Adjust to the duration of a batch that succeeded."""
        if self._room < self._most and tokens > 0.5 * self._room:
            self._room = min(self._most, self._room * _RECOVERY + 1)
        # small batches consist mostly of fixed costs
        if self._is_fixed or 2 * tokens < self.tokens or seconds <= 0:
            return
        rate = tokens / seconds
        self._rate += (rate - self._rate) * (_SHARE if self._rate else 1.0)
        self._wanted = max(LEAST, min(self._most, self._step(int(self._rate * TARGET_SECONDS))))

    def _step(self, tokens: int) -> int:
        """Round down to a power of 2, or 1.5 times one, and grow only past a margin.

        A budget that followed each measurement would give batches of many shapes.
        """
        power = 1 << max(0, tokens.bit_length() - 1)
        half_more = power * 3 // 2
        step, below = (half_more, power) if tokens >= half_more else (power, power * 3 // 4)
        return below if self._wanted < step and tokens < step * _DOUBT else step

    def out_of_memory(self, tokens: int) -> None:
        """Halve the limit after a batch that did not fit into the memory."""
        self._room = max(1.0, min(self._room, tokens) / 2)
