"""Strings that PostgreSQL's text and jsonb can hold: without U+0000 and halves of surrogates."""

import json
import re
from typing import Final

from opdbus.state.object import Json, canonical

_REPLACEMENT: Final = "\ufffd"
_UNFIT: Final = re.compile("[\0\ud800-\udfff]")
# These characters in JSON, as they are and as escapes.
_UNFIT_JSON: Final = re.compile(r"\\u(?:0000|[dD][89a-fA-F])|[\0\ud800-\udfff]")


def replace_unfit(value: Json) -> Json:
    """Replace the characters that it cannot hold in all strings of a value, also in keys."""
    if isinstance(value, str):
        return _UNFIT.sub(_REPLACEMENT, value)
    if isinstance(value, list | tuple):
        return [replace_unfit(item) for item in value]
    if isinstance(value, dict):
        # the order decides which of two keys stays that are the same from now on
        return {replace_unfit(key): replace_unfit(value[key]) for key in sorted(value)}
    return value


def replace_unfit_json(text: str) -> str:
    """Replace them in a text of JSON; a text that needs it becomes canonical."""
    if not _UNFIT_JSON.search(text):
        return text
    try:
        return canonical(replace_unfit(json.loads(text)))
    except ValueError:
        return str(replace_unfit(text))
