"""Vectors of texts with their tokens and what served, by Vectorizer1.Embed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from opdbus.client import TEXTS_A_CALL, Client, split_by_size, text_size
from opdbus.errors import ProviderLost

# Attempts to get all vectors of a request from one engine.
_ATTEMPTS: Final = 3


@dataclass(frozen=True, slots=True)
class Embedded:
    """Row-major vectors of `dimension` components, little-endian, and each whole text's tokens.

    `details` has the level, model, provider, precision, numerics, max_tokens and
    native_dimension.
    """

    dimension: int
    data: bytes
    tokens: Sequence[int]
    details: Mapping[str, Any]

    @property
    def cut(self) -> list[int]:
        """Indexes of the texts that were cut."""
        most = self.details["max_tokens"]
        return [index for index, count in enumerate(self.tokens) if count > most]

    @property
    def read_tokens(self) -> int:
        """Number of tokens that the model read."""
        most: int = self.details["max_tokens"]
        return sum(min(count, most) for count in self.tokens)

    @property
    def rows(self) -> list[bytes]:
        """The vector of each text, as bytes."""
        size = len(self.data) // len(self.tokens)
        return [self.data[at : at + size] for at in range(0, len(self.data), size)]


async def embed(client: Client, texts: Sequence[str], options: Mapping[str, Any]) -> Embedded:
    """Return the vectors of any number of texts, at least one; options: as of Embed.

    Raises ProviderLost if engines are replaced while it lasts: vectors are of one engine.
    """
    for _ in range(_ATTEMPTS):
        parts = []
        for part in split_by_size(texts, TEXTS_A_CALL, text_size):
            parts.append(await client.ask_vectorizer("Embed", "asa{sv}", part, dict(options)))
            if parts[0][4] != parts[-1][4]:
                break
        else:
            data = b"".join(bytes(part[2]) for part in parts)
            tokens = [count for part in parts for count in part[3]]
            return Embedded(parts[0][0], data, tokens, parts[0][4])
    raise ProviderLost("the engine was replaced again and again: ask again in a moment")
