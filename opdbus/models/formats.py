"""The formats of models: the files that each is read from."""

from dataclasses import dataclass
from typing import Final

TOKENIZER: Final = "tokenizer.json"
# Of a transformer: its weights, and its own limit of a text's tokens.
WEIGHTS: Final = "model.safetensors"
LIMIT: Final = "sentence_bert_config.json"
# Of a static table: its rows, and what the reference makes of a few texts.
ROWS: Final = "table.npy"
PROOF: Final = "proof.npy"


@dataclass(frozen=True, slots=True)
class Format:
    """One row: the file of the weights, and the files that must and that may lie in the folder."""

    weights: str
    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    # numpy sums the rows of a table; what is none runs on a provider
    is_table: bool = False

    @property
    def files(self) -> tuple[str, ...]:
        """The names of all that a model is read from; nothing else is copied or downloaded."""
        return (*self.required, *self.optional)


TRANSFORMER: Final = Format(
    WEIGHTS,
    ("config.json", TOKENIZER, "modules.json", "1_Pooling/config.json", WEIGHTS),
    optional=(LIMIT,),
)
TABLE: Final = Format(ROWS, (ROWS, TOKENIZER, PROOF), is_table=True)
