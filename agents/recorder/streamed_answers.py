"""Answers that arrive later or in pieces: awaitables, iterators and generators, recorded as they are consumed.

Live:

1. The call is made, and returns an awaitable or an iterator. The code gets a wrapper of it.
2. Each piece is recorded when the code takes it, then returned. The source's work for it is part of the call.
3. The call ends with the source, with an exception of the source, or when the code takes no more. If its step ends
   first, the pieces taken until then are its answer, and no more are returned.

The answer (no value of an agent can be mistaken for it, see journal/objects.py):

    {"refold.pieces": [[MS, VALUE], ...], "is_async": BOOL, "end": "whole", "returned": VALUE}
    {"refold.awaited": VALUE or such pieces}

MS is milliseconds since the call began. `end` is "whole", "left" if the code took no more, or "failed": then the call's
failure follows the pieces. `returned` is a generator's return value, if it returned.

A replay returns the same pieces without the times between them, and fails after the last one as the call did.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import AbstractContextManager
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

from refold.agents.journal.objects import loaded
from refold.agents.journal.record import Plain
from refold.agents.recorder.plain import decoded, kept

_PIECES, _AWAITED = "refold.pieces", "refold.awaited"
_ROUTINES = (FunctionType, MethodType, BuiltinFunctionType)

Inside = Callable[[], AbstractContextManager[None]]


def is_async_client(client: Callable[..., Any]) -> bool:
    """Return whether a client is async, also an object whose `__call__` is a coroutine function."""
    if isinstance(client, _ROUTINES):
        return inspect.iscoroutinefunction(client)
    return inspect.iscoroutinefunction(client) or inspect.iscoroutinefunction(getattr(client, "__call__", None))  # noqa: B004


def is_lazy(answer: object) -> bool:
    """Return whether an answer is not available yet, or not complete."""
    return isinstance(answer, Iterator | AsyncIterator) or inspect.isawaitable(answer)


def was_lazy(tree: Plain) -> bool:
    """Return whether a recorded answer arrived later or in pieces."""
    return isinstance(tree, dict) and (_PIECES in tree or _AWAITED in tree)


def awaited(tree: Plain) -> Plain:
    """Return the record of an awaitable's answer."""
    return {_AWAITED: tree}


def stream_pieces(tree: Plain) -> list[Plain]:
    """Return the pieces of a recorded answer, without their times; empty if it did not arrive in pieces."""
    tree = tree[_AWAITED] if isinstance(tree, dict) and _AWAITED in tree else tree
    return [value for _, value in tree[_PIECES]] if isinstance(tree, dict) and _PIECES in tree else []


def with_stream_pieces(tree: Plain, pieces: list[Plain]) -> Plain:
    """Return the recorded answer with other pieces; their number must be the same."""
    if _AWAITED in tree:
        return {_AWAITED: with_stream_pieces(tree[_AWAITED], pieces)}
    timed = [[at_ms, value] for (at_ms, _), value in zip(tree[_PIECES], pieces, strict=True)]
    return {**tree, _PIECES: timed}


