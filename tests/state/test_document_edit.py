"""Edits of a state file's text, which leave everything else as it is written."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opdbus.state.document_edit import DocumentEditor

TEXT = """\ufeff{"version" : 1,
  "plugins": {
    "a": {"x": 0.10, "units": {
        "one": {"enabled": true},
        "two":{ "enabled":false }
    }, "empty": { }, "list": [ {"name": "p"} ,{"name": "q"}]}
  }, "mine": "caf\\u00e9"
}
"""


@pytest.mark.parametrize(
    ("path", "value", "before", "after"),
    [
        ("a units one enabled", False, '"one": {"enabled": true}', '"one": {"enabled": false}'),
        ("a x", [1], '"x": 0.10', '"x": [1]'),
        ("a units one user", "u", '{"enabled": true}', '{"enabled": true, "user": "u"}'),
        ("a units two y", 1, '{ "enabled":false }', '{ "enabled":false, "y":1 }'),
        ("a units new", {"y": 1}, "false }\n", 'false },\n        "new":{"y": 1}\n'),
        ("a empty e", {}, '"empty": { }', '"empty": {"e": {}}'),
        ("a list 2", {"name": "r"}, '{"name": "q"}', '{"name": "q"},{"name": "r"}'),
    ],
)
def test_a_value_is_set_and_the_rest_stays(path: str, value: Any, before: str, after: str) -> None:
    """Replace a value or add a member in the notation of its neighbours, and nothing else."""
    edited = DocumentEditor(TEXT)
    edited.set(["plugins", *(int(k) if k.isdecimal() else k for k in path.split())], value)
    assert edited.text() == TEXT.replace(before, after, 1)


@pytest.mark.parametrize(
    ("path", "before", "after"),
    [
        ("a units one", '"one": {"enabled": true},\n        ', ""),
        ("a units two", ',\n        "two":{ "enabled":false }', ""),
        ("a units two enabled", '{ "enabled":false }', "{}"),
        ("a list 0", '{"name": "p"} ,{', "{"),
        ("a no such", "", ""),
    ],
)
def test_a_member_is_removed_and_the_rest_stays(path: str, before: str, after: str) -> None:
    """Remove a member with its comma, and leave the blanks around the others."""
    edited = DocumentEditor(TEXT)
    keys = ["plugins", *(int(k) if k.isdecimal() else k for k in path.split(maxsplit=3))]
    edited.remove(keys if keys[-2:] != ["no", "such"] else ["plugins", "none"])
    assert edited.text() == TEXT.replace(before, after, 1)


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ),
    st.sampled_from([None, 1]),
    st.text(),
)
def test_any_document_is_read_and_written_unchanged(value: Any, indent: int, key: str) -> None:
    """Write every document as it was read, and after an edit what Python would have made."""
    text = json.dumps({"d": value}, indent=indent)
    edited = DocumentEditor(text)
    assert edited.text() == text
    edited.set([key], {"set": value})
    edited.set([key, "set"], 1)
    assert json.loads(edited.text()) == {"d": value, key: {"set": 1}}
    edited.remove([key])
    assert json.loads(edited.text()) == {k: v for k, v in {"d": value}.items() if k != key}
