"""Routes of embedding servers: what real clients send, and what they expect.

Names such as openai-python #1490 are public reports of what other servers got wrong.
"""

import asyncio
import base64
import json
import math
from array import array
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from harness.gateways import Gateway
from harness.running import Running

from opdbus import __version__
from opdbus.client import Client
from opdbus.models.level_table import LEVELS

STATIC = LEVELS["static"]
TEXTS = ["mail server", "network link", "a disk that is nearly full"]
# past the 512 tokens of the level
LONG = "disk " * 600


def openai(http: httpx.Client, given: Any, **more: Any) -> httpx.Response:
    """Post to OpenAI's route."""
    return http.post("/v1/embeddings", json={"input": given, "model": "static", **more})


def vectors(response: httpx.Response) -> list[list[float]]:
    """Give the vectors of OpenAI's route in the order of their index."""
    assert response.status_code == 200, response.text
    rows = response.json()["data"]
    assert [row["index"] for row in rows] == list(range(len(rows)))
    return [decode(row["embedding"]) for row in rows]


def decode(given: str | list[float]) -> list[float]:
    """Decode a vector as OpenAI's clients do."""
    if isinstance(given, str):
        return array("f", base64.b64decode(given)).tolist()
    return given


def of_bus(daemon: Running, texts: list[str], **options: Any) -> list[list[float]]:
    """Ask for vectors over the bus."""

    async def work() -> list[list[float]]:
        async with Client(daemon.bus) as client:
            return await client.vectorize(texts, options)

    return asyncio.run(work())


@pytest.fixture(scope="module")
def right(served: Running) -> list[list[float]]:
    """Compute the vectors of TEXTS over the bus."""
    return of_bus(served, TEXTS)


def close(found: list[list[float]], right: list[list[float]]) -> bool:
    """Compare vectors number by number."""
    return all(
        one == pytest.approx(other, abs=1e-6) for one, other in zip(found, right, strict=True)
    )


@pytest.mark.parametrize("encoding", [{}, {"encoding_format": None}, {"encoding_format": "float"}])
def test_floats_are_those_of_the_bus(
    http: httpx.Client, right: list[list[float]], encoding: dict[str, Any]
) -> None:
    """Give numbers by default, also for null: agent-zero #1429 (422 for null)."""
    response = openai(http, TEXTS, **encoding)
    assert isinstance(response.json()["data"][0]["embedding"], list)
    assert close(vectors(response), right)


def test_base64_is_of_float32(http: httpx.Client, right: list[list[float]]) -> None:
    """Give base64 where it is asked for: openai-python #1490, lmstudio #756, n8n #16647."""
    response = openai(http, TEXTS, encoding_format="base64")
    first = response.json()["data"][0]["embedding"]
    assert isinstance(first, str)
    assert len(base64.b64decode(first)) == 4 * STATIC.dimension
    assert close(vectors(response), right)


def test_the_answer_has_all_that_clients_read(http: httpx.Client) -> None:
    """Name the model in full, and count the tokens that it read."""
    answer = openai(http, "mail server", user="somebody").json()
    assert answer["object"] == "list"
    assert answer["model"] == STATIC.repository
    assert answer["data"][0]["object"] == "embedding"
    # [CLS] mail server [SEP]
    assert answer["usage"] == {"prompt_tokens": 4, "total_tokens": 4}


def test_headers_name_what_served(http: httpx.Client) -> None:
    """Name the proven provider, precision and level on every route."""
    bodies: dict[str, Any] = {
        "/v1/embeddings": {"input": "x"},
        "/embeddings": {"input": "x"},
        "/embed": {"inputs": "x"},
        "/": {"inputs": "x"},
        "/rerank": {"query": "x", "texts": ["y"]},
        "/v1/rerank": {"query": "x", "documents": ["y"]},
        "/api/embed": {"model": "static", "input": "x"},
        "/api/embeddings": {"model": "static", "prompt": "x"},
    }
    for path, body in bodies.items():
        headers = http.post(path, json=body).headers
        assert headers["x-opdbus-provider"] == "cpu:numpy", path
        assert headers["x-opdbus-precision"] == "fp32", path
        assert headers["x-opdbus-level"] == "static", path
        assert headers["x-opdbus-truncated"] == "0", path
        assert "x-opdbus-truncated-dimensions" not in headers


@pytest.mark.parametrize(
    "given", [[101, 7, 102], [[101, 7, 102]], [[1], [2]], ["a text", [1]], ["a text", 7]]
)
def test_token_ids_are_refused(http: httpx.Client, given: Any) -> None:
    """Refuse another tokenizer's ids, and name the client's option: tei #273."""
    response = openai(http, given)
    assert response.status_code == 400
    error = response.json()["error"]
    assert "check_embedding_ctx_length=False" in error["message"]
    assert (error["param"], error["type"]) == ("input", "invalid_request_error")


