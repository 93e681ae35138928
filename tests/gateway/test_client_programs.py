"""Client programs of other projects, unchanged, on the gateway over TCP with a token."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from harness.gateways import TOKEN, Gateway
from harness.running import PATIENCE_SECONDS, Running

from gateway.test_embeddings import of_bus

CLIENTS = Path(os.environ.get("CLIENTS", ROOT / ".clients")).absolute()
PYTHON = CLIENTS / "python/bin/python"
NODE = CLIENTS / "node"
RESULT = ROOT / "benchmarks/results/2026-11-27-clients.json"
pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(not PYTHON.exists(), reason="no client programs: `make clients`"),
]
MODEL = "op-dbus-embed-static"
TEXTS = ["mail server", "network link", "a disk that is nearly full", "Öl für die Bühne"]
READ = """
import json, os
URL, TOKEN, MODEL = (os.environ[name] for name in ("URL", "TOKEN", "MODEL"))
TEXTS = json.loads(os.environ["TEXTS"])
def give(vectors):
    print(json.dumps([[float(number) for number in vector] for vector in vectors]))
"""
OPENAI = """
from openai import OpenAI
client = OpenAI(base_url=URL + "/v1", api_key=TOKEN, max_retries=0)
give(row.embedding for row in client.embeddings.create(model=MODEL, input=TEXTS).data)
"""
LANGCHAIN = """
from langchain_openai import OpenAIEmbeddings
client = OpenAIEmbeddings(model=MODEL, base_url=URL + "/v1", api_key=TOKEN, max_retries=0{more})
give(client.embed_documents(TEXTS))
"""
HUGGINGFACE = """
from huggingface_hub import InferenceClient
give(InferenceClient(base_url=URL, token=TOKEN).feature_extraction(TEXTS))
"""
LLAMA_OPENAI = """
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
client = OpenAILikeEmbedding(model_name=MODEL, api_base=URL + "/v1", api_key=TOKEN, max_retries=0)
give(client.get_text_embedding_batch(TEXTS))
"""
LLAMA_TEI = """
from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference
client = TextEmbeddingsInference(model_name=MODEL, base_url=URL, auth_token=TOKEN)
give(client.get_text_embedding_batch(TEXTS))
"""
# its own class knows OpenAI's names of models alone
LLAMA_OWN = """
from llama_index.embeddings.openai import OpenAIEmbedding
client = OpenAIEmbedding(api_base=URL + "/v1", api_key=TOKEN, max_retries=0)
give(client.get_text_embedding_batch(TEXTS))
"""
HAYSTACK = """
from haystack import Document
from haystack.components.embedders import OpenAIDocumentEmbedder
from haystack.utils import Secret
client = OpenAIDocumentEmbedder(api_key=Secret.from_token(TOKEN), model=MODEL,
    api_base_url=URL + "/v1", progress_bar=False)
found = client.run(documents=[Document(content=text) for text in TEXTS])
give(document.embedding for document in found["documents"])
"""
LITELLM = """
import litellm
found = litellm.embedding(model="openai/" + MODEL, api_base=URL + "/v1", api_key=TOKEN, input=TEXTS)
give(row["embedding"] for row in found.data)
"""
CHROMA = """
from chromadb.utils.embedding_functions import {name}
give({name}({arguments})(TEXTS))
"""
OLLAMA = """
import ollama
give(ollama.Client(host=URL).embed(model=MODEL, input=TEXTS).embeddings)
"""
OLLAMA_OLD = """
import ollama
client = ollama.Client(host=URL)
give(client.embeddings(model=MODEL, prompt=text).embedding for text in TEXTS)
"""
# name -> distribution, program
PROGRAMS = {
    "openai (Python)": ("openai", OPENAI),
    "langchain-openai, check_embedding_ctx_length=False": (
        "langchain-openai",
        LANGCHAIN.format(more=", check_embedding_ctx_length=False"),
    ),
    "huggingface_hub InferenceClient": ("huggingface_hub", HUGGINGFACE),
    "llama-index OpenAILikeEmbedding": ("llama-index-embeddings-openai-like", LLAMA_OPENAI),
    "llama-index OpenAIEmbedding": ("llama-index-embeddings-openai", LLAMA_OWN),
    "llama-index TextEmbeddingsInference": (
        "llama-index-embeddings-text-embeddings-inference",
        LLAMA_TEI,
    ),
    "haystack-ai OpenAIDocumentEmbedder": ("haystack-ai", HAYSTACK),
    "litellm": ("litellm", LITELLM),
    "chromadb OpenAIEmbeddingFunction": (
        "chromadb",
        CHROMA.format(
            name="OpenAIEmbeddingFunction",
            arguments="api_key=TOKEN, model_name=MODEL, api_base=URL + '/v1'",
        ),
    ),
    "chromadb HuggingFaceEmbeddingServer": (
        "chromadb",
        CHROMA.format(
            name="HuggingFaceEmbeddingServer", arguments="url=URL + '/embed', api_key=TOKEN"
        ),
    ),
    "chromadb OllamaEmbeddingFunction": (
        "chromadb",
        CHROMA.format(name="OllamaEmbeddingFunction", arguments="url=URL, model_name=MODEL"),
    ),
    "ollama embed": ("ollama", OLLAMA),
    "ollama embeddings": ("ollama", OLLAMA_OLD),
}
NODE_PROGRAM = """
import OpenAI from "openai";
const {URL: url, TOKEN, MODEL, TEXTS} = process.env;
const client = new OpenAI({baseURL: url + "/v1", apiKey: TOKEN, maxRetries: 0});
const found = await client.embeddings.create({model: MODEL, input: JSON.parse(TEXTS)});
console.log(JSON.stringify(found.data.map((row) => row.embedding)));
"""
VERSION = "import importlib.metadata as m, sys; print(m.version(sys.argv[1]))"


@pytest.fixture(scope="module")
def environ(served: Running, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Run a gateway on TCP, and give the environment of a client: its address, token and texts."""
    folder = tmp_path_factory.mktemp("tcp")
    token = folder / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    with Gateway(served, folder, "--listen", "127.0.0.1:0", HTTP_TOKEN_FILE=token) as gateway:
        yield {
            "PATH": f"{NODE}/node_modules/.bin:{os.environ['PATH']}",
            "HOME": str(folder),
            "URL": f"http://127.0.0.1:{gateway.port('http')}",
            "TOKEN": TOKEN,
            "MODEL": MODEL,
            "TEXTS": json.dumps(TEXTS),
            # ollama's client has no parameter for it
            "OLLAMA_API_KEY": TOKEN,
            # these programs would ask the network
            "HAYSTACK_TELEMETRY_ENABLED": "False",
            "ANONYMIZED_TELEMETRY": "False",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        }
        assert "Traceback" not in gateway.log.read_text()


