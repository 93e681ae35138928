"""The page on observers: the fields that are volatile, and the example."""

from docs_parts.tables import ROOT, table
from opdbus.observe.dbus import mirror_table
from opdbus.observe.selection import OURS

_EXAMPLE = "opdbus/observe/dbus/login1.py"


def volatile() -> str:
    """Make a row of each kind that has volatile fields."""
    ours = [(observer.plugin, observer.volatile) for observer in OURS]
    mirrors = [(plugin, mirror_table.volatile(plugin)) for plugin in mirror_table.VOLATILE]
    rows = (
        (f"`{plugin}/{kind}`", ", ".join(f"`{field}`" for field in sorted(fields)))
        for plugin, kinds in (*ours, *mirrors)
        for kind, fields in kinds.items()
    )
    return table(("objects", "fields"), sorted(rows))


def example() -> str:
    """Quote the observer of logind as a whole."""
    text = (ROOT / _EXAMPLE).read_text(encoding="utf-8").rstrip()
    return f"[`{_EXAMPLE}`](../{_EXAMPLE}):\n\n```py\n{text}\n```"