def test_the_native_dimensions_are_accepted(http: httpx.Client, right: list[list[float]]) -> None:
    """Take the model's own size as no cut: ogx #5109."""
    response = openai(http, TEXTS, dimensions=STATIC.dimension)
    assert close(vectors(response), right)
    assert "x-opdbus-truncated-dimensions" not in response.headers


def test_fewer_dimensions_are_cut_and_marked(http: httpx.Client, right: list[list[float]]) -> None:
    """Cut vectors, scale them to length 1 again, and say so."""
    response = openai(http, TEXTS, dimensions=64, encoding_format="base64")
    found = vectors(response)
    cut = [vector[:64] for vector in right]
    assert close(found, [[x / math.hypot(*vector) for x in vector] for vector in cut])
    assert response.headers["x-opdbus-truncated-dimensions"] == "64 of 256"


@pytest.mark.parametrize("dimensions", [0, -1, 257, 1536, 1 << 40, "many"])
def test_dimensions_out_of_range_are_refused(http: httpx.Client, dimensions: object) -> None:
    """Refuse more dimensions than there are, never fill them up: vllm PR 46313."""
    response = openai(http, TEXTS, dimensions=dimensions)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "dimensions"


def test_a_large_batch_is_split_here(http: httpx.Client, right: list[list[float]]) -> None:
    """Take 2,048 texts in one request, in order: tei #378, openai-python #420."""
    texts = (TEXTS * 683)[:2048]
    found = vectors(openai(http, texts, encoding_format="base64"))
    assert close(found, (right * 683)[:2048])


def test_more_items_than_the_limit_are_refused(http: httpx.Client) -> None:
    """Answer 413 past 2,048 texts, on each route in its own form."""
    many = ["x"] * 2049
    response = openai(http, many)
    assert (response.status_code, response.json()["error"]["param"]) == (413, "input")
    response = http.post("/embed", json={"inputs": many})
    assert (response.status_code, response.json()["error_type"]) == (413, "Validation")
    assert http.post("/rerank", json={"query": "x", "texts": many}).status_code == 413


def test_a_text_of_more_than_a_mebibyte_is_refused(http: httpx.Client) -> None:
    """Name the text that is too large."""
    response = openai(http, ["x", "y" * ((1 << 20) + 1)])
    assert response.status_code == 413
    assert response.json()["error"]["message"].startswith("input.1: ")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": "\0" * 400_000}),
        ("/v1/embeddings", {"input": ["a", "\0" * 349_526]}),
        ("/embed", {"inputs": "a\0" * 300_000}),
        ("/api/embed", {"model": "static", "input": "\0" * 900_000}),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["\0" * 400_000]}}),
    ],
)
def test_a_text_is_measured_as_it_is_sent(
    http: httpx.Client, path: str, body: dict[str, Any]
) -> None:
    """Refuse for good what can never be sent: each NUL becomes three bytes."""
    answer = http.post(path, json=body)
    assert answer.status_code == 413
    assert "retry-after" not in answer.headers


def test_cut_texts_are_marked(http: httpx.Client) -> None:
    """Count the texts that were cut, never silently: ollama #14259; no fault: ollama PR 16687."""
    response = openai(http, ["mail server", LONG, LONG * 50])
    assert response.headers["x-opdbus-truncated"] == "2"
    assert response.json()["usage"]["prompt_tokens"] == 4 + 512 + 512
    first, second, third = vectors(response)
    assert math.hypot(*second) == pytest.approx(1, abs=1e-6)
    assert second == third != first


def test_who_refuses_cuts_is_obeyed(http: httpx.Client) -> None:
    """Refuse a long text with `truncate: false`, and name it: ollama #14186."""
    body: dict[str, Any] = {"inputs": ["short"] * 300 + [LONG], "truncate": False}
    response = http.post("/embed", json=body)
    assert (response.status_code, response.json()["error_type"]) == (413, "Validation")
    assert "number 300, counted from 0, with 602" in response.json()["error"]
    ollama = {"model": "static", "input": LONG, "truncate": False}
    response = http.post("/api/embed", json=ollama)
    assert (response.status_code, list(response.json())) == (400, ["error"])
    for given in ({}, {"truncate": True}, {"truncate": None}):
        response = http.post("/embed", json={"inputs": [LONG], **given})
        assert response.headers["x-opdbus-truncated"] == "1"
        assert http.post("/api/embed", json={**ollama, "truncate": True}).status_code == 200


