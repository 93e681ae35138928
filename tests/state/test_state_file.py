"""Bad state files give one clear sentence with a place; good ones are read as they are."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import EXAMPLE
from harness.running import state_file
from hypothesis import given, settings
from hypothesis import strategies as st

from opdbus.errors import StateFileError
from opdbus.state import document
from opdbus.state.document import json_path, parse
from opdbus.state.file import MAX_BYTES, StateFile, signature

PATH = Path("/x/state.json")
HEAD = '{\n  "version": 1,\n  "plugins": {\n'


def refusal(path: Path) -> str:
    """Give the sentence with which a state file is refused."""
    with pytest.raises(StateFileError) as caught:
        StateFile(path).read()
    return str(caught.value)


# The text; then line, column, JSON path, and words of the sentence.
FAULTS = {
    "truncated in a value": (HEAD + '    "net": {"a": [1,', 4, 21, "$.plugins.net.a[0]", "ends in"),
    "truncated in a string": (HEAD + '    "net": "eth', 4, 12, "$.plugins.net", "no closing quote"),
    "truncated after a key": (HEAD + '    "net":', 4, 11, "$.plugins.net", "ends in the middle"),
    "missing comma": (HEAD + '"a": {} \n "b": {}}}', 5, 2, "$.plugins.a", "a comma is missing"),
    "missing colon": (
        HEAD + '"a": {"x": [1]},\n "b" {}}}',
        5,
        6,
        "$.plugins.b",
        "a colon is missing",
    ),
    "two documents": ('{"version": 1,\n "plugins": {}}\n{}', 3, 1, "$", "more than one object"),
    "key twice": (
        HEAD + '"a": {},\n "b": {},\n  "a": {}}}',
        6,
        3,
        "$.plugins.a",
        '"a" is given twice',
    ),
    "key twice at the top": (
        '{"version": 1,\n"plugins": {},\n"version": 1}',
        3,
        1,
        "$.version",
        "twice",
    ),
    "key twice, deep": (
        HEAD + '"a": {"b": {\n"c d": 1,\n  "c d": 2}}}}',
        6,
        3,
        '$.plugins.a.b["c d"]',
        "twice",
    ),
    "key twice, in lists": (
        HEAD + '"a": {"l": [{"x": 1}, [\n{"x": 1, "y": 2, "x": 3}]]}}}',
        5,
        18,
        "$.plugins.a.l[1][0].x",
        "twice",
    ),
    "key twice, spelt differently": (
        HEAD + '"\\u00e9": {},\n"\u00e9": {}}}',
        5,
        1,
        '$.plugins["\\u00e9"]',
        "twice",
    ),
    "NaN": (HEAD + '"a": {"x":\n  NaN}}}', 5, 3, "$.plugins.a.x", "NaN is not JSON"),
    "Infinity": (
        HEAD + '"a": {"x": [0, Infinity]}}}',
        4,
        16,
        "$.plugins.a.x[1]",
        "Infinity is not",
    ),
    "-Infinity": (HEAD + '"a": {"x": -Infinity}}}', 4, 12, "$.plugins.a.x", "-Infinity is not"),
    "1e999": (HEAD + '"a": {"x": -1e999}}}', 4, 12, "$.plugins.a.x", "too large"),
    "5000 digits": (HEAD + f'"a": {{"x": {"9" * 5000}}}}}}}', 4, 12, "$.plugins.a.x", "too large"),
    "400 digits, then NaN": (
        HEAD + f'"a": {{"x": {"9" * 400},\n"y": NaN}}}}}}',
        5,
        6,
        "$.plugins.a.y",
        "NaN",
    ),
    "half a pair": (HEAD + '"a": {"x": "\\ud800"}}}', 4, 12, "$.plugins.a.x", "surrogate"),
    "low half": (HEAD + '"a": {"x": "\\uDE00\\uD83D"}}}', 4, 12, "$.plugins.a.x", "surrogate"),
    "half a pair in a key": (
        HEAD + '"a": {"\\ud800": 1}}}',
        4,
        7,
        '$.plugins.a["\\ud800"]',
        "surrogate",
    ),
    "NUL": (HEAD + '"a": {"x": ["b", "c\\u0000d"]}}}', 4, 18, "$.plugins.a.x[1]", "NUL"),
    "NUL in a key": (HEAD + '"a": {"\\u0000": 1}}}', 4, 7, '$.plugins.a["\\u0000"]', "NUL"),
    "raw NUL": (HEAD + '"a": {"x": "\0"}}}', 4, 13, "$.plugins.a.x", "control character"),
    "65 levels": (
        HEAD + '"a": ' + '{"b":' * 62 + "\n[0]" + "}" * 64,
        5,
        1,
        "$.plugins.a" + ".b" * 62,
        "64",
    ),
    "2000 levels": (
        '{"version": 1,\n"plugins": ' + "[" * 2000,
        2,
        75,
        "$.plugins" + "[0]" * 63,
        "64",
    ),
    "comma at the end of a list": (HEAD + '"a": [1, \n ]}}', 4, 8, "$.plugins.a[0]", "this comma"),
    "comma at the end": (HEAD + '"a": {}, }}', 4, 8, "$.plugins.a", "nothing follows this comma"),
    "two commas": (HEAD + '"a": [1,, 2]}}', 4, 9, "$.plugins.a[0]", "a value must begin"),
    "comment": ("// no\n{}", 1, 1, "$", "a value must begin"),
    "single quotes": ("{\n'version': 1}", 2, 1, "$", "double quotes"),
    "empty": ("", 1, 1, "$", "the file is empty"),
    "blank": (" \n ", 2, 2, "$", "the file is empty"),
    "a list": ("\n [1]", 2, 2, "$", "must be an object"),
    "a string": ('"x"', 1, 1, "$", "must be an object"),
    "null": ("null", 1, 1, "$", "must be an object"),
    "no version": ('\n{"plugins": {}}', 2, 1, "$", 'add "version": 1'),
    "version 2": ('{"plugins": {},\n "version": 2}', 2, 13, "$.version", "version 2 is unknown"),
    "version 1.5": (
        '{"plugins": {}, "version": 1.5}',
        1,
        28,
        "$.version",
        "version 1.5 is unknown",
    ),
    "version a string": (
        '{\n"version": "1"}',
        2,
        12,
        "$.version",
        '"version" must be the number 1',
    ),
    "version true": ('{"version": true}', 1, 13, "$.version", "version true is unknown"),
    "version null": ('{"version": null}', 1, 13, "$.version", "version null is unknown"),
    "version a list": ('{"version": [1]}', 1, 13, "$.version", "must be the number 1"),
    "version an object": ('{"version": {"a": 1}}', 1, 13, "$.version", "must be the number 1"),
    "no plugins": ('{"version": 1}', 1, 1, "$", 'add "plugins": {}'),
    "plugins a list": ('{"version": 1,\n"plugins": [{}]}', 2, 12, "$.plugins", "must be an object"),
    "plugins null": ('{"version": 1,\n"plugins": null}', 2, 12, "$.plugins", "must be an object"),
    "plugin a list": (HEAD + '"a": {},\n"b": []}}', 5, 6, "$.plugins.b", "must be an object"),
    "plugin a number": (HEAD + '"a.b": 7}}', 4, 8, '$.plugins["a.b"]', "must be an object"),
    "plugin without name": (HEAD + '"": {}}}', 4, 5, '$.plugins[""]', "needs a name"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_placed(tmp_path: Path, fault: str) -> None:
    """Say file, line, column and JSON path of what is wrong, in one sentence on one line."""
    text, line, column, where, words = FAULTS[fault]
    path = tmp_path / "state.json"
    path.write_text(text, encoding="utf-8", newline="")
    said = refusal(path)
    assert said.startswith(f"{path}: line {line} column {column} ({where}): ")
    assert words in said
    assert "\n" not in said


BAD_BYTES = {
    "latin-1": (HEAD.encode() + b'"a": {"x": "caf\xe9"}}}', 4, 16, "$.plugins.a.x"),
    "latin-1 after a BOM": (b"\xef\xbb\xbf" + HEAD.encode() + b'"\xe9": {}}}', 4, 2, "$.plugins"),
    "cut character": ('{"a":\n"\u00e9\u65e5'.encode()[:-1], 2, 3, "$.a"),
    "raw surrogate": (b'{"a": "\xed\xa0\x80"}', 1, 8, "$.a"),
    "UTF-16": ('{"version": 1}'.encode("utf-16"), 1, 1, "$"),
    "many escaped quotes": (b'{"a": "' + b'\\"' * 40_000 + b"\xff", 1, 80_008, "$.a"),
}


@pytest.mark.parametrize("fault", BAD_BYTES)
def test_bad_byte_is_placed(tmp_path: Path, fault: str) -> None:
    """Say where the first byte is that is not UTF-8."""
    data, line, column, where = BAD_BYTES[fault]
    path = tmp_path / "state.json"
    path.write_bytes(data)
    assert refusal(path) == (
        f"{path}: line {line} column {column} ({where}): this byte is not UTF-8:"
        " save the file as UTF-8"
    )


def test_byte_order_mark_is_accepted(tmp_path: Path) -> None:
    """Read UTF-8 with a byte order mark."""
    path = tmp_path / "state.json"
    path.write_text('{"version": 1, "plugins": {"a": {"b": "c"}}}', encoding="utf-8-sig")
    identities, _ = StateFile(path).read()
    assert [i.plugin for i in identities] == ["a"]


@pytest.mark.parametrize("version", ["1", "1.0"])
def test_version_one_is_accepted(tmp_path: Path, version: str) -> None:
    """Read version 1, which JSON may also write as 1.0."""
    path = tmp_path / "state.json"
    path.write_text(f'{{"version": {version}, "plugins": {{}}}}')
    assert StateFile(path).read() == (set(), [])


def test_64_levels_are_accepted(tmp_path: Path) -> None:
    """Read a file that is exactly as deep as allowed."""
    path = tmp_path / "state.json"
    path.write_text(HEAD + '"a": ' + '{"b":' * 61 + "[0]" + "}" * 63)
    _, objects = StateFile(path).read()
    assert len(objects) == 1


def test_surrogate_pairs_and_backslashes_are_accepted() -> None:
    """Read escapes of whole surrogate pairs, and a backslash before what looks like an escape."""
    text = '{"\\ud83d\\ude00": "\\uD83D\\uDE00", "x": "\\\\ud800 \\\\u0000"}'
    assert parse(text, PATH) == {"\U0001f600": "\U0001f600", "x": "\\ud800 \\u0000"}


def test_file_of_65_mib_is_refused(tmp_path: Path) -> None:
    """Refuse a file past the limit without reading all of it, and say the limit."""
    path = tmp_path / "state.json"
    with path.open("wb") as file:
        file.truncate(65 << 20)
    said = refusal(path)
    assert said.startswith(f"{path} is 65.0 MiB, past the limit of 64 MiB at byte {MAX_BYTES}")


def test_missing_file_folder_and_pipe_are_refused(tmp_path: Path) -> None:
    """Refuse what is no file, without waiting for anything to come through a pipe."""
    assert refusal(tmp_path / "none.json").endswith("none.json: No such file or directory")
    assert "Is a directory" in refusal(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in refusal(tmp_path / "pipe")
    assert "cannot read the state file" in refusal(Path("/x\0y"))


def test_unreadable_file_is_refused(tmp_path: Path) -> None:
    """Say so when the file may not be read, by whomever the daemon runs as."""
    path = tmp_path / "state.json"
    path.write_text("{}")
    path.chmod(0)
    program = (
        "import os, sys; from pathlib import Path; from opdbus.state.file import StateFile\n"
        "if os.geteuid() == 0: os.setuid(65534)\n"
        "try: StateFile(Path(sys.argv[1])).read()\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=False
    )
    assert ran.stdout.startswith(f"StateFileError cannot read the state file {path}: "), ran.stderr
    assert "Permission denied" in ran.stdout


def test_error_gives_away_no_secret(tmp_path: Path) -> None:
    """Keep secrets and endless names out of the sentence."""
    path = tmp_path / "state.json"
    token = "ghp_0123456789abcdefghij"
    path.write_text(HEAD + f'"a": {{"{token}": NaN}}}}}}')
    assert token not in refusal(path)
    path.write_text(HEAD + f'"a": {{"{token}": 1, "{token}": 2}}}}}}')
    assert token not in refusal(path)
    path.write_text(HEAD + f'"a": {{"{"x" * 100_000}": NaN}}}}}}')
    assert len(refusal(path)) < 500
    path.write_text(json.dumps({"version": "y" * 100_000}))
    assert len(refusal(path)) < 500


def test_only_changes_are_given(tmp_path: Path) -> None:
    """Give all objects at first, then those that changed; a bad edit in between forgets nothing."""
    path = tmp_path / "state.json"
    plugin = {"links": [{"name": "a", "mtu": 1}, {"name": "b", "mtu": 1}]}
    file = StateFile(path)

    def read() -> tuple[list[str], list[str]]:
        path.write_text(json.dumps({"version": 1, "plugins": {"net": plugin}}))
        identities, changed = file.read()
        return sorted(i.name for i in identities), [o.name for o in changed]

    assert read() == (["a", "b"], ["a", "b"])
    assert read() == (["a", "b"], [])
    path.write_text("{")
    with pytest.raises(StateFileError):
        file.read()
    assert read() == (["a", "b"], [])
    plugin["links"][1]["mtu"] = 2
    plugin["links"].append({"name": "c"})
    assert read() == (["a", "b", "c"], ["b", "c"])
    del plugin["links"][0]
    assert read() == (["b", "c"], [])
    file.forget()
    assert read() == (["b", "c"], ["b", "c"])


def test_example_is_read() -> None:
    """Read the example: at least 60 objects over at least seven plugins."""
    identities, objects = StateFile(EXAMPLE).read()
    assert len(objects) == len(identities) >= 60
    assert len({i.plugin for i in identities}) >= 7


@pytest.mark.parametrize(
    ("keys", "written"),
    [
        ((), "$"),
        (("plugins", "net", 2), "$.plugins.net[2]"),
        (("eth0.1", "", "a b"), '$["eth0.1"][""]["a b"]'),
        (("1a", '"'), '$["1a"]["\\""]'),
    ],
)
def test_json_path_is_written(keys: tuple[str | int, ...], written: str) -> None:
    """Write plain keys with dots, all others in brackets."""
    assert json_path(keys) == written


STRINGS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | STRINGS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(STRINGS, inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(STRINGS, JSON, max_size=4), st.booleans(), st.sampled_from([None, 1, "\t"]))
def test_json_round_trips(
    value: dict[str, Any],
    ascii_only: bool,  # noqa: FBT001
    indent: int | str | None,
) -> None:
    """Read any JSON object back as it was written."""
    assert parse(json.dumps(value, ensure_ascii=ascii_only, indent=indent), PATH) == value


def naive(value: Any, keys: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """List the JSON paths of everything in a value, in the order of its text."""
    members = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [keys, *(path for key, child in members for path in naive(child, (*keys, key)))]


@settings(max_examples=150, deadline=None)
@given(JSON, st.booleans(), st.sampled_from([None, 2]))
def test_walk_finds_every_value(value: Any, ascii_only: bool, indent: int | None) -> None:  # noqa: FBT001
    """Give each value's path in order, at the offset where its text begins."""
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    walked = [(keys, at) for keys, at, token in document.walk(text) if token != ":"]
    assert [keys for keys, _ in walked] == naive(value)
    decode = json.JSONDecoder().raw_decode
    for keys, at in walked:
        part = value
        for key in keys:
            part = part[key]
        assert decode(text, at)[0] == part


