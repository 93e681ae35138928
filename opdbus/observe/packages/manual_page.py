"""Parser of a manual page's NAME section, in man or mdoc, for its one-line description."""

import re
from typing import Final

from opdbus.platform.lines import join_words, split_lines, split_words
from opdbus.state.redact import redact_text

MAX_DESCRIPTION: Final = 200
# Lines that are read of a NAME section; its description is in the first few.
_MAX_LINES: Final = 60

_NAME_SECTION = re.compile(r"\.\s*S[Hh]\s+\"?name\"?\s*", re.IGNORECASE)
_SECTION = re.compile(r"\.\s*S[HhSs]\b")
# Macros whose arguments are text. Arguments of other macros are dropped.
_TEXT_MACROS: Final = frozenset("B I BI BR IB IR RB RI SM SB Nm Xr Em Sy Dq Sq Pa Cm Ar Fl".split())
_ESCAPED: Final = {
    r"\-": "-", r"\(hy": "-", r"\(em": " - ", r"\(en": "-", r"\(aq": "'", r"\(cq": "'",
    r"\(oq": "'", r"\(dq": '"', r"\(lq": '"', r"\(rq": '"', r"\(co": "©", r"\(rg": "®",
    r"\(bu": "*", r"\(ha": "^", r"\(ti": "~", r"\e": "\\", r"\ ": " ", r"\~": " ", r"\0": " ",
    r"\'": "'", r"\`": "`", r"\t": " ",
}  # fmt: skip
_ESCAPE = re.compile(
    r"\\(?:f(?:\[[^]]{0,80}\]|\(..|.)|s(?:\[[^]]{0,80}\]|\([+-]?..|[+-]?\d)"
    r"|[*nFgkmMVY](?:\[[^]]{0,80}\]|\(..|.)"
    r"|[hvwNXZbloDLSHAC]'[^']{0,80}'|\[[^]]{0,80}\]|\(..|\S| )"
)
# The dash, with blanks on both sides, between names and description.
_DASH = re.compile(r"\s(?:-{1,2}|[‐-―−])\s+")  # noqa: RUF001 -- matches all kinds of dashes
_CODE_POINT = re.compile(r"\\\[u([0-9A-F]{4,6})\]")


def described(page: str) -> str:
    """Return the one-line description in a man or mdoc page; empty if it has none."""
    lines = iter(split_lines(page))
    if not any(_NAME_SECTION.fullmatch(line) for line in lines):
        return ""
    said: list[str] = []
    for _, line in zip(range(_MAX_LINES), lines, strict=False):
        if _SECTION.match(line):
            break
        if line.startswith(".Nd"):
            return _tidy(_plain(line[3:]))
        said.append(_text(line))
    _, dash, description = _split(" ".join(said))
    return _tidy(description) if dash else ""


def _split(text: str) -> tuple[str, str, str]:
    plain = _plain(text)
    found = _DASH.search(f" {plain}")
    if not found:
        return plain, "", ""
    return plain[: found.start()], "-", plain[found.end() - 1 :]


def _text(line: str) -> str:
    """Return the text of a line, without its comment; empty for macros without text."""
    line = line.partition('\\"')[0]
    if not line.startswith((".", "'")):
        return line
    macro, *arguments = split_words(line[1:], 1) or [""]
    return " ".join(arguments).replace('"', "") if macro in _TEXT_MACROS else ""


def _plain(text: str) -> str:
    return _ESCAPE.sub(_character, text)


def _character(found: re.Match[str]) -> str:
    if point := _CODE_POINT.fullmatch(found[0]):
        return chr(min(int(point[1], 16), 0x10FFFF))
    name = re.sub(r"\\\[(..)\]", r"\\(\1", found[0])
    return _ESCAPED.get(name, "")


def _tidy(text: str) -> str:
    # redact first: a secret may not be recognized once its quotes are removed or it is cut
    return join_words(redact_text(text).replace('"', ""))[:MAX_DESCRIPTION]
