"""Embedding servers that share the work: each is proven, watched, dropped and tried again."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import numpy as np
import structlog
from numpy.typing import NDArray

from opdbus.engine.proof import FP32_TOLERANCE, LEAST_COSINE, Proof, compare
from opdbus.engine.remote import known_texts
from opdbus.engine.remote.http_client import HttpClient
from opdbus.engine.remote.request_forms import Busy, Form, NoRoute, Refused, forms
from opdbus.errors import ProofFailed, ProviderError, ServerUnreachable
from opdbus.settings.parsing import AUTO

if TYPE_CHECKING:
    from opdbus.engine.remote.known_texts import KnownTexts

log = structlog.get_logger()

# Texts of one request: enough for a good rate, few enough for the next text to wait for.
_MOST_TEXTS: Final = 64
# Requests that a server works on at a time.
LANES: Final = 4
# Pauses before a request that broke off is repeated.
_REPEAT_SECONDS: Final = (0.1, 0.4)
# Pause where a server that is busy names none.
_BUSY_SECONDS: Final = 0.25
# Texts of the proof that are sent alone, before all are sent together.
_ALONE: Final = 4
# Losses of cosine that no precision explains: above the first, and so many times those of most
# texts.
_UNEVEN_LOSS: Final = 1e-3
_UNEVEN: Final = 30.0
# The precisions that a server may be measured to have, the most exact first, and the ones that
# accept it. Nobody can tell one 16-bit format from the other.
_ACCEPTED: Final = {
    "fp32": {AUTO, "fp32", "fp16", "bf16"},
    "fp16": {AUTO, "fp16", "bf16"},
    "int8": {"int8", "int8-blocks"},
}
# Precisions that vectors may be measured to have later, by that of the proof.
_AS_EXACT: Final = {"fp32": {"fp32"}, "fp16": {"fp32", "fp16"}, "int8": {"fp32", "fp16", "int8"}}


@dataclass(frozen=True, slots=True)
class Terms:
    """What servers are asked for: the level, its model's name, the precision, and time limits."""

    level: str
    model: str
    precision: str = AUTO
    token: str = ""
    # of one request
    seconds: float = 30.0
    # for which a busy server is asked again, since callers wait meanwhile
    busy_seconds: float = 5.0
    # before a server that was dropped is tried again
    retry_seconds: Sequence[float] = (30.0, 60.0, 120.0, 300.0, 600.0)


def measured_precision(deviation: float, cosine: float) -> str:
    """Return the precision whose tolerance vectors keep; empty if they keep none."""
    if deviation <= FP32_TOLERANCE and cosine >= LEAST_COSINE["fp32"]:
        return "fp32"
    return next((name for name in ("fp16", "int8") if cosine >= LEAST_COSINE[name]), "")