ODD = ["", " ", "\n", "\0", "a\0b", "\ufffd", "\u202e", "🦆" * 40, "x" * 5000, "é" * 400, "[PAD]"]


def test_no_text_gives_nan_or_nothing(http: httpx.Client) -> None:
    """Give a vector of length 1 for every text: ollama #15582, tei #557, llama.cpp PR 5733."""
    for given in (*ODD, ODD):
        found = vectors(openai(http, given))
        lengths = [math.hypot(*vector) for vector in found]
        assert lengths == pytest.approx([1] * len(lengths), abs=1e-6)


def test_a_batch_equals_its_texts_one_by_one(http: httpx.Client) -> None:
    """Give the same vectors in a batch as alone: ollama #6187."""
    texts = [*TEXTS, *ODD, LONG]
    batch = vectors(openai(http, texts))
    for text, vector in zip(texts, batch, strict=True):
        assert vectors(openai(http, text))[0] == pytest.approx(vector, abs=1e-5)


@pytest.mark.parametrize("path", ["/v1/embeddings", "/embed", "/api/embed"])
def test_half_a_surrogate_pair_is_the_callers_fault(http: httpx.Client, path: str) -> None:
    """Answer 400 with the text's index: hindsight #1875 (500)."""
    name = "inputs" if path == "/embed" else "input"
    body = f'{{"model": "static", "{name}": ["fine", "half \\ud800"]}}'
    response = http.post(path, content=body)
    assert response.status_code == 400
    assert f"{name}.1: " in response.text


@pytest.mark.parametrize("given", [[], {}, None, 7, ["x", None], ["x", {}], True])
def test_what_is_no_text_is_refused(http: httpx.Client, given: Any) -> None:
    """Answer 400 with the parameter at fault."""
    response = openai(http, given)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "input")


def test_a_body_needs_no_content_type(http: httpx.Client) -> None:
    """Read JSON from clients that name another type, as `curl -d` does."""
    body = json.dumps({"model": "static", "input": "x"})
    for given in ({}, {"content-type": "application/x-www-form-urlencoded"}):
        assert http.post("/api/embed", content=body, headers=given).status_code == 200
        assert http.post("/v1/embeddings", content=body, headers=given).status_code == 200


def test_models_contain_embed(http: httpx.Client) -> None:
    """List ids that contain `embed`, since n8n shows no others, the configured one first."""
    rows = http.get("/v1/models").json()["data"]
    assert all("embed" in row["id"] for row in rows)
    assert rows[0]["id"] == "op-dbus-embed-static"
    assert http.get("/v1/models/op-dbus-embed-static").json() == rows[0]


@pytest.mark.parametrize(
    "name",
    [
        "static",
        "op-dbus-embed-static",
        "op-dbus-embed-static:latest",
        STATIC.repository,
        "static-1",
        "",
        None,
        "text-embedding-3-small",
        "text-embedding-ada-002",
    ],
)
def test_a_model_has_several_names(
    http: httpx.Client, right: list[list[float]], name: str | None
) -> None:
    """Serve the configured level under its names, and those that OpenAI's clients default to."""
    response = openai(http, TEXTS, model=name)
    assert close(vectors(response), right)
    assert response.json()["model"] == STATIC.repository


@pytest.mark.parametrize("name", ["bge-m3", "gpt-4", "none", "low", "embed"])
def test_an_unknown_model_is_not_found(http: httpx.Client, name: str) -> None:
    """Answer 404 with those that there are; one whose files are missing counts as unknown."""
    response = openai(http, "x", model=name)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (
        404,
        "model_not_found",
        "model",
    )
    assert "op-dbus-embed-static" in error["message"]
    assert http.get(f"/v1/models/{name}").status_code == 404
    assert http.post("/api/show", json={"model": name}).status_code == 404


def test_tei_gives_plain_lists(http: httpx.Client, right: list[list[float]]) -> None:
    """Answer `/embed` with a list of vectors, for a single text too."""
    assert close(http.post("/embed", json={"inputs": TEXTS}).json(), right)
    assert close(http.post("/embed", json={"inputs": TEXTS[0], "truncate": True}).json(), right[:1])
    assert http.post("/embed", json={"inputs": [[1, 2]]}).status_code == 400
    assert http.post("/embed", json={"inputs": "x", "normalize": False}).status_code == 400
    response = http.post("/embed_sparse", json={"inputs": "x"})
    assert (response.status_code, response.json()["error_type"]) == (424, "Backend")


