"""An embedding server in place of a runtime: it is proven, and watched while it serves."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from opdbus.engine.proof import FP32_TOLERANCE, LEAST_COSINE, Proof, compare
from opdbus.engine.remote import known_texts
from opdbus.engine.remote.http_client import HttpClient
from opdbus.engine.remote.request_forms import Busy, Form, NoRoute, Refused, forms
from opdbus.errors import ProofFailed, ProviderError, ServerUnreachable
from opdbus.settings.parsing import AUTO

if TYPE_CHECKING:
    from opdbus.engine.remote.known_texts import KnownTexts

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
    """Terms for a server: the level, its model's name, the precision, and time limits."""

    level: str
    model: str
    precision: str = AUTO
    token: str = ""
    # of one request
    seconds: float = 30.0
    # for which a busy server is asked again, since callers wait meanwhile
    busy_seconds: float = 5.0


def measured_precision(deviation: float, cosine: float) -> str:
    """Return the precision whose tolerance vectors keep; empty if they keep none."""
    if deviation <= FP32_TOLERANCE and cosine >= LEAST_COSINE["fp32"]:
        return "fp32"
    return next((name for name in ("fp16", "int8") if cosine >= LEAST_COSINE[name]), "")


class RemoteServer:
    """The server of a remote provider; takes texts where a session takes token ids.

    `prove` comes first. After its first failure `run` raises that one; the chain of providers
    opens the next one, and later this one anew. Safe to call from threads.
    """

    def __init__(self, url: str, known: KnownTexts, terms: Terms) -> None:
        self.url, _, self._model = url.partition("#")
        self._known = known
        self._terms = terms
        self._client = HttpClient(self.url, terms.token, terms.seconds)
        self._form: Form | None = None
        self.precision = ""
        # number of texts of a request, known ones included
        self._most = _MOST_TEXTS
        # the first failure, after which nothing is sent
        self._error: ProviderError | None = None
        # number of known texts that were right since the proof
        self._right = 0
        self._closed = threading.Event()

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
        """Break its connections; a batch in progress fails at once."""
        self._closed.set()
        self._client.close()

    def prove(self) -> Proof:
        """Find the form that it answers, and require the right vectors; blocks.

        Raises ProofFailed, and ProviderError if it cannot be reached.
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
        nodes = {self.name: count}
        return Proof(nodes, {}, self.precision, deviation, cosine, time.time())

    def run(self, texts: list[str]) -> NDArray[np.float32]:
        """Return the vectors (texts, dimension) of texts; raises ProviderError.

        An empty text is not sent, since many servers refuse it.
        """
        sent = [number for number, text in enumerate(texts) if text]
        vectors = np.tile(self._known.empty, (len(texts), 1))
        try:
            if not self._known.unmistakable.isdisjoint(texts):
                # as when a host is given its own gateway, or two each other's
                raise ProofFailed(
                    "the server asks this daemon for the vectors: name one that computes them"
                    " itself"
                )
            for first in range(0, len(sent), self.room):
                numbers = sent[first : first + self.room]
                vectors[numbers] = self._embed([texts[number] for number in numbers])
        except ProviderError as error:
            self._error = self._error or error
        # another batch may have shown meanwhile that it cannot be trusted
        if self._error:
            raise self._error
        return vectors

    def _embed(self, texts: list[str]) -> NDArray[np.float32]:
        """Return the vectors of texts, among which known ones are sent and must be right.

        Raises ProofFailed for a deviation, ProviderError.
        """
        if self._error:
            raise self._error
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
                f" {cosine:.4f}, after {self._right} right ones: it no longer computes in"
                f" {self.precision}, and its results cannot be trusted"
            )
        self._right += len(drawn)
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
        texts = [self._known.texts[numbers[place]] for place in order]
        return self._ask(texts)[np.argsort(order)]

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

    def _ask(self, texts: list[str]) -> NDArray[np.float32]:
        """Return vectors of length 1; asks again where the server is busy or a request broke off.

        Raises the last error in the end.
        """
        assert self._form  # noqa: S101 -- set by the proof
        give_up = time.monotonic() + self._terms.busy_seconds
        pauses = list(_REPEAT_SECONDS)
        while True:
            try:
                vectors = self._form.embed(self._client, texts, self._known.dimension)
                break
            except Busy as busy:
                pause = busy.seconds or _BUSY_SECONDS
                if time.monotonic() + pause > give_up or self._closed.wait(pause):
                    raise
            except ServerUnreachable:
                if not pauses or self._closed.wait(pauses.pop(0)):
                    raise
        lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
        if not (np.isfinite(lengths).all() and lengths.all()):
            raise ProofFailed(f"{self.name} gave vectors of no length, or with NaN in them")
        # some servers leave this to the client
        return np.asarray(vectors / lengths, np.float32)
