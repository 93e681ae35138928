"""Strings that PostgreSQL can hold."""

from opdbus.state.database_text import replace_unfit, replace_unfit_json


def test_characters_that_the_database_cannot_hold() -> None:
    """Replace NUL and halves of surrogate pairs, as they are and escaped in JSON."""
    assert replace_unfit({"a\0": ["b\ud800", 1, None]}) == {"a\ufffd": ["b\ufffd", 1, None]}
    assert replace_unfit_json(r'{"a":"\u0000 \ud83d\ude00 \\u0000 \udc00"}') == (
        '{"a":"\ufffd \U0001f600 \\\\u0000 \ufffd"}'
    )
    assert replace_unfit_json("") == ""
