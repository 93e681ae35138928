"""Secrets of hundreds of kinds are hidden wherever they stand, and values of real hosts stay."""

import asyncio
import json
import time
from collections.abc import Callable

import pytest
from attacks.leaks import bytes_of, everything
from running import STATE, STATE_PATH, Running, calling
from secret_corpus.further import further
from secret_corpus.measure import changed, harmless, measure_secrets

from opdbus.state.redact import redact, redact_text
from opdbus.state.secret_text import CLEAN

LEAST_HIDDEN = 0.98
MOST_CHANGED = 0.001
# Every eleventh object: all kinds, each at another place.
EVERY = 11


def seen_of(secret: str, text: str) -> bool:
    """Return whether six characters in a row of a secret are in a text."""
    lower, secret = text.lower(), secret.lower()
    return any(secret[at : at + 6] in lower for at in range(len(secret) - 5))


@pytest.mark.parametrize("part", ["open", "held"])
def test_kinds_of_secrets_are_hidden(part: str) -> None:
    """Hide at least 98 of 100 secrets of the corpus, of the kinds that nobody looked at, too."""
    seen = [place for places in measure_secrets(EVERY)[part].values() for place in places]
    assert len(seen) > 200
    assert sum(not place for place in seen) / len(seen) >= LEAST_HIDDEN


def test_values_of_real_hosts_stay() -> None:
    """Change at most one in a thousand of the harmless values that hosts have."""
    rows = harmless()
    assert len(rows) >= 20_000
    assert len(changed(rows)) / len(rows) <= MOST_CHANGED


def test_further_kinds_are_nowhere(daemons: Callable[..., Running]) -> None:
    """Find nothing of kinds that were made up later in answers, signals, logs and files."""
    objects = further()
    published = [("app", "thing", name, properties) for name, properties, _ in objects]

    async def work() -> str:
        async with calling(daemon.bus) as caller:
            await caller.vectorized()
            # twice with other values, so that changes and history have them, too
            for rows in (published, [(*row[:3], {**row[3], "more": 1}) for row in published]):
                await caller.call(
                    STATE_PATH, f"{STATE}.Publish", "sa(sssa{sv})a{sv}", "app", rows, {}
                )
            await caller.vectorized()
            return await everything(caller)

    with daemons(LOG_LEVEL="debug") as daemon:
        answers = asyncio.run(work())
        while_running = bytes_of(daemon)
        assert daemon.stop() == 0
        logs = daemon.logs()
    files = {**while_running, **{f"{n} after": data for n, data in bytes_of(daemon).items()}}
    texts = [answers, logs, *(data.decode("latin-1") for data in files.values())]
    assert {"memory.db", "memory.db-wal"} <= while_running.keys()
    found = {
        name for name, _, secrets in objects for s in secrets if any(seen_of(s, t) for t in texts)
    }
    assert not found


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sha256", "sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU"),
        ("machine_id", "5f0c2e9be1b24c0f9a3de07c11f0aa42"),
        ("serial", "S3Z1NB0K1234567QRTX9"),
        ("public_key", "q7Yt0s6mXl1Hn0WvZcT3pRfKe8bJd5uGaLo4iEwS2nY="),
        ("line", "PublicKey = q7Yt0s6mXl1Hn0WvZcT3pRfKe8bJd5uGaLo4iEwS2nY="),
        ("fingerprint", "SHA256:uNiVztksCsDhcc0u9e8BrDXVUYSwsSXSoPBoHeC1ihQ"),
        ("config", "ConditionPathIsMountPoint=/usr/lib/x86_64-linux-gnu/Manager1Applet"),
    ],
)
def test_random_words_stay_where_they_are_normal(name: str, value: str) -> None:
    """Leave digests, serial numbers, ids and public keys, by their field or the name before."""
    assert redact({name: value}) == {name: value}
    assert redact({name: [value, value]}) == {name: [value, value]}


@pytest.mark.parametrize("field", ["value", "serial", "checksum"])
def test_known_formats_are_hidden_in_every_field(field: str) -> None:
    """Hide a token of a known format, also in a field whose values are random."""
    token = "gsk_" + "Ab3dEf6hIj9l" * 4
    assert "Ab3dEf" not in json.dumps(redact({field: token}))


def test_clean_texts_hold_no_secret() -> None:
    """Remember texts without secrets only, and not without bound."""
    CLEAN.hashes.clear()
    redact({"description": "Web server", "exec": "/bin/x --password hunter2x", "name": "web"})
    assert "Web server" in CLEAN
    assert "/bin/x --password hunter2x" not in CLEAN
    redact({"password": "hunter22x", "user": {"password": "hunter33x"}})
    assert not any("hunter" in str(kept) for kept in vars(CLEAN).values())
    assert all(type(kept) is int for kept in CLEAN.hashes)
    redact({str(number): f"text {number}" for number in range(40_000)})
    redact({"last": "one more"})
    assert len(CLEAN.hashes) <= 40_001


GRAMMAR = [
    *("a- ", "sk-", "A-", "echo a ", "printf -a ", "password a ", "password is ", "a:1:a:a:"),
    *("://a:", "=", "....", "0.", "a=", '"a", "', "[a]:1 a:", "a * b ", "aA0", "aA0/", "aA0-"),
    *("user a identified by ", "-----BEGIN CERTIFICATE-----", "MIIa", "a\u0301", "pass\u200b"),
]


@pytest.mark.parametrize("token", GRAMMAR)
def test_redaction_is_linear(token: str) -> None:
    """Take at most eight times as long for four times the text."""

    def seconds(count: int) -> float:
        text = (token * count)[:count] + "!"
        start = time.process_time()
        redact_text(text)
        return time.process_time() - start

    seconds(100)
    short = min(seconds(20_000) for _ in range(3))
    long = min(seconds(80_000) for _ in range(2))
    assert long < max(8 * short, 0.05)
