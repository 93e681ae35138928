"""Serve sentence-transformers with FastAPI, as people do: `fastapi_server.py FOLDER PORT`."""

import sys

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer

app = FastAPI()
model = SentenceTransformer(sys.argv[1], device="cpu")


class Request(BaseModel):
    """The body of a request."""

    input: str | list[str]


# not a coroutine, so that FastAPI runs it on a thread
@app.post("/v1/embeddings")
def embeddings(request: Request) -> dict[str, object]:
    """Return the vectors in OpenAI's form."""
    texts = [request.input] if isinstance(request.input, str) else request.input
    vectors = model.encode(texts).tolist()
    return {"data": [{"index": n, "embedding": vector} for n, vector in enumerate(vectors)]}


uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), log_level="error")
