"""The custom reducers that the operator registered: the only code that a definition can ever cause to run.

A definition names its code, and the definition may come from an untrusted source. So a name in it is only compared with
the registered names, and nothing is imported because of it. A function is registered

- by `@reducer(version=2)` on it, when the operator's own code is imported;
- by its name, "module:function", in REFOLD_REDUCERS, `--reducers`, `refold.open(reducers=[...])` or the value of an
  entry point of the group `refold.reducers`;
- by its module's name in one of the same places: then each function of the module that has a `refold_version`.

What the operator named is imported when a definition with custom code is read: a function's module if the definition
has the function's name, and modules named without a function in any case.
"""

from __future__ import annotations

import importlib
import os
import shlex
from collections.abc import Callable, Iterable
from functools import cache
from types import ModuleType
from typing import Any, TypeAlias, TypeVar

from refold.avro.errors import InputError, SchemaError

ENVIRONMENT = "REFOLD_REDUCERS"
GROUP = "refold.reducers"
VERSION = "refold_version"

F = TypeVar("F", bound=Callable[..., Any])
Registered: TypeAlias = str | Callable[..., Any] | ModuleType
"""What can be registered: a function, a module, or the name of either."""

_functions: dict[str, Callable[..., Any]] = {}
_allowed: dict[str, None] = {}


class NotRegistered(SchemaError):
    """A definition names code that the operator did not register, or registered with another version."""


def reducer(*, version: int | str = 1) -> Callable[[F], F]:
    """Register a function as a custom reducer, under its own module and name.

    Args:
        version: a number or a text; must change with each change of the function's source.
    """

    def mark(function: F) -> F:
        setattr(function, VERSION, version)
        register(function)
        return function

    return mark


def register(function: Callable[..., Any]) -> None:
    """Register a function; InputError if it cannot be found by its name."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if not module or not name or "<" in name:
        raise InputError(
            f"{function!r:.100} cannot be a custom reducer: give a function that a module defines by a name"
        )
    _functions[f"{module}:{name}"] = function


def allow(given: Iterable[Registered]) -> None:
    """Register functions, modules, or names of either; InputError if one cannot be registered.

    Names are imported when a definition with custom code is read, not here.
    """
    for each in given:
        if isinstance(each, ModuleType):
            _allowed[each.__name__] = None
        elif isinstance(each, str):
            _allowed[checked(each)] = None
        else:
            register(each)


def checked(name: str) -> str:
    """Return a name that can be registered; InputError if it is neither MODULE nor MODULE:FUNCTION."""
    if not _can_be_named(name):
        raise InputError(f"{name!r:.100} is not a reducer; give MODULE or MODULE:FUNCTION")
    return name


def require() -> None:
    """Import everything that the operator named; SchemaError names what cannot be imported."""
    for each in dict.fromkeys([*_allowed, *_in_environment(), *_entry_points()]):
        module, colon, path = each.partition(":")
        found = _imported(module, each)
        if colon:
            _attribute(each, found, path)


def environment() -> dict[str, str]:
    """Return the environment variable that registers the same names in another process that can import the modules."""
    listed = dict.fromkeys([*_in_environment(), *_allowed, *_functions])
    return {ENVIRONMENT: ",".join(listed)} if listed else {}


def function_of(name: str) -> Callable[..., Any]:
    """Return the registered function "module:function".

    Raises:
        NotRegistered: there is none; the message says how to register it.
        SchemaError: the operator named something that cannot be imported, or is not a function.
    """
    listed = dict.fromkeys([*_allowed, *_in_environment(), *_entry_points()])
    module, colon, path = name.partition(":")
    if colon and name in listed:
        return _attribute(name, _imported(module, name), path)
    modules = {each: _imported(each, each) for each in listed if ":" not in each}
    if name in _functions:
        return _functions[name]
    found = getattr(modules.get(module), path, None)
    if callable(found) and hasattr(found, VERSION):
        marked: Callable[..., Any] = found
        return marked
    raise NotRegistered(
        f"the custom reducer {name!r:.200} is not registered here, so it is not imported; {_how_to_allow(name)}"
    )


def _how_to_allow(name: str) -> str:
    if ":" not in name or not _can_be_named(name):
        return "no module can have that name: use another definition"
    return f"if that code is yours, allow it with --reducers {shlex.quote(name)}, or {ENVIRONMENT}"


def _can_be_named(name: str) -> bool:
    module, colon, function = name.partition(":")
    parts = [*module.split("."), *(function.split(".") if colon else ())]
    return all(part.isidentifier() for part in parts)


def _in_environment() -> list[str]:
    return [checked(each.strip()) for each in os.environ.get(ENVIRONMENT, "").split(",") if each.strip()]


@cache
def _entry_points() -> tuple[str, ...]:
    from importlib.metadata import entry_points

    return tuple(checked(each.value.replace(" ", "")) for each in entry_points(group=GROUP))


def _imported(module: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise SchemaError(
            f"the custom reducer {name!r} cannot be imported: {error}; put its module on PYTHONPATH"
        ) from None


def _attribute(name: str, module: ModuleType, path: str) -> Callable[..., Any]:
    found: Any = module
    for part in path.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise SchemaError(
            f"the custom reducer {name!r} cannot be imported: {module.__name__} has no function {path}; "
            "put its module on PYTHONPATH"
        )
    function: Callable[..., Any] = found
    return function