@settings(max_examples=150, deadline=None)
@given(
    st.binary(max_size=60)
    | st.lists(
        st.sampled_from(
            [b"{", b"}", b"[", b"]", b'"a"', b":", b",", b"1", b"NaN", b'"', b"\\", b"\n", b"\xff"]
        ),
        max_size=14,
    ).map(b"".join)
)
def test_any_bytes_give_an_answer(data: bytes) -> None:
    """Read arbitrary bytes or refuse them with a StateFileError, never with anything else."""
    said, value = "", None
    try:
        value = parse(document.decode(data, PATH), PATH)
    except StateFileError as error:
        said = str(error)
    assert isinstance(value, dict) or said.startswith("/x/state.json: line ")


@settings(max_examples=200, deadline=None)
@given(JSON, st.integers(0, 200))
def test_any_truncation_is_refused(value: Any, cut: int) -> None:
    """Refuse every true beginning of a file that is an object."""
    text = json.dumps({"version": 1, "plugins": value}, indent=1)
    with pytest.raises(StateFileError, match="line"):
        parse(text[: min(cut, len(text) - 1)], PATH)


def test_a_known_file_is_only_compared_with(tmp_path: Path) -> None:
    """Give nothing of a file that is known, and of the next one only what is other in it."""
    path = state_file(tmp_path / "state.json", {"a": "one", "b": "two"})
    file = StateFile(path)
    present, changed = file.stream(signature(path))
    assert ({one.name for one in present}, list(changed)) == ({"a", "b"}, [])
    state_file(path, {"a": "one", "b": "other"})
    present, changed = file.stream("another")
    assert ({one.name for one in present}, [one.name for one in changed]) == ({"a", "b"}, ["b"])


def test_secret_names_of_several_objects_stay_apart(tmp_path: Path) -> None:
    """Give objects the names under which they are present, also where secrets are replaced."""
    path = state_file(tmp_path / "state.json", {f"token=Abcdefgh{n}": "one" for n in range(3)})
    present, changed = StateFile(path).read()
    assert {one.identity for one in changed} == present
    assert all(re.fullmatch(r"token=\[redacted\]~[0-9a-f]{8}", one.name) for one in present)
    assert len(present) == 3
