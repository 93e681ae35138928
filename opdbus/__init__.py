"""op-dbus: a host's semantic memory over D-Bus."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opdbus.api import Embedder

__version__ = "0.1.0"
__all__ = ["Embedder", "__version__"]


def __getattr__(name: str) -> object:
    """Import the engine at first use, since the command line must start without it."""
    if name != "Embedder":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from opdbus.api import Embedder

    return Embedder
