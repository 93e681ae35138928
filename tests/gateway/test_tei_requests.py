"""The requests that text-embeddings-inference documents, one by one."""

import asyncio
from typing import Any

import httpx
import pytest
from harness.running import Running

from opdbus.client import Client

TEXTS = ["Deep Learning is not...", "Deep learning is..."]
QUERY = "What is Deep Learning?"
LONG = "disk " * 600


@pytest.fixture(scope="module")
def right(served: Running) -> dict[str, list[float]]:
    """Compute the vectors over the bus."""

    async def work() -> list[list[float]]:
        async with Client(served.bus) as client:
            return await client.vectorize([QUERY, *TEXTS, LONG])

    return dict(zip([QUERY, *TEXTS, LONG], asyncio.run(work()), strict=True))


def cosine(right: dict[str, list[float]], text: str) -> Any:
    """Give the right score of a text."""
    pairs = zip(right[QUERY], right[text], strict=True)
    return pytest.approx(sum(a * b for a, b in pairs), abs=1e-6)


@pytest.mark.parametrize(
    ("more", "texts"),
    [
        ({"inputs": QUERY}, [QUERY]),
        ({"inputs": TEXTS}, TEXTS),
        ({"inputs": TEXTS, "normalize": True}, TEXTS),
        ({"inputs": TEXTS, "prompt_name": None, "dimensions": None}, TEXTS),
        ({"inputs": TEXTS, "truncate": False, "truncation_direction": "Right"}, TEXTS),
        ({"inputs": [LONG], "truncate": True}, [LONG]),
        ({"inputs": [LONG], "truncation_direction": "right"}, [LONG]),
        ({"inputs": TEXTS, "truncation_direction": "Left"}, TEXTS),
        ({"inputs": TEXTS, "truncation_direction": None}, TEXTS),
    ],
)
def test_embed(
    http: httpx.Client, right: dict[str, list[float]], more: dict[str, Any], texts: list[str]
) -> None:
    """Give a list of vectors."""
    rows = http.post("/embed", json=more).json()
    assert len(rows) == len(texts)
    for row, text in zip(rows, texts, strict=True):
        assert row == pytest.approx(right[text], abs=1e-6)


@pytest.mark.parametrize("direction", ["Left", "left"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/embed", {"inputs": [QUERY, LONG]}),
        ("/rerank", {"query": QUERY, "texts": [LONG], "truncate": True}),
        ("/v1/rerank", {"query": LONG, "documents": TEXTS}),
    ],
)
def test_a_beginning_is_never_lost_unsaid(
    http: httpx.Client, path: str, body: dict[str, Any], direction: str
) -> None:
    """Refuse to cut a text at its beginning, since a cut at its end would be another vector."""
    answer = http.post(path, json={**body, "truncation_direction": direction})
    assert answer.status_code == 400
    assert "truncation_direction" in answer.text
    refused = http.post(path, json={**body, "truncate": False, "truncation_direction": direction})
    assert refused.status_code == 413


def test_the_direction_of_similarity_is_read(http: httpx.Client) -> None:
    """Read the direction among the parameters of a similarity, and refuse an unknown one."""
    inputs = {"source_sentence": QUERY, "sentences": [LONG]}
    for direction, wanted in (("Left", 400), ("Right", 200), ("Up", 400), (1, 400)):
        body = {"inputs": inputs, "parameters": {"truncation_direction": direction}}
        assert http.post("/similarity", json=body).status_code == wanted
    assert (
        http.post("/embed", json={"inputs": "a", "truncation_direction": "Up"}).status_code == 400
    )


@pytest.mark.parametrize(
    ("form", "key"),
    [
        ({}, {"index", "score"}),
        ({"raw_scores": True, "truncate": True}, {"index", "score"}),
        ({"return_text": True, "raw_scores": False}, {"index", "score", "text"}),
    ],
)
def test_rerank(
    http: httpx.Client, right: dict[str, list[float]], form: dict[str, Any], key: set[str]
) -> None:
    """Order texts, the best first, with their cosines."""
    rows = http.post("/rerank", json={"query": QUERY, "texts": TEXTS, **form}).json()
    assert sorted(row["index"] for row in rows) == [0, 1]
    assert rows[0]["score"] >= rows[1]["score"]
    for row in rows:
        assert set(row) == key
        assert row["score"] == cosine(right, TEXTS[row["index"]])
        assert row.get("text", TEXTS[row["index"]]) == TEXTS[row["index"]]


