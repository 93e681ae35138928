"""Routes of embedding servers: what real clients send, and what they expect."""

import base64
from array import array

import httpx
import pytest


def test_floats_and_base64_are_the_same_vectors(http: httpx.Client) -> None:
    """Give the same numbers in both encodings, in the order of the texts."""
    body = {"input": ["mail server", "network link"], "model": "static"}
    floats = http.post("/v1/embeddings", json=body).json()["data"]
    packed = http.post("/v1/embeddings", json={**body, "encoding_format": "base64"}).json()["data"]
    assert [row["index"] for row in floats] == [0, 1]
    for one, other in zip(floats, packed, strict=True):
        decoded = array("f", base64.b64decode(other["embedding"])).tolist()
        assert decoded == pytest.approx(one["embedding"])


def test_health_names_the_proven_provider(http: httpx.Client) -> None:
    """Answer what serves."""
    assert http.get("/health").json()["status"] == "ready"
