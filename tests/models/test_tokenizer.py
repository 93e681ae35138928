"""Texts to token ids, and what was cut of them."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from opdbus import config
from opdbus.bench.texts import objects, shorts
from opdbus.engine.tokenizer import Tokenizer
from opdbus.errors import ModelError
from opdbus.models import folder
from opdbus.models.folder import Model
from opdbus.models.level_table import LEVELS

LIMIT = 256


@pytest.fixture(scope="module")
def medium(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Find the medium model, or skip."""
    home = tmp_path_factory.mktemp("home")
    try:
        return folder.load_model(LEVELS["medium"], config.load({"HOME": str(home)}))
    except ModelError as error:
        pytest.skip(str(error))


def whole(path: Path) -> tokenizers.Tokenizer:
    """Open the same tokenizer without any limit: the reference."""
    reference = tokenizers.Tokenizer.from_file(str(path))
    reference.no_padding()
    reference.no_truncation()
    return reference


def expected(reference: tokenizers.Tokenizer, text: str, limit: int) -> tuple[list[int], bool]:
    """Cut the tokens of the whole text by hand: what `encode` must give."""
    (encoding,) = reference.encode_batch_fast([text])
    ids = encoding.ids
    return (ids, False) if len(ids) <= limit else ([*ids[: limit - 1], ids[-1]], True)


def tokenized(tested: Tokenizer, text: str) -> tuple[list[int], bool]:
    """Tokenize one text beside another, so that there is more than little of it."""
    found = tested.encode([text, "x " * 200])
    ids, _ = found
    return ids.tolist(), bool(found.truncated[0])


# Pieces of texts: words of the vocabulary, words to be taken apart, words too long, odd characters.
PIECES = st.one_of(
    st.sampled_from(["network", "Server ", " ", "  \t\n", ".", "中", "é", "[SEP]", "-", "\u200b"]),
    st.sampled_from(["[", "[mask]", "<mask>", "</S>", "<", "##ing", "x" * 100, "x" * 101]),
    st.sampled_from(["\x00", "\x01", "\x02", "\x7f", "\x1b", "\u2028", "İ", "\ud7ff", "ﬀ"]),
    st.text("abcdexyz0123_./:", min_size=1, max_size=12),
    st.integers(20, 220).map(lambda size: "ab" * size),
    st.integers(1, 60).map(lambda size: " " * size),
    st.text(max_size=5),
)
TEXTS = st.lists(st.lists(PIECES, max_size=40).map("".join), min_size=1, max_size=5)


def as_mpnet(described: dict[str, Any]) -> dict[str, Any]:
    """Give a BERT tokenizer the special tokens of MPNet's, and its way to place them."""
    words = described["model"]["vocab"]
    ids = {name: words.setdefault(name, len(words)) for name in ("<s>", "</s>", "<unk>", "<mask>")}
    special = {"special": True, "single_word": False, "rstrip": False}
    added = [
        {"id": number, "content": name, "lstrip": name == "<mask>", "normalized": name == "<unk>"}
        for name, number in ids.items()
    ]
    around = {"sep": ["</s>", ids["</s>"]], "cls": ["<s>", ids["<s>"]]}
    return described | {
        "added_tokens": [special | token for token in added],
        "post_processor": around
        | {"type": "RobertaProcessing", "trim_offsets": True, "add_prefix_space": False},
    }


@pytest.fixture(scope="module", params=["bert", "mpnet"])
def real(request: pytest.FixtureRequest, medium: Model, tmp_path_factory: Any) -> Tokenizer:
    """Open a tokenizer with real words of one of the two families, and a small cache."""
    path = tmp_path_factory.mktemp("words") / "tokenizer.json"
    described = json.loads(medium.tokenizer.read_bytes())
    path.write_text(json.dumps(as_mpnet(described) if request.param == "mpnet" else described))
    return Tokenizer(path, 48, most_words=2000)


@pytest.mark.model
@settings(deadline=None)
@given(texts=TEXTS)
def test_ids_are_those_of_the_library(real: Tokenizer, texts: list[str]) -> None:
    """Every text has the library's ids, cut where the library cuts, whatever is beside it."""
    # the library itself is asked for a few characters
    texts = [*texts, "x " * 200]
    found, wanted = real.encode(texts), real.library.encode(texts)
    assert [ids.tolist() for ids in found] == [ids.tolist() for ids in wanted]
    assert found.truncated.tolist() == wanted.truncated.tolist()


@pytest.mark.model
def test_ids_of_hosts_are_those_of_the_library(real: Tokenizer) -> None:
    """Objects' texts have the library's ids, more of them at a time than are looked at together."""
    texts = [*objects(250), *shorts(250)] * 5
    found, wanted = real.encode(texts), real.library.encode(texts)
    assert [ids.tolist() for ids in found] == [ids.tolist() for ids in wanted]


@pytest.mark.model
def test_plain_texts_need_no_library(medium: Model) -> None:
    """Encode and count plain texts without the library, which takes 10 MiB, as it would count."""
    tested, texts = Tokenizer.of(medium), [*objects(40), *shorts(40), "", "word " * 3000]
    found, counts = tested.encode(texts), tested.count(texts)
    assert tested._library is None
    assert len(found) == len(texts)
    assert counts == tested.library.count(texts)
    assert tested.count([*texts[:2], "één "]) == tested.library.count([*texts[:2], "één "])


