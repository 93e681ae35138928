"""The names of a static table's files."""

from typing import Final

# The rows, and the words that they are for.
TABLE: Final = "table.npy"
WORDS: Final = "tokenizer.json"
# What the reference makes of a few texts.
PROOF: Final = "proof.npy"
ALL: Final = (TABLE, WORDS, PROOF)