@pytest.fixture(scope="module")
def right(served: Running) -> list[list[float]]:
    """Compute the vectors of TEXTS over the bus."""
    return of_bus(served, TEXTS)


@pytest.fixture(scope="module")
def results() -> Iterator[dict[str, dict[str, Any]]]:
    """Collect how each client did; into the repository where CLIENTS_RECORD is set."""
    found: dict[str, dict[str, Any]] = {}
    yield found
    if "CLIENTS_RECORD" in os.environ:
        rows = [{"client": name} | row for name, row in found.items()]
        RESULT.write_text(json.dumps({"clients": rows}, indent=1) + "\n", encoding="utf-8")


def run(command: list[str], environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a client program in the folder of Node's packages."""
    return subprocess.run(
        command,
        env=environ,
        cwd=NODE if NODE.exists() else None,
        capture_output=True,
        text=True,
        check=False,
        timeout=4 * PATIENCE_SECONDS,
    )


def check(ran: subprocess.CompletedProcess[str], right: list[list[float]]) -> None:
    """Compare the vectors that a program printed with those of the bus, in order."""
    assert ran.returncode == 0, ran.stderr[-3000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    assert len(found) == len(right)
    for one, other in zip(found, right, strict=True):
        assert one == pytest.approx(other, abs=1e-5)


@pytest.mark.parametrize("name", PROGRAMS)
def test_python_client(
    name: str,
    environ: dict[str, str],
    right: list[list[float]],
    results: dict[str, dict[str, Any]],
) -> None:
    """Give a Python client the vectors that the bus gives."""
    distribution, program = PROGRAMS[name]
    version = run([str(PYTHON), "-c", VERSION, distribution], environ).stdout.strip()
    if not version:
        pytest.skip(f"there is no {distribution}: `make clients`")
    results[name] = {"version": version, "passed": False}
    check(run([str(PYTHON), "-c", READ + program], environ), right)
    results[name]["passed"] = True


def test_token_ids_of_langchain(
    environ: dict[str, str], results: dict[str, dict[str, Any]]
) -> None:
    """Refuse what LangChain sends by default, and name the option that makes it send texts."""
    # litellm brings the ids that tiktoken would fetch
    where = "import litellm.litellm_core_utils as m; print(next(iter(m.__path__)) + '/tokenizers')"
    cache = run([str(PYTHON), "-c", where], environ).stdout.strip()
    if not cache:
        pytest.skip("there is no litellm: `make clients`")
    program = READ + LANGCHAIN.format(more="")
    ran = run([str(PYTHON), "-c", program], environ | {"TIKTOKEN_CACHE_DIR": cache})
    version = run([str(PYTHON), "-c", VERSION, "langchain-openai"], environ).stdout.strip()
    name = "langchain-openai, token ids refused"
    results[name] = {"version": version, "passed": False}
    assert ran.returncode
    assert "Error code: 400" in ran.stderr, ran.stderr[-3000:]
    assert "check_embedding_ctx_length=False" in ran.stderr
    results[name]["passed"] = True


def test_node_client(
    environ: dict[str, str], right: list[list[float]], results: dict[str, dict[str, Any]]
) -> None:
    """Give OpenAI's client for Node the vectors that the bus gives."""
    node = shutil.which("node", path=environ["PATH"])
    if not node or not (NODE / "node_modules/openai").exists():
        pytest.skip("there is no node, or no openai for it: `make clients`")
    command = [node, "--input-type=module", "-e"]
    package = json.loads((NODE / "node_modules/openai/package.json").read_text(encoding="utf-8"))
    results["openai (Node)"] = {"version": package["version"], "passed": False}
    check(run([*command, NODE_PROGRAM], environ), right)
    results["openai (Node)"]["passed"] = True


def test_curl(
    environ: dict[str, str], right: list[list[float]], results: dict[str, dict[str, Any]]
) -> None:
    """Give curl the vectors that the bus gives."""
    if not shutil.which("curl"):
        pytest.skip("there is no curl")
    version = run(["curl", "--version"], environ).stdout.split()[1]
    results["curl"] = {"version": version, "passed": False}
    body = json.dumps({"inputs": TEXTS})
    token = f"Authorization: Bearer {TOKEN}"
    check(
        run(["curl", "-sS", "-H", token, f"{environ['URL']}/embed", "--json", body], environ), right
    )
    results["curl"]["passed"] = True