class Server:
    """One embedding server; `prove` comes first. Safe to call from threads."""

    def __init__(self, url: str, known: KnownTexts, terms: Terms) -> None:
        self.address = url
        self.url, _, self._model = url.partition("#")
        self._known = known
        self._terms = terms
        self._client = HttpClient(self.url, terms.token, terms.seconds)
        self._form: Form | None = None
        self.precision = ""
        self.proof: Proof | None = None
        # number of texts of a request, known ones included
        self._most = _MOST_TEXTS
        # reason why it is not used; None once it is proven
        self.error: ProviderError | None = ProviderError(f"{self.url} is not proven")
        self.in_flight = 0
        # number of known texts that were right since the proof
        self.right = 0
        # time from which it may be asked again: it was busy, or was dropped
        self.ready_at = 0.0

    @property
    def name(self) -> str:
        """The address with the route and the model."""
        address = self.url.removesuffix(urlsplit(self.url).path) if self._client.path else self.url
        return f"{address}{self._form}"

    @property
    def room(self) -> int:
        """Number of texts of a request besides the known ones."""
        return max(1, self._most - self._known.share(self._most))

    def close(self) -> None:
        """Break its connections."""
        self._client.close()

    def prove(self, least: str = "") -> None:
        """Find the form that it answers, and require the right vectors; blocks.

        With `least`, it must be as exact as this precision. Raises ProofFailed, and ProviderError
        if it cannot be reached.
        """
        self._form = self._find_form()
        count = len(self._known.texts)
        batches: list[Sequence[int]] = [[n] for n in range(0, count, count // _ALONE)]
        seen = [self._ask_known(batch) for batch in batches]
        largest, vectors = self._largest_batch()
        self._most = len(largest)
        rest = [
            range(first, min(first + self._most, count)) for first in range(0, count, self._most)
        ]
        seen += [vectors, *map(self._ask_known, rest)]
        numbers = [number for batch in (*batches, largest, *rest) for number in batch]
        found, expected = np.concatenate(seen), self._known.vectors[numbers]
        deviation, cosine, _ = compare(found, expected)
        self._require_even(1.0 - (found.astype(np.float64) * expected).sum(axis=1), numbers)
        self.precision = self._require(deviation, cosine)
        if least and self.precision not in _AS_EXACT[least]:
            raise ProofFailed(f"{self.name} computes in {self.precision}, and before in {least}")
        nodes = {self.name: count}
        self.proof = Proof(nodes, {}, self.precision, deviation, cosine, time.time())

    def embed(self, texts: list[str]) -> NDArray[np.float32]:
        """Return the vectors of texts, among which known ones are sent and must be right.

        Raises Busy, ProofFailed for a deviation, ProviderError.
        """
        if len(texts) > self.room:
            parts = [texts[at : at + self.room] for at in range(0, len(texts), self.room)]
            # the first may go to another server; what is computed is not computed again
            first = self.embed(parts[0])
            return np.concatenate([first, *(self._wait(self.embed, part) for part in parts[1:])])
        drawn = self._known.draw(len(texts))
        if self._most == 1:
            # the known text goes before, in a request of its own
            self._check([], drawn)
            return self._ask(texts)
        return self._check(texts, drawn)

    def _check(self, texts: list[str], drawn: list[int]) -> NDArray[np.float32]:
        mixed, is_known = known_texts.mix(texts, [self._known.texts[number] for number in drawn])
        vectors = self._ask(mixed)
        deviation, cosine, _ = compare(vectors[is_known], self._known.vectors[drawn])
        found = measured_precision(deviation, cosine)
        if found not in _AS_EXACT[self.precision]:
            raise ProofFailed(
                f"{self.name} gave a known text a vector whose cosine to the model's is"
                f" {cosine:.4f}, after {self.right} right ones: it no longer computes in"
                f" {self.precision}, and its results cannot be trusted"
            )
        self.right += len(drawn)
        return vectors[~is_known]

    def _require_even(self, losses: NDArray[np.float64], numbers: Sequence[int]) -> None:
        """Raise ProofFailed if a few vectors are far worse than the others."""
        worst = int(np.argmax(losses))
        if losses[worst] > max(_UNEVEN_LOSS, _UNEVEN * float(np.quantile(losses, 0.25))):
            size = len(self._known.texts[numbers[worst]])
            raise ProofFailed(
                f"{self.name} gives the model's vectors to most known texts, but to one of {size}"
                f" characters a vector with the cosine {1 - losses[worst]:.4f}: it cuts texts"
                " earlier, or makes other tokens of them"
            )

    def _ask_known(self, numbers: Sequence[int]) -> NDArray[np.float32]:
        """Return the vectors of known texts, which are sent in a random order."""
        order = known_texts.shuffled(range(len(numbers)))
        vectors = self._wait(self._ask, [self._known.texts[numbers[place]] for place in order])
        return vectors[np.argsort(order)]

    def _largest_batch(self) -> tuple[list[int], NDArray[np.float32]]:
        """Return the most known texts that a request may have, some twice, and their vectors."""
        most = _MOST_TEXTS
        while True:
            batch = [number % len(self._known.texts) for number in range(most)]
            try:
                return batch, self._ask_known(batch)
            except Refused:
                if most == 1:
                    raise
                most //= 2

    def _find_form(self) -> Form:
        """Return the first form whose answer is right; raises ProviderError of the best other."""
        faults: list[ProviderError] = []
        number = len(self._known.texts) // 8
        for form in forms(self._client, self._model, self._terms.level, self._terms.model):
            self._form = form
            try:
                vectors = self._ask_known([number])
                self._require(*compare(vectors, self._known.vectors[[number]])[:2])
            except (ProofFailed, Refused, NoRoute) as error:
                faults.append(error)
            else:
                return form
        # an answer that was wrong says more than a route that is not there
        raise min(
            faults, key=lambda error: (isinstance(error, NoRoute), isinstance(error, Refused))
        )

    def _require(self, deviation: float, cosine: float) -> str:
        """Return the precision of vectors; raises ProofFailed if it is not the wanted one."""
        found, wanted = measured_precision(deviation, cosine), self._terms.precision
        if not found:
            raise ProofFailed(
                f"{self.name} gives vectors whose cosine to those of {self._terms.model} is only"
                f" {cosine:.4f}: it serves another model, or answers in another order"
            )
        if wanted not in _ACCEPTED[found]:
            advice = (
                "let the server compute in bf16 or more, or set OP_DBUS_PRECISION=int8 here"
                if found == "int8"
                else "set OP_DBUS_PRECISION=auto"
            )
            asked = "at least fp16" if wanted == AUTO else wanted
            raise ProofFailed(
                f"{self.name} computes in {found} (cosine {cosine:.6f}, deviation"
                f" {deviation:.1e}), and {asked} is wanted: {advice}"
            )
        return found

    def _wait(
        self, work: Callable[[list[str]], NDArray[np.float32]], texts: list[str]
    ) -> NDArray[np.float32]:
        """Return what `work` gives, again while the server is busy; raises Busy in the end."""
        give_up = time.monotonic() + self._terms.busy_seconds
        while True:
            try:
                return work(texts)
            except Busy as busy:
                pause = busy.seconds or _BUSY_SECONDS
                if time.monotonic() + pause > give_up:
                    raise
                time.sleep(pause)

    def _ask(self, texts: list[str]) -> NDArray[np.float32]:
        """Return vectors of length 1; repeats a request that broke off."""
        assert self._form  # noqa: S101 -- set by the proof
        pauses = list(_REPEAT_SECONDS)
        while True:
            try:
                vectors = self._form.embed(self._client, texts, self._known.dimension)
                break
            except Busy:
                raise
            except ServerUnreachable:
                if not pauses:
                    raise
                time.sleep(pauses.pop(0))
        lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
        if not (np.isfinite(lengths).all() and lengths.all()):
            raise ProofFailed(f"{self.name} gave vectors of no length, or with NaN in them")
        # some servers leave this to the client
        return np.asarray(vectors / lengths, np.float32)


class ServerPool:
    """The servers of a remote provider; takes texts where a session takes token ids.

    Each batch goes to the proven server that is least busy. One that fails is dropped with the
    reason and proven again after a pause. Once none is left, `run` raises. Safe to call from
    threads.
    """

    def __init__(self, urls: Sequence[str], known: KnownTexts, terms: Terms) -> None:
        self._known = known
        self._terms = terms
        self._servers = [Server(url, known, terms) for url in urls]
        self._failures = dict.fromkeys(range(len(urls)), 0)
        self._changed = threading.Condition()
        self._is_closed = False
        # least exact precision of the servers at first; others may not be less exact
        self._precision = ""

    def prove(self) -> None:
        """Prove all servers side by side; raises the errors of all if none passes; blocks."""
        threads = [self._start_proof(number) for number in range(len(self._servers))]
        for thread in threads:
            thread.join()
        if not self._proven:
            raise self._failure()
        self._precision = self.proof.precision

    def close(self) -> None:
        """Break all connections; a batch in progress fails at once."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for server in self._servers:
            server.close()

    @property
    def _proven(self) -> list[Server]:
        return [server for server in self._servers if not server.error]

    @property
    def proof(self) -> Proof:
        """The proofs of all servers together: the least exact figures."""
        proofs = [server.proof for server in self._proven if server.proof]
        least = max(proofs, key=lambda proof: list(_ACCEPTED).index(proof.precision))
        return Proof(
            {name: count for proof in proofs for name, count in proof.nodes.items()},
            {},
            least.precision,
            max(proof.max_deviation for proof in proofs),
            min(proof.min_cosine for proof in proofs),
            least.checked_at,
        )

    @property
    def hardware(self) -> str:
        """The servers that were proven, and the reasons why others are not used."""
        return "; ".join(str(server.error or server.name) for server in self._servers)

    @property
    def room(self) -> int:
        """Number of texts of a batch."""
        return max(server.room for server in self._proven)

    @property
    def lanes(self) -> int:
        """Number of batches at a time."""
        return LANES * len(self._servers)

    def run(self, texts: list[str]) -> NDArray[np.float32]:
        """Return the vectors (texts, dimension) of texts; raises ProviderError if none is left.

        An empty text is not sent, since many servers refuse it.
        """
        if not self._known.unmistakable.isdisjoint(texts):
            # a known text came back, as when a host is given its own gateway, or two each other's
            loop = ProofFailed(
                "the server asks this daemon for the vectors: name one that computes them itself"
            )
            for server in self._proven:
                self._drop(server, loop)
            raise loop
        vectors = np.tile(self._known.empty, (len(texts), 1))
        sent = [number for number, text in enumerate(texts) if text]
        if sent:
            vectors[sent] = self._run([texts[number] for number in sent])
        return vectors

    def _run(self, texts: list[str]) -> NDArray[np.float32]:
        give_up = time.monotonic() + self._terms.busy_seconds
        while True:
            server = self._take()
            try:
                vectors = server.embed(texts)
                # another batch may have shown meanwhile that it cannot be trusted
                if not server.error:
                    return vectors
            except Busy as busy:
                pause = busy.seconds or _BUSY_SECONDS
                if time.monotonic() + pause > give_up:
                    self._drop(server, busy)
                else:
                    server.ready_at = time.monotonic() + pause
            except ProviderError as error:
                self._drop(server, error)
            finally:
                with self._changed:
                    server.in_flight -= 1
                    self._changed.notify_all()

    def _take(self) -> Server:
        """Return the least busy server, as soon as one has room; raises ProviderError."""
        with self._changed:
            while True:
                self._retry_dropped()
                proven, now = self._proven, time.monotonic()
                if not proven or self._is_closed:
                    raise self._failure()
                free = [each for each in proven if each.in_flight < LANES and each.ready_at <= now]
                if free:
                    server = min(free, key=lambda each: each.in_flight)
                    server.in_flight += 1
                    return server
                pauses = [each.ready_at - now for each in proven if each.ready_at > now]
                self._changed.wait(min(pauses, default=None))

    def _failure(self) -> ProviderError:
        errors = [server.error for server in self._servers if server.error]
        kinds = [kind for kind in (ProofFailed, ServerUnreachable) if _has_kind(errors, kind)]
        kind = kinds[0] if kinds else ProviderError
        return kind("; ".join(map(str, errors)) or "the servers are used no more")

    def _drop(self, server: Server, error: ProviderError) -> None:
        """Use a server no more until it has passed another proof."""
        with self._changed:
            if server.error or self._is_closed:
                return
            number = self._servers.index(server)
            server.error = error
            server.ready_at = time.monotonic() + self._pause(number)
        left = len(self._proven)
        log.warning("remote server dropped", reason=str(error), servers_left=left)

    def _pause(self, number: int) -> float:
        """Return the seconds after which a server that failed is tried again."""
        failures, pauses = self._failures[number], self._terms.retry_seconds
        self._failures[number] += 1
        return pauses[min(failures, len(pauses) - 1)]

    def _retry_dropped(self) -> None:
        """Prove dropped servers again whose pause is over, on threads of their own."""
        for number, server in enumerate(self._servers):
            if server.error and server.ready_at <= time.monotonic() and self._precision:
                server.ready_at = math.inf
                self._start_proof(number)

    def _start_proof(self, number: int) -> threading.Thread:
        thread = threading.Thread(target=self._prove, args=(number,), name="proof", daemon=True)
        thread.start()
        return thread

    def _prove(self, number: int) -> None:
        """Prove a server, in place of the one that was dropped; waits if it is busy."""
        server = Server(self._servers[number].address, self._known, self._terms)
        with self._changed:
            old, self._servers[number] = self._servers[number], server
            server.error, server.ready_at = old.error, math.inf
        (server if self._is_closed else old).close()
        give_up = time.monotonic() + self._terms.busy_seconds
        error: ProviderError | None = None
        try:
            while True:
                try:
                    server.prove(self._precision)
                    break
                except Busy as busy:
                    pause = busy.seconds or _BUSY_SECONDS
                    if self._is_closed or time.monotonic() + pause > give_up:
                        raise
                    time.sleep(pause)
        except ProviderError as fault:
            error = fault
        except Exception as fault:  # a defect of ours: it must not be left out for good
            log.exception("remote server not proven", server=server.address)
            error = ProviderError(f"{server.address} could not be proven: {fault!r}")
        with self._changed:
            server.error, server.ready_at = error, 0.0
            if error:
                server.ready_at = time.monotonic() + self._pause(number)
            self._changed.notify_all()
        if error:
            log.warning("remote server refused", reason=str(error))
        else:
            log.info("remote server proven", server=server.name, precision=server.precision)


def _has_kind(errors: Sequence[ProviderError], kind: type[ProviderError]) -> bool:
    return any(isinstance(error, kind) for error in errors)