class StreamRecorder:
    """Records the pieces of one call while the code takes them."""

    def __init__(
        self, source: Any, what: str, since_s: Callable[[], float], inside: Inside, *,
        require_open: Callable[[], None], ended: Callable[[Plain, BaseException | None], None],
    ) -> None:  # fmt: skip
        """Set up the recording of an answer.

        Args:
            source: The awaitable or iterator that the call returned.
            what: Its name in errors.
            since_s: Returns the call's age in seconds.
            inside: A context for the source's work.
            require_open: Raises if the step has ended.
            ended: Called once at the end, with the answer, and with the error if the source raised one.
        """
        self._source = source
        self._what = what
        self._since_s = since_s
        self._inside = inside
        self._require_open = require_open
        self._ended = ended
        self._pieces: list[Plain] = []
        self._is_async = not isinstance(source, Iterator)

    def tree(self, end: str, returned: Any = None) -> Plain:
        """Return the pieces taken until now, as they are recorded."""
        found = {_PIECES: [*self._pieces], "is_async": self._is_async, "end": end}
        return found if returned is None else {**found, "returned": self._piece_json(returned)}

    def given(self) -> Any:
        """Return the wrapper that the code gets instead of the source."""
        return self._given_async() if self._is_async else self._items()

    def _items(self) -> Generator[Any, None, Any]:
        try:
            while True:
                try:
                    with self._inside():
                        value = next(self._source)
                    self._take(value)
                except StopIteration as stop:
                    self._ended(self.tree("whole", stop.value), None)
                    return stop.value
                except BaseException as error:
                    self._ended(self.tree("failed"), error)
                    raise
                yield value
        finally:
            with self._inside():
                getattr(self._source, "close", _do_nothing)()
            self._ended(self.tree("left"), None)

    async def _given_async(self) -> AsyncIterator[Any]:
        try:
            while True:
                try:
                    with self._inside():
                        value = await anext(self._source)
                    self._take(value)
                except StopAsyncIteration:
                    self._ended(self.tree("whole"), None)
                    return
                except BaseException as error:
                    self._ended(self.tree("failed"), error)
                    raise
                yield value
        finally:
            with self._inside():
                close = getattr(self._source, "aclose", None)
                if close is not None:
                    await close()
            self._ended(self.tree("left"), None)

    def _take(self, value: Any) -> None:
        self._require_open()
        self._pieces.append([round(self._since_s() * 1000, 3), self._piece_json(value)])

    def _piece_json(self, value: Any) -> Plain:
        return decoded(kept(value, f"{self._what}: a piece of its answer"))


class ReplayedStream:
    """A recorded answer that arrived later, as the code gets it."""

    def __init__(
        self, served: Callable[[Plain], Any], failed: BaseException | None,
        ended: Callable[[BaseException | None], None], wait_s: float = 0,
    ) -> None:  # fmt: skip
        """Set up a recorded answer.

        Args:
            served: Restores an answer from its tree.
            failed: Raised after the answer, if the call failed.
            ended: Called when everything was returned.
            wait_s: The wait before the failure, in seconds, so that whatever cancelled the call does so again.
        """
        self._served = served
        self._failed = failed
        self._ended = ended
        self._wait_s = wait_s

    def given(self, tree: Plain) -> Any:
        """Return the wrapper for the code."""
        if _AWAITED in tree:
            return self._await_answer(tree[_AWAITED])
        return self._pieces_async(tree) if tree["is_async"] else self._pieces(tree)

    async def _await_answer(self, tree: Plain) -> Any:
        if was_lazy(tree):
            return self.given(tree)
        await self._wait()
        self._end()
        return self._served(tree)

    def _pieces(self, tree: Plain) -> Generator[Any, None, Any]:
        try:
            for _, value in tree[_PIECES]:
                yield loaded(value)
        except GeneratorExit:
            self._ended(None)
            raise
        self._end()
        return loaded(tree.get("returned"))

    async def _pieces_async(self, tree: Plain) -> AsyncIterator[Any]:
        try:
            for _, value in tree[_PIECES]:
                yield loaded(value)
        except GeneratorExit:
            self._ended(None)
            raise
        await self._wait()
        self._end()

    async def _wait(self) -> None:
        if self._wait_s:
            try:
                await asyncio.sleep(self._wait_s)
            except BaseException as error:
                self._ended(error)
                raise

    def _end(self) -> None:
        self._ended(self._failed)
        if self._failed is not None:
            raise self._failed


async def awaiting(
    answer: Awaitable[Any], inside: Inside, kept_as: Callable[[Any], Any], failed: Callable[[BaseException], None]
) -> Any:
    """Await a call's answer.

    Args:
        answer: The awaitable.
        inside: A context for its work.
        kept_as: Records the answer and returns the object for the code.
        failed: Called with the error if it fails.
    """
    try:
        with inside():
            found = await answer
        return kept_as(found)
    except BaseException as error:
        failed(error)
        raise


def _do_nothing() -> None:
    pass