@pytest.mark.parametrize(
    "parameters", [{}, {"parameters": None}, {"parameters": {"truncate": False}}]
)
def test_similarity(
    http: httpx.Client, right: dict[str, list[float]], parameters: dict[str, Any]
) -> None:
    """Give cosines in the order of the texts."""
    inputs = {"source_sentence": QUERY, "sentences": TEXTS}
    found = http.post("/similarity", json={"inputs": inputs, **parameters}).json()
    assert found == [cosine(right, text) for text in TEXTS]


@pytest.mark.parametrize(
    ("path", "body", "status", "kind"),
    [
        ("/embed", {"inputs": []}, 400, "Validation"),
        ("/embed", {}, 400, "Validation"),
        ("/embed", {"inputs": [[101, 102]]}, 400, "Validation"),
        ("/embed", {"inputs": "x", "normalize": False}, 400, "Validation"),
        ("/embed", {"inputs": "x", "prompt_name": "query"}, 400, "Validation"),
        ("/embed", {"inputs": ["x"] * 2049}, 413, "Validation"),
        ("/embed", {"inputs": LONG, "truncate": False}, 413, "Validation"),
        ("/embed_all", {"inputs": "x"}, 424, "Backend"),
        ("/embed_sparse", {"inputs": "x"}, 424, "Backend"),
        ("/predict", {"inputs": "x", "raw_scores": True}, 424, "Backend"),
        ("/predict", {"inputs": [["x", "y"]]}, 424, "Backend"),
        ("/decode", {"ids": [101, 102], "skip_special_tokens": True}, 424, "Backend"),
        ("/tokenize", {"inputs": []}, 400, "Validation"),
        ("/tokenize", {"inputs": ["x", "y" * 16385]}, 413, "Validation"),
        ("/rerank", {"query": QUERY}, 400, "Validation"),
        ("/rerank", {"query": QUERY, "texts": []}, 400, "Validation"),
        ("/rerank", {"query": QUERY, "texts": [LONG], "truncate": False}, 413, "Validation"),
        ("/similarity", {"inputs": {"sentences": TEXTS}}, 400, "Validation"),
        (
            "/similarity",
            {"inputs": {"source_sentence": QUERY, "sentences": ["x"] * 2048}},
            413,
            "Validation",
        ),
        (
            "/similarity",
            {
                "inputs": {"source_sentence": QUERY, "sentences": TEXTS},
                "parameters": {"prompt_name": "query"},
            },
            400,
            "Validation",
        ),
    ],
)
def test_refusals(http: httpx.Client, path: str, body: Any, status: int, kind: str) -> None:
    """Refuse in the form {error, error_type}."""
    response = http.post(path, json=body)
    answer = response.json()
    assert (response.status_code, answer["error_type"]) == (status, kind)
    assert isinstance(answer["error"], str)
    assert answer["error"]


def test_openai(http: httpx.Client, right: dict[str, list[float]]) -> None:
    """Give OpenAI's form on its route."""
    body = {"model": "text-embeddings-inference", "input": QUERY, "encoding_format": "float"}
    assert http.post("/v1/embeddings", json=body).status_code == 404
    rows = http.post("/v1/embeddings", json=body | {"model": None}).json()["data"]
    assert rows[0]["embedding"] == pytest.approx(right[QUERY], abs=1e-6)


def test_info_and_health(http: httpx.Client) -> None:
    """Describe the model, and say that it serves."""
    assert http.get("/info").json()["model_type"] == {"embedding": {"pooling": "mean"}}
    assert http.get("/health").status_code == 200


def test_tokenize(http: httpx.Client, served: Running) -> None:
    """Give the tokens of the daemon's tokenizer with their places, whole texts included."""
    added, mail, server, last = http.post("/tokenize", json={"inputs": "mail  Server"}).json()[0]
    assert (added["text"], added["special"], added["start"], added["stop"]) == (
        "[CLS]",
        True,
        None,
        None,
    )
    assert (last["text"], last["special"]) == ("[SEP]", True)
    assert [mail[key] for key in ("text", "special", "start", "stop")] == ["mail", False, 0, 4]
    assert [server[key] for key in ("text", "start", "stop")] == ["Server", 6, 12]

    texts = [*TEXTS, "", "caf\u00e9 \U0001f986 naïve", LONG] * 60
    found = http.post("/tokenize", json={"inputs": texts}).json()

    async def work() -> list[int]:
        async with Client(served.bus) as client:
            return (await client.count_tokens(texts))[1]

    assert [len(tokens) for tokens in found] == asyncio.run(work())
    for text, tokens in zip(texts, found, strict=True):
        for token in tokens[1:-1]:
            assert text[token["start"] : token["stop"]] == token["text"]
    body = {"inputs": "mail  Server", "add_special_tokens": False}
    assert http.post("/tokenize", json=body).json() == [[mail, server]]
