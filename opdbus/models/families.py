"""Model families that can be built: tensor names and differences of architecture."""

from dataclasses import dataclass
from typing import Final

# MPNet's constants, which config.json cannot change: the id of its padding token, ...
PADDING: Final = 1
# ... and the number of buckets for distances between tokens.
BUCKETS: Final = 32


@dataclass(frozen=True, slots=True)
class Family:
    """Tensor names within `encoder.layer.N.`, and the kind of positions."""

    query: str
    key: str
    value: str
    mixed: str
    mixed_norm: str
    token_types: bool
    # positions start after the padding token's, and attention is biased by distance
    relative: bool

    @property
    def first_position(self) -> int:
        """The row of the position embeddings for a text's first token."""
        return PADDING + 1 if self.relative else 0


FAMILIES: Final = {
    "bert": Family(
        query="attention.self.query",
        key="attention.self.key",
        value="attention.self.value",
        mixed="attention.output.dense",
        mixed_norm="attention.output.LayerNorm",
        token_types=True,
        relative=False,
    ),
    "mpnet": Family(
        query="attention.attn.q",
        key="attention.attn.k",
        value="attention.attn.v",
        mixed="attention.attn.o",
        mixed_norm="attention.LayerNorm",
        token_types=False,
        relative=True,
    ),
}
