"""A manual page as man(7) writes it: sections, tagged paragraphs, and text as it stands."""

import re
from collections.abc import Iterable

# `code` in the project's own texts is shown in bold, as names are in manual pages.
_CODE = re.compile(r"`([^`]+)`")


def page(name: str, section: int, manual: str, parts: Iterable[str]) -> str:
    """Join the parts of a page under its title line."""
    title = f'.TH "{escaped(name.upper())}" {section} "" "op-dbus" "{manual}"'
    return "\n".join([title, *(part for part in parts if part)]) + "\n"


def section(title: str, *parts: str) -> str:
    """Head the parts that follow."""
    return "\n".join([f'.SH "{escaped(title)}"', *parts])


def subsection(title: str, *parts: str) -> str:
    """Head the parts that follow, one step lower."""
    return "\n".join([f'.SS "{escaped(title)}"', *parts])


def paragraphs(text: str) -> str:
    """Set a text whose paragraphs are divided by empty lines."""
    return "\n".join(".PP\n" + prose(part) for part in text.split("\n\n") if part.strip())


def tagged(tag: str, *texts: str) -> str:
    """Set a tag, which is roff already, and the texts that belong to it, indented."""
    first, *rest = [prose(text) for text in texts if text] or ["\\&"]
    return "\n".join([".TP", tag, first, *(f".IP\n{text}" for text in rest)])


def example(text: str) -> str:
    """Set lines as they are."""
    lines = "\n".join(_guarded(escaped(line)) for line in text.splitlines())
    return f".PP\n.RS 4\n.nf\n{lines}\n.fi\n.RE"


def prose(text: str) -> str:
    """Escape a text and let roff break its lines; `code` becomes bold."""
    marked = _CODE.sub(lambda match: f"\0{match[1]}\1", " ".join(text.split()))
    roff = escaped(marked).replace("\0", "\\fB").replace("\1", "\\fR")
    return _guarded(roff)


def bold(text: str) -> str:
    """Set names, and whatever is typed as it stands."""
    return f"\\fB{escaped(text)}\\fR"


def italic(text: str) -> str:
    """Set what stands for something else."""
    return f"\\fI{escaped(text)}\\fR"


def escaped(text: str) -> str:
    """Write what roff would take for a command or typeset otherwise: backslash, hyphen, quotes."""
    for plain, roff in (
        ("\\", "\\e"),
        ("-", "\\-"),
        ("'", "\\(aq"),
        ('"', "\\(dq"),
        ("^", "\\(ha"),
        ("~", "\\(ti"),
    ):
        text = text.replace(plain, roff)
    return text


def _guarded(line: str) -> str:
    """Keep a line that begins with a dot from being a request."""
    return "\\&" + line if line.startswith(".") else line