def test_info_describes_what_serves(http: httpx.Client) -> None:
    """Give what toolhive reads: `max_client_batch_size`."""
    info = http.get("/info").json()
    assert info["max_client_batch_size"] == 2048
    assert info["max_input_length"] == 512
    assert "cpu:numpy" in info["provider"]
    assert info["model_id"] == STATIC.repository
    assert info["model_sha"] == STATIC.weights_sha256
    assert info["model_dtype"] == "fp32"
    # what has no measured or set value is absent
    assert not {"max_batch_tokens", "tokenization_workers"} & set(info)


def test_rerank_orders_by_cosine(http: httpx.Client, served: Running) -> None:
    """Order texts by their cosine with the query, in both forms."""
    query = "disk space"
    asked, *rows = of_bus(served, [query, *TEXTS])
    right = [sum(a * b for a, b in zip(asked, row, strict=True)) for row in rows]
    order = sorted(range(len(right)), key=lambda index: -right[index])
    body: dict[str, Any] = {"query": query, "texts": TEXTS, "return_text": True}
    found = http.post("/rerank", json=body).json()
    assert [row["index"] for row in found] == order
    assert order[0] == 2
    assert [row["score"] for row in found] == pytest.approx([right[index] for index in order])
    assert [row["text"] for row in found] == [TEXTS[index] for index in order]
    body = {"query": query, "documents": [{"text": text} for text in TEXTS], "top_n": 2}
    results = http.post("/v1/rerank", json=body).json()["results"]
    assert [row["index"] for row in results] == order[:2]
    assert results[0]["relevance_score"] == pytest.approx(right[2])


def test_ollama_is_answered_in_its_form(http: httpx.Client, right: list[list[float]]) -> None:
    """Give what ollama's clients read."""
    answer = http.post("/api/embed", json={"model": "static", "input": TEXTS}).json()
    assert close(answer["embeddings"], right)
    # 0 stands for all dimensions
    whole = http.post("/api/embed", json={"model": "static", "input": TEXTS, "dimensions": 0})
    assert close(whole.json()["embeddings"], right)
    assert answer["prompt_eval_count"] == sum((4, 4, 8))
    old = http.post("/api/embeddings", json={"model": "static", "prompt": TEXTS[0]}).json()
    assert close([old["embedding"]], right[:1])
    assert http.post("/api/embed", json={"model": "static", "input": []}).json()["embeddings"] == []
    (first, *_) = http.get("/api/tags").json()["models"]
    assert first["name"] == "op-dbus-embed-static:latest"
    shown = http.post("/api/show", json={"model": first["name"]}).json()
    assert shown["capabilities"] == ["embedding"]
    assert shown["model_info"]["op-dbus.embedding_length"] == 256
    assert shown["model_info"]["op-dbus.context_length"] == 512
    assert http.get("/api/version").json()["version"] == __version__
    (loaded,) = http.get("/api/ps").json()["models"]
    assert loaded == first
    # of a level that does not serve, nothing is made up
    assert first["digest"] == STATIC.weights_sha256
    assert first["details"] == {"family": "op-dbus", "quantization_level": "FP32"}
    response = http.post("/api/embed", json={"model": "bge-m3", "input": "x"})
    assert (response.status_code, list(response.json())) == (404, ["error"])


@pytest.mark.parametrize("nothing", [{}, {"input": None}, {"input": ""}, {"input": []}])
def test_ollama_preloads_a_model(http: httpx.Client, nothing: dict[str, Any]) -> None:
    """Load a model for a request without a text, and answer with no vectors."""
    body = {"model": "static", "keep_alive": -1, **nothing}
    answer = http.post("/api/embed", json=body)
    assert answer.status_code == 200
    assert answer.json()["embeddings"] == []
    for prompt in ({}, {"prompt": ""}, {"prompt": None}):
        old = http.post("/api/embeddings", json={"model": "static", "keep_alive": -1, **prompt})
        assert (old.status_code, old.json()) == (200, {"embedding": []})
    for path in ("/api/embed", "/api/embeddings"):
        assert http.post(path, json={**nothing, "model": "no-such-model"}).status_code == 404


def test_concurrent_requests_get_their_own_vectors(gateway: Gateway, served: Running) -> None:
    """Mix no answers of requests that run at one time."""
    texts = [f"unit number {number}" for number in range(64)]
    right = of_bus(served, texts)

    def ask(text: str) -> list[float]:
        with gateway.http() as http:
            return vectors(openai(http, text, encoding_format="base64"))[0]

    with ThreadPoolExecutor(16) as pool:
        assert close(list(pool.map(ask, texts)), right)


def test_health_names_the_proven_provider(http: httpx.Client) -> None:
    """Answer what serves."""
    health = http.get("/health").json()
    assert (health["status"], health["provider"]) == ("ready", "cpu:numpy")
