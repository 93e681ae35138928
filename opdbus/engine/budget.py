"""Token budget of a batch: a few milliseconds of work that fit into memory."""

from typing import Final

# Target duration of a batch: short enough for the next text to wait for, long enough for a good
# rate.
TARGET_SECONDS: Final = 0.012
LEAST: Final = 32
_START: Final = 256
# The budget grows one step only if the measurement exceeds that step by this factor.
_DOUBT: Final = 1.2
# While no request of few texts is recent, a batch may have this many times the target's tokens, and
# at least LEAST_RELAXED: larger batches save another 10%.
_RELAXED: Final = 4
LEAST_RELAXED: Final = 512
# Weight of a new measurement in the running mean of the rate.
_SHARE: Final = 0.2
# Growth of a limit set by a memory shortage, applied after each full batch.
_RECOVERY: Final = 1.02


class Budget:
    """Token limit of a batch, adjusted by measurement while serving; not thread-safe.

    `fixed` is a setting that replaces the measurement; only a lack of memory goes below it. `rows`
    is the largest number of rows in a batch that the provider supports. `whole` is for a provider
    to which every new shape is costly: its batches are full or of one row.
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
        """Token limit of the next batch; at least one row runs whatever its length."""
        return max(1, min(self._wanted, int(self._room)))

    @property
    def relaxed(self) -> int:
        """Token limit of the next batch while no request of few texts is recent."""
        most = max(LEAST_RELAXED, self._wanted * _RELAXED)
        wanted = self._wanted if self._is_fixed else min(self._most, most)
        return max(1, min(wanted, int(self._room)))

    def ran(self, tokens: int, seconds: float) -> None:
        """Adjust the limit to the duration of a batch that succeeded."""
        if self._room < self._most and tokens > 0.5 * self._room:
            self._room = min(self._most, self._room * _RECOVERY + 1)
        # small batches consist mostly of fixed costs
        if self._is_fixed or 2 * tokens < self.tokens or seconds <= 0:
            return
        rate = tokens / seconds
        self._rate += (rate - self._rate) * (_SHARE if self._rate else 1.0)
        self._wanted = max(LEAST, min(self._most, self._step(int(self._rate * TARGET_SECONDS))))

    def _step(self, tokens: int) -> int:
        """Round down to a power of 2 or 1.5 times one, and grow only past a margin.

        A budget that followed each measurement would make batches of many shapes.
        """
        power = 1 << max(0, tokens.bit_length() - 1)
        half_more = power * 3 // 2
        step, below = (half_more, power) if tokens >= half_more else (power, power * 3 // 4)
        return below if self._wanted < step and tokens < step * _DOUBT else step

    def out_of_memory(self, tokens: int) -> None:
        """Halve the limit after a batch that did not fit into memory."""
        self._room = max(1.0, min(self._room, tokens) / 2)
