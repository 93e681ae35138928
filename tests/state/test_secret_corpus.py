"""Secrets of hundreds of kinds are hidden wherever they stand, and values of real hosts stay."""

import asyncio
import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from attacks.leaks import bytes_of, everything
from harness.running import STATE, STATE_PATH, Running, calling
from secret_corpus.further import further
from secret_corpus.measure import changed, harmless, measure_secrets, planted

from opdbus.state.redact import machine_key, redact, redact_object, redact_text
from opdbus.state.secret_text import CLEAN

LEAST_HIDDEN = 0.98
MOST_CHANGED = 0.001
# Every eighth object: all kinds, each at another place.
EVERY = 8


def leaks(secret: str, text: str) -> bool:
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
    assert len(rows) >= 15_000
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
        name for name, _, secrets in objects for s in secrets if any(leaks(s, t) for t in texts)
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


def test_redacting_the_corpus_again_changes_nothing() -> None:
    """Redacting twice equals redacting once, for names too."""
    for kind, each in itertools.islice(planted(), 0, None, 5):
        once = redact_object(each.identity, each.properties)
        assert redact_object(once.identity, once.properties) == once, (kind, each.place)
        assert redact_text(once.identity.name) == once.identity.name, (kind, each.place)


@pytest.mark.parametrize("text", ["mysql -p{}", "token={}", "see --password {} here", "a {}'"])
def test_what_keeps_names_apart_stays_in_texts(text: str) -> None:
    """Keep the digest behind a hidden secret, but no digits behind anything else."""
    apart = text.format("[redacted]~0123abcd")
    assert redact_text(apart) == apart
    more = redact_text(f"{apart} mysql -phunter2x~4567beef")
    assert "hunter" not in more
    assert "beef" not in more


def test_machines_without_an_id_have_keys_of_their_own(tmp_path: Path) -> None:
    """Take the first id that there is, and for none at all another key each time."""
    empty, one, other = (tmp_path / name for name in ("empty", "one", "other"))
    for path in (empty, one, other):
        path.write_text("" if path == empty else path.name)
    missing = str(tmp_path / "missing")
    key = machine_key((missing, str(empty), str(one), str(other)))
    assert key == machine_key((str(one),)) != machine_key((str(other),))
    assert machine_key((missing,)) != machine_key((missing, missing))


HEX: Final = "9b3f5c0e71d24a6b8c0d9e1f2a3b4c5d"


@pytest.mark.parametrize(
    "token",
    [
        *(f"zq_{HEX}", f"kd_{HEX}{HEX}", f"0x{HEX}{HEX}", f"st.{HEX[:24]}.{HEX}.{HEX}"),
        "9b3f5c0e-71d2-4a6b-8c0d-9e1f2a3b4c5d:Kq7Zr2Vt9Xw4Yb6Nc1Md8Lf3",
        f"{HEX}:Kq7Zr2Vt9Xw4Yb6Nc1Md8Lf3",
    ],
)
def test_hexadecimal_tokens_are_hidden(token: str) -> None:
    """Hide hexadecimal tokens with a prefix, private keys, and UUIDs before a secret."""
    for text in (token, f"uses {token} here", f"KEY_FILE={token}", f"A=B={token}"):
        assert not leaks(HEX, redact_text(text).replace("-", "")), text


@pytest.mark.parametrize(
    "text",
    [
        *(f"/var/lib/zq_{HEX}/data", f"sha256:{HEX}{HEX}", f"layer {HEX}", f"img@{HEX}"),
        *("9b3f5c0e-71d2-4a6b-8c0d-9e1f2a3b4c5d:ext4", "0x9b3f5c0e71d24a6b", "st.example.com"),
        *("nvme-Acme_X2_1TB_S3Z1NB0K1234567Q", "ata-ST4000NM0035-1V4107_ZC1A9XQ2", "host:*:tcp"),
        *("gpio pin 1017", "at pin 1234", "the pin is loose", "a user pin 12"),
    ],
)
def test_digests_disks_and_pins_of_hardware_stay(text: str) -> None:
    """Leave digests, paths, names of disks, and pins that are wired."""
    assert redact_text(text) == text


@pytest.mark.parametrize(
    "text",
    [
        *("SIM pin 471108", "the unlock pin is 471108", "your pin: 471108", "pin code 471108"),
        *("*:bob:Qx471108", "AUTH='* : bob : Qx471108'", "[mx.example.com]:587 bob:Qx471108"),
        *(
            'a="bob@isp" * "x471108" *',
            """sh -c 'x '"'"'a'"'"' identified by '"'"'x471108'"'"';'""",
        ),
    ],
)
def test_pins_and_lines_of_passwords_are_hidden(text: str) -> None:
    """Hide PINs of persons and passwords inside quoted lines."""
    assert "471108" not in redact_text(text)


def test_clean_texts_hold_no_secret() -> None:
    """Remember texts without secrets only, and not without bound."""
    CLEAN.hashes.clear()
    redact({"description": "Web server", "exec": "/bin/x --password hunter2x", "name": "web"})
    assert hash("Web server") in CLEAN.hashes
    assert hash("/bin/x --password hunter2x") not in CLEAN.hashes
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
