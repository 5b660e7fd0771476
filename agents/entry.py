"""Find an agent's function by its name: `module:function`, or `folder/file.py:function`.

A module is imported as `python -c 'import module'` would import it in the current folder: that folder is put at the
front of sys.path, and stays there for the agent's later imports. A file is loaded from its path, with its folder on
sys.path, as `python folder/file.py` would load it. It is loaded again for each call.

A name that the user gave is searched everywhere. A name in a recording or in a golden file is data: it finds code only
in the current folder, in its `src`, and in the folders of PYTHONPATH. There it is searched as a file before anything is
imported.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

from refold.avro.errors import InputError

# The demo's recordings are replayed wherever refold is installed.
_DEMO = frozenset(f"refold.explorer.demo.{module}" for module in ("agent", "desk", "desk_fixed"))

Agent: TypeAlias = Callable[..., Any]
"""agent(run). Its return value is the run's output. It may be a coroutine function."""

LOADED = "refold_agent_"
"""The prefix of the names of modules that were loaded from a file."""
loaded_names: dict[str, None] = {}
"""The names of all such modules, in the order in which they were first loaded."""


def agent_of(entry: str, base: Path, what: str = "agent") -> Agent:
    """Return the agent, or another function, of a name.

    Args:
        entry: The name.
        base: The folder from which modules and files are found.
        what: The function's description in messages.

    Raises:
        InputError: It cannot be imported, or there is no such function. Exceptions that the module raises itself are
            not converted.
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


def require_known(entry: str, base: Path, what: str = "agent") -> None:
    """Check that a name from a recording or file belongs to code in one of the user's folders. Nothing is imported.

    Args:
        entry: The name.
        base: The current folder.
        what: The function's description in messages.

    Raises:
        InputError: The code is in none of these folders.
    """
    place, _, name = entry.rpartition(":")
    if place and name and place not in _DEMO and _file_of(place, base) is None:
        kind = "file" if place.endswith(".py") else "module"
        raise InputError(
            f"the {what} {entry!r:.200} is named by a recording or a file, so nothing is imported: no {kind} "
            f"{place:.200} is found from {base}. Run this in your code's folder, add that folder to PYTHONPATH, or "
            f"name the {what} yourself"
        )


def recorded_agent_of(entry: str, base: Path, what: str = "agent") -> Agent:
    """As `agent_of`, for a name that is data.

    Raises:
        InputError: As `agent_of` and `require_known`.
    """
    require_known(entry, base, what)
    return agent_of(entry, base, what)


def _file_of(place: str, base: Path) -> Path | None:
    """Return the file of a module or of a path, in one of the user's folders; None if it is in none of them."""
    listed = [Path(each) for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    if place.endswith(".py"):
        found = (base / place).resolve()
        return found if found.is_file() and base.resolve() in found.parents else None
    parts = place.split(".")
    if not all(part.isidentifier() for part in parts):
        return None
    loaded = getattr(sys.modules.get(place), "__file__", None)
    for folder in (base, base / "src", *listed):
        for path in (folder.joinpath(*parts).with_suffix(".py"), folder.joinpath(*parts, "__init__.py")):
            if path.is_file() and (loaded is None or Path(loaded).resolve() == path.resolve()):
                return path
    return None


def _imported(module: str, named: str, base: Path) -> ModuleType:
    _on_path(base)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module exists, and imports another one that does not
        raise InputError(
            f"{named}: no module {error.name} is found from {base}; run this in the folder of your code, or "
            "put that into PYTHONPATH"
        ) from None


def _loaded(path: Path, named: str) -> ModuleType:
    if not path.is_file():
        raise InputError(f"{named}: there is no file {path}")
    path = path.resolve()
    _on_path(path.parent)
    name = f"{LOADED}{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    module = ModuleType(name)
    module.__file__ = str(path)
    loaded_names[name] = None
    sys.modules[name] = module  # dataclasses and pickle look up their module here
    # Compiled here: the importer caches compiled code, and distinguishes files only by whole seconds.
    exec(compile(path.read_bytes(), path, "exec"), vars(module))
    return module


def _on_path(folder: Path) -> None:
    text = str(folder.resolve())
    if text not in sys.path:
        sys.path.insert(0, text)


def name_of(function: Callable[..., Any]) -> str:
    """Return a function's name as module:function; "" if the name does not find it (a lambda, an inner function)."""
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    return f"{module}:{name}" if module and name and "<" not in name else ""


def entry_for(function: Callable[..., Any], what: str = "agent") -> str:
    """Return the name by which another process finds a function, in its module or in its file.

    Args:
        function: The function.
        what: Its description in messages.

    Raises:
        InputError: It has no such name.
    """
    named = name_of(function)
    module, _, name = named.partition(":")
    file = getattr(sys.modules.get(module), "__file__", None)
    if named and module != "__main__" and not module.startswith(LOADED):
        return named
    if named and file:
        return f"{Path(file).resolve()}:{name}"
    raise InputError(
        f"another process has to find the {what} by name, and {function!r} has none: give a function that "
        "stands at the top of a module or of a file"
    )


def class_name(kind: type) -> str:
    """Return a class by its module and its name in it.

    The module is `__main__` for a file that is run as a program or loaded here, because it is the same code.
    """
    module = kind.__module__
    return f"{'__main__' if module.startswith(LOADED) else module}.{kind.__qualname__}"


def class_named(name: str) -> type | None:
    """Return the class of that name in a module that is imported; None if there is none.

    Names are data: nothing is imported, and no code of a module or a class is run.
    """
    parts = name.split(".")
    for end in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:end])
        modules = [module, *(each for each in reversed(sys.modules) if each.startswith(LOADED))]
        for each in modules if module == "__main__" else [module]:
            kind = class_in(sys.modules.get(each), parts[end:])
            if kind is not None:
                return kind
    return None


def class_in(module: ModuleType | None, path: list[str]) -> type | None:
    """Return the class at a path of names in a module; None if there is none."""
    found: Any = module
    for part in path:
        found = members_of(found).get(part)
    if issubclass(type(found), type):
        kind: type = found
        return kind
    return None


def members_of(found: object) -> Mapping[str, Any]:
    """Return the members of a module or of a class, by name."""
    if issubclass(type(found), ModuleType):  # ordinary access would make a lazily loaded module load itself
        members: Mapping[str, Any] = object.__getattribute__(found, "__dict__")
        return members
    return vars(found) if issubclass(type(found), type) else {}
