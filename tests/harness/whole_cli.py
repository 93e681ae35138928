"""The command line with all its commands: each module of it adds its own to the root."""

import importlib
import pkgutil

import opdbus.cli
from opdbus.cli.root import root

for module in pkgutil.iter_modules(opdbus.cli.__path__):
    importlib.import_module(f"opdbus.cli.{module.name}")

__all__ = ["root"]
