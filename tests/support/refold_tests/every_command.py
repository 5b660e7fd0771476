"""Every module of the command line, imported at once: for processes that fork commands."""

from __future__ import annotations

import importlib
from pathlib import Path

import refold.explorer.cli
from refold.explorer.cli.main import main

for _folder in refold.explorer.cli.__path__:
    for _module in sorted(Path(_folder).rglob("*.py")):
        _name = ".".join(_module.relative_to(_folder).with_suffix("").parts)
        importlib.import_module(f"refold.explorer.cli.{_name}")

__all__ = ["main"]
