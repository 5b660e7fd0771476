"""Names of classes in recordings: `shop.orders:Order`. A name finds a class that is loaded, and never loads one.

The module of a script is named after its file: it is `agent` both for `python agent.py` and for `refold run replay
--agent agent.py:agent`. So a class has one name in all of them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from refold.agents.entry import LOADED, class_in, loaded_names

_MAIN = "__main__"


def class_name(kind: type) -> str:
    """Return a class's name, by which `loaded_class` finds it; "" for a class that it would not find."""
    module = sys.modules.get(kind.__module__)
    if module is None or "<" in kind.__qualname__:
        return ""
    name = f"{_name_of(module, kind.__module__)}:{kind.__qualname__}"
    return name if loaded_class(name) is kind else ""


def loaded_class(name: str) -> type | None:
    """Return the class of that name in a module that this process has loaded; None if there is none."""
    place, _, path = name.partition(":")
    for module in _modules(place):
        kind = class_in(module, path.split("."))
        if kind is not None:
            return kind
    return None


def _modules(place: str) -> Iterator[ModuleType]:
    """Yield the loaded modules of that name, scripts first."""
    for name in (_MAIN, *reversed(loaded_names)):
        module = sys.modules.get(name)
        if module is not None and _name_of(module, name) == place:
            yield module
    if place in sys.modules:
        yield sys.modules[place]


def _name_of(module: ModuleType, name: str) -> str:
    """Return the name of a module in a record."""
    if name != _MAIN and not name.startswith(LOADED):
        return name
    spec = getattr(module, "__spec__", None)  # of `python -m shop.agent`
    if spec is not None and spec.name:
        return str(spec.name.removesuffix(".__main__"))
    file = getattr(module, "__file__", None)
    return Path(file).stem if file else name
