"""The command line with all its commands: each module of it adds its own to the root."""

from opdbus.cli import modules
from opdbus.cli.root import root

modules()

__all__ = ["root"]
