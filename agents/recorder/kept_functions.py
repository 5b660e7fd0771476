"""Functions of C that are wrapped, where modules keep the bare ones under names of theirs (`from os import write`)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import BuiltinFunctionType, ModuleType
from typing import Any


class KeptFunctions:
    """Puts wrapped functions in the place of bare ones. wrapped: by the bare ones."""

    def __init__(self, keeper: str) -> None:
        """keeper: the name of the module that needs the bare ones itself."""
        self.wrapped: dict[Callable[..., Any], Callable[..., Any]] = {}
        self._keeper = keeper
        self._looked_through: set[int] = set()

    def replace(self) -> None:
        """Look through the modules that were loaded since the last time."""
        modules: list[object] = list(sys.modules.values())  # anything may be there
        for module in modules:
            if not isinstance(module, ModuleType) or id(module) in self._looked_through:
                continue
            self._looked_through.add(id(module))
            if module.__name__ == self._keeper:
                continue
            names = vars(module)
            for name, kept in list(names.items()):
                if isinstance(kept, BuiltinFunctionType) and kept in self.wrapped:
                    names[name] = self.wrapped[kept]
