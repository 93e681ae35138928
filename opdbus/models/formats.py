"""Model formats and the files of each."""

from dataclasses import dataclass
from typing import Final

TOKENIZER: Final = "tokenizer.json"
# A transformer's weights, and its own token limit.
WEIGHTS: Final = "model.safetensors"
LIMIT: Final = "sentence_bert_config.json"
# A static table's rows, and the reference vectors of a few texts.
ROWS: Final = "table.npy"
PROOF: Final = "proof.npy"


@dataclass(frozen=True, slots=True)
class Format:
    """A format's weights file, and the required and optional files in its folder."""

    weights: str
    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    # true: numpy sums the rows of a table; false: the model runs on a provider
    is_table: bool = False

    @property
    def files(self) -> tuple[str, ...]:
        """Names of all files of the format; nothing else is copied or downloaded."""
        return (*self.required, *self.optional)


TRANSFORMER: Final = Format(
    WEIGHTS,
    ("config.json", TOKENIZER, "modules.json", "1_Pooling/config.json", WEIGHTS),
    optional=(LIMIT,),
)
TABLE: Final = Format(ROWS, (ROWS, TOKENIZER, PROOF), is_table=True)
