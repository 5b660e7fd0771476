"""Parts of a request that are not compared when a recorded call is searched: ids, timestamps, a prompt that was changed
on purpose.

    request_id                  an argument, by its name
    options.timestamp           a member
    messages[0].id              an element of a list, from 0; messages[*].id: of each
    headers["x-request-id"]     a name with other characters
    args[0]                     an argument without a name

In an HTTP exchange a path leads into the JSON of the request's body. A path that finds nothing has no effect. A member
is removed; an element of a list becomes null, so that the others keep their positions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import msgspec

from refold.avro.errors import InputError

Part: TypeAlias = str | int | None
"""A name, an index, or None for every element."""

_PART = re.compile(
    r"""(?:^|(?<=.)\.)(?P<name>[^.\[\]"]+)|\[(?P<index>[0-9]{1,9})\]|\[(?P<every>\*)\]|\[(?P<quoted>"(?:[^"\\]|\\.)*")\]"""
)


@lru_cache(1024)
def parts_of(path: str) -> tuple[Part, ...]:
    """Parse a path.

    Raises:
        InputError: It is not a path.
    """
    found: list[Part] = []
    at = 0
    while at < len(path):
        part = _PART.match(path, at)
        if part is None:
            break
        if part["quoted"] is not None:
            try:
                found.append(msgspec.json.decode(part["quoted"], type=str))
            except msgspec.DecodeError:
                break
        else:
            found.append(part["name"] or (None if part["every"] else int(part["index"])))
        at = part.end()
    if at < len(path) or not isinstance(next(iter(found), None), str):
        raise InputError(
            f'{path!r} is not a path into a request: write it as name.name[0]["a name"], [*] for every element, as '
            "in messages[*].id"
        )
    return tuple(found)


def without(request: Any, paths: Iterable[str]) -> Any:
    """Return the request without the values at these paths; the request itself if there are none.

    Raises:
        InputError: A path is invalid.
    """
    ways = [parts_of(path) for path in paths]
    if not ways or not isinstance(request, dict):
        return request
    if "exchange" in request:
        body = _json(request.get("body"))
        return request if body is None else {**request, "body": _without(body, ways)}
    named = _without(arguments_of(request), ways)
    if "args" in request and "args" not in _keyword_arguments(request):
        return {**request, "args": named.pop("args", []), "kwargs": named}
    return {**request, "kwargs": named}


def arguments_of(request: Any) -> Any:
    """Return the tree that paths lead into, and that a key function receives.

    It has the arguments by name, and `args` for those without a name; for an exchange it is the JSON of its body.
    """
    if not isinstance(request, dict):
        return request
    if "exchange" in request:
        return _json(request.get("body"))
    return {**({"args": request["args"]} if "args" in request else {}), **_keyword_arguments(request)}


def _keyword_arguments(request: dict[str, Any]) -> dict[str, Any]:
    found = request.get("kwargs")
    return found if isinstance(found, dict) else {}


def _json(body: object) -> Any:
    if not isinstance(body, str):
        return None
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None


def _without(tree: Any, ways: list[tuple[Part, ...]]) -> Any:
    for way in ways:
        tree = _without_part(tree, way)
    return tree


def _without_part(tree: Any, way: tuple[Part, ...]) -> Any:
    """Return the tree without one part; nodes that are not on the path are shared."""
    first, *rest = way
    if isinstance(first, str):
        if not isinstance(tree, dict) or first not in tree:
            return tree
        if rest:
            return {**tree, first: _without_part(tree[first], tuple(rest))}
        return {key: value for key, value in tree.items() if key != first}
    if not isinstance(tree, list):
        return tree
    return [
        (_without_part(each, tuple(rest)) if rest else None) if first is None or first == index else each
        for index, each in enumerate(tree)
    ]


class VolatileRequest(NamedTuple):
    """A request that is about to be recorded, with its volatile parts."""

    request: Any
    ignored: tuple[str, ...] = ()
    found_by: Any = None


class Volatile:
    """The parts of a callable's requests that are not compared."""

    def __init__(self, ignore: Iterable[str] = (), key: Callable[[Any], Any] | None = None) -> None:
        """Define the parts that are not compared.

        Args:
            ignore: Paths of parts to ignore.
            key: Maps a request's arguments to the value that is compared instead.

        Raises:
            InputError: A path is invalid, or both are given.
        """
        if isinstance(ignore, str):
            raise InputError(f"ignore={ignore!r}: give a list of paths, as in ignore=[{ignore!r}]")
        self.ignored = tuple(ignore)
        self._key = key
        for path in self.ignored:
            parts_of(path)
        if key is not None and not callable(key):
            raise InputError("key=: a function of the request's arguments")
        if key is not None and self.ignored:
            raise InputError("ignore= and key=: give one of them; everything that the key leaves out is ignored")

    def asking(self, request: Any) -> Any:
        """Return the request with its volatile parts marked; the request itself if nothing is volatile.

        Raises:
            InputError: The key of this request is None.
        """
        if self._key is None:
            return VolatileRequest(request, self.ignored) if self.ignored else request
        found = self._key(arguments_of(request))
        if found is None:
            raise InputError("key=: it returned None for a request; return a value that distinguishes requests")
        return VolatileRequest(request, (), found)


WHOLE = Volatile()
