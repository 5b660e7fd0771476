"""Functions that the operator registered by name, for files that only name them.

Nothing is imported because a file names it. A function is registered when the operator's own code is imported, or by an
entry point whose name is the function's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from refold.avro.errors import InputError

F = TypeVar("F", bound=Callable[..., Any])


class RegisteredFunctions(Generic[F]):
    """The registered functions of one kind."""

    def __init__(self, kind: str, plural: str, decorator: str, group: str) -> None:
        """Begin without functions.

        Args:
            kind, plural: What one such function, and several, are called in errors.
            decorator: The public name of the decorator that registers one.
            group: The group of entry points that provide them.
        """
        self._kind = kind
        self._plural = plural
        self._decorator = decorator
        self._group = group
        self._functions: dict[str, F] = {}

    def register(self, name: str) -> Callable[[F], F]:
        """Return a decorator that registers a function under a name.

        Raises:
            InputError: By the decorator: another function is registered under the name.
        """

        def mark(function: F) -> F:
            if self._functions.setdefault(name, function) is not function:
                raise InputError(f"two {self._plural} are registered as {name!r}: rename one of them")
            return function

        return mark

    def named(self, name: str) -> F:
        """Return the function of a name, also one that an entry point provides.

        Raises:
            InputError: No function has that name.
        """
        if name not in self._functions:
            from importlib.metadata import entry_points  # slow to import, and few files need it

            for found in entry_points(group=self._group, name=name):
                self._functions[name] = found.load()
        if name not in self._functions:
            raise InputError(
                f"no {self._kind} is registered as {name!r}: import the module that registers it with "
                f"@{self._decorator}, or name it as an entry point of the group {self._group}"
            )
        return self._functions[name]
