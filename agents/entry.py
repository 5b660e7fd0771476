"""The function that an agent is, found by its name: `module:function`, or `folder/file.py:function`.

A module is looked up as `python -c 'import module'` would in the folder it is started from: that folder is put on
sys.path, at the front, and stays there, for what the agent imports later. A file is loaded from where it stands, with
its folder on sys.path, as `python folder/file.py` would have it; it is loaded anew for each call.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

from refold.avro.errors import InputError

Agent: TypeAlias = Callable[..., Any]
"""agent(run); what it returns is the run's output. It may be a coroutine function."""

_LOADED = "refold_agent_"


def agent_of(entry: str, base: Path, what: str = "agent") -> Agent:
    """The agent behind a name, or another function; base: the folder that modules and files are looked up from.

    what: it is called so in messages. InputError where it cannot be imported, or has no such function. What the module
    raises itself comes through.
    """
    place, colon, name = entry.rpartition(":")
    if not (colon and place and name):
        raise InputError(f"the {what} is named as module:function, or as folder/file.py:function; given {entry!r}")
    named = f"the {what} {entry}"
    module = _loaded(base / place, named) if place.endswith(".py") else _imported(place, named, base)
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        functions = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise InputError(f"{named}: {place} has no function {name}; it has {', '.join(functions) or 'none'}")
    agent: Agent = found
    return agent


def _imported(module: str, named: str, base: Path) -> ModuleType:
    _on_path(base)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # it is there, and needs something that is not
        raise InputError(
            f"{named}: no module {error.name} is found from {base}; run this in the folder of your code, or "
            "put that into PYTHONPATH"
        ) from None


def _loaded(path: Path, named: str) -> ModuleType:
    if not path.is_file():
        raise InputError(f"{named}: there is no file {path}")
    path = path.resolve()
    _on_path(path.parent)
    name = f"{_LOADED}{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    module = ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module  # for dataclasses and pickles, which look their module up
    # Compiled here: the importer keeps what it compiled, and tells files apart by whole seconds.
    exec(compile(path.read_bytes(), path, "exec"), vars(module))
    return module


def _on_path(folder: Path) -> None:
    text = str(folder.resolve())
    if text not in sys.path:
        sys.path.insert(0, text)


def name_of(function: Callable[..., Any]) -> str:
    """A function's own name as module:function; empty where it cannot be found again by it (a lambda, an inner one)."""
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    return f"{module}:{name}" if module and name and "<" not in name else ""


def entry_for(function: Callable[..., Any], what: str = "agent") -> str:
    """The name by which another process finds a function: of its module, or of the file that was run or loaded.

    what: it is called so in messages. InputError where there is none.
    """
    named = name_of(function)
    module, _, name = named.partition(":")
    file = getattr(sys.modules.get(module), "__file__", None)
    if named and module != "__main__" and not module.startswith(_LOADED):
        return named
    if named and file:
        return f"{Path(file).resolve()}:{name}"
    raise InputError(
        f"another process has to find the {what} by name, and {function!r} has none: give a function that "
        "stands at the top of a module or of a file"
    )