@settings(deadline=None, max_examples=300)
@given(pieces=st.lists(PIECES, max_size=120), limit=st.integers(3, 12))
def test_cutting_first_changes_nothing(tiny_model: Path, pieces: list[str], limit: int) -> None:
    """Give the tokens of the whole text, cut; and say so exactly when tokens were cut."""
    path, text = tiny_model / "tokenizer.json", "".join(pieces)
    reference = whole(path)
    tested = Tokenizer(path, limit)
    assert tokenized(tested, text) == expected(reference, text, limit)
    assert tested.count([text]) == [len(reference.encode(text).ids)]


@pytest.mark.parametrize("letters", range(20, 60, 3))
def test_a_word_split_by_the_first_cut(tiny_model: Path, letters: int) -> None:
    """Give a long word's own tokens though the first look ends inside it."""
    path = tiny_model / "tokenizer.json"
    text = "a " * 3 + "q" * letters + "network " + "." * 300
    assert tokenized(Tokenizer(path, 6), text) == expected(whole(path), text, 6)


@pytest.mark.parametrize(("limit", "truncated"), [(7, True), (8, False), (9, False)])
def test_exactly_at_the_limit(tiny_model: Path, limit: int, truncated: bool) -> None:  # noqa: FBT001 -- a row of the table
    """Cut nothing of a text that has as many tokens as fit."""
    ids, cut = tokenized(Tokenizer(tiny_model / "tokenizer.json", limit), "a b c d e 0")
    assert (len(ids), cut) == (min(limit, 8), truncated)


def test_the_files_own_limit_and_padding_are_ignored(tiny_model: Path, tmp_path: Path) -> None:
    """Use the model's limit, not the one that the file bakes in, and never pad."""
    described = json.loads((tiny_model / "tokenizer.json").read_text())
    described["truncation"] = {
        "max_length": 4,
        "strategy": "LongestFirst",
        "stride": 0,
        "direction": "Right",
    }
    described["padding"] = {
        "strategy": {"Fixed": 30},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "[PAD]",
    }
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(described))
    ids, cut = tokenized(Tokenizer(path, 20), "a b c d e")
    assert (len(ids), cut) == (7, False)


def test_empty_text(tiny_model: Path) -> None:
    """Give an empty text the two special tokens, and no texts nothing."""
    tested = Tokenizer(tiny_model / "tokenizer.json", 48)
    assert tested.encode(["", " \n"]).lengths.tolist() == [2, 2]
    assert len(tested.encode([])) == 0
    assert tested.count([]) == []


def test_garbage_is_a_model_error(tmp_path: Path) -> None:
    """Name the file that is no tokenizer."""
    path = tmp_path / "tokenizer.json"
    path.write_text('{"model": 7')
    with pytest.raises(ModelError, match=r"cannot read the tokenizer .*tokenizer\.json"):
        Tokenizer(path, 48)


def test_no_special_tokens_is_a_model_error(tiny_model: Path, tmp_path: Path) -> None:
    """Refuse a tokenizer that would turn an empty text into no tokens."""
    described = json.loads((tiny_model / "tokenizer.json").read_text())
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(described | {"post_processor": None}))
    with pytest.raises(ModelError, match=r"adds no \[CLS\] and \[SEP\]"):
        Tokenizer(path, 48)


def test_a_limit_of_specials_only(tiny_model: Path) -> None:
    """Refuse a limit that leaves no room for a token of the text."""
    with pytest.raises(ModelError, match="a limit of 2 tokens"):
        Tokenizer(tiny_model / "tokenizer.json", 2)


@pytest.mark.parametrize(
    "text",
    [
        ":" * 90_000,
        "name " * 30_000,
        "[SEP]" * 30_000,
        "x" * 90_000,
        "na-me[" * 20_000,
        " a" * 40_000,
    ],
    ids=["signs", "words", "special", "one-word", "mixed", "blanks"],
)
def test_a_long_text_has_as_many_tokens_as_its_parts(tiny_model: Path, text: str) -> None:
    """Count the tokens of a text of many characters as those of the whole text."""
    path = tiny_model / "tokenizer.json"
    assert Tokenizer(path, LIMIT).count([text, "a"]) == [len(whole(path).encode(text).ids), 3]


@pytest.mark.model
def test_medium_limit(medium: Model) -> None:
    """Cut at 256 tokens for the medium model, whose file says 128."""
    assert json.loads(medium.tokenizer.read_text())["truncation"]["max_length"] == 128
    tested = Tokenizer(medium.tokenizer, medium.shape.max_tokens)
    found = tested.encode([" ".join(["name"] * n) for n in (254, 255, 5000)])
    assert found.lengths.tolist() == [LIMIT] * 3
    assert found.truncated.tolist() == [False, True, True]
    assert tested.count([" ".join(["name"] * 5000)]) == [5002]


@pytest.mark.model
@pytest.mark.parametrize(
    "text",
    [
        "network server " * 70_000,
        " " * 1_000_000,
        " " * 1_000_000 + "the end",
        "first " + "\t" * 1_000_000 + "name " * 300,
        "x" * 1_000_000,
        "中" * 330_000,
        "\x01" * 1_000_000,
    ],
    ids=["words", "spaces", "end", "middle", "one-word", "chinese", "control"],
)
def test_a_megabyte(medium: Model, text: str) -> None:
    """Tokenize a text of 1 MB as the whole text would be, soon."""
    tested = Tokenizer(medium.tokenizer, LIMIT)
    begun = time.process_time()
    found = tokenized(tested, text)
    taken = time.process_time() - begun
    assert found == expected(whole(medium.tokenizer), text, LIMIT)
    # measured: 0.5 s at most, for spaces only
    assert taken < 3.0
