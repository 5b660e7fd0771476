"""Tools: functions of an agent that read or change the world, recorded when they are called.

    @refold.tool(effect="read")
    def search(query): ...

    @refold.tool(effect="write", undo=cancel_refund)
    def refund(order, amount, *, idempotency_key=""): ...

A tool called in a run is recorded in it, or answered from its recording. Outside any run it is the plain function. A
write tool takes effect once for each idempotency key (agents/effects/), which is passed in the parameter of that name
if the function has one. That parameter is not in the tool's signature, so frameworks that describe a tool to a model by
its signature leave it out. The request is the arguments by parameter name: refund(1, 2) and refund(order=1, amount=2)
are equal.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, ParamSpec, TypeVar, cast, overload

from refold.agents.effects.order import ATTEMPTS_MAX, BACKOFF_MS, LEASE_S, Done, Probe, Terms, Undo
from refold.agents.entry import name_of
from refold.agents.journal.record import Plain
from refold.agents.journal.volatile import WHOLE, Volatile
from refold.agents.recorder.context import current
from refold.agents.recorder.plain import Shape, decoded, shape_of
from refold.avro.errors import InputError

P = ParamSpec("P")
T = TypeVar("T")

KEY_PARAMETER = "idempotency_key"
_NAMELESS = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY}


@dataclass(frozen=True)
class RetryPolicy:
    """A retry policy: the maximum of attempts, waits that double each time, and the errors that are retried."""

    attempts_max: int = 1
    backoff_ms: int = 0
    on: tuple[type[Exception], ...] = (Exception,)

    def __post_init__(self) -> None:
        if self.attempts_max < 1 or self.backoff_ms < 0:
            raise InputError(
                f"attempts_max={self.attempts_max}, backoff_ms={self.backoff_ms}: at least 1 attempt, and a wait of 0 "
                "or more milliseconds"
            )

    def wait_ms(self, failed: int, error: BaseException) -> int | None:
        """Return the wait before the next attempt, in milliseconds; None if there is none.

        Args:
            failed: How many attempts have failed.
            error: The error of the last one.
        """
        if failed >= self.attempts_max or not isinstance(error, self.on):
            return None
        return self.backoff_ms << (failed - 1)


class Tool:
    """A run's description of a tool.

    Attributes:
        trying: The retry policy of reads.
        terms: The terms of writes.
        undo: The name of the function that undoes it, MODULE:FUNCTION; "" without one.
    """

    def __init__(
        self, function: Callable[..., Any], effect: Literal["read", "write"], name: str, returns: Any,
        trying: RetryPolicy, terms: Terms, undo: Undo | None, volatile: Volatile = WHOLE,
    ) -> None:  # fmt: skip
        self.volatile = volatile
        self.function = function
        self.effect = effect
        self.name = name
        self.trying = trying
        self.terms = terms
        self.undo = name_of(undo) if undo is not None else ""
        self.is_async = inspect.iscoroutinefunction(function)
        self.shape: Shape = shape_of(function, returns, f"the tool {name}")
        self._signature = inspect.signature(function)
        parameters = self._signature.parameters
        self.takes_key = KEY_PARAMETER in parameters
        # Binding takes as long as the rest of a call, and changes nothing if every argument is given by name.
        kinds = {each.kind for each in parameters.values()}
        self._is_named = (
            inspect.Parameter.VAR_POSITIONAL not in kinds and inspect.Parameter.POSITIONAL_ONLY not in kinds
        )

    def request(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Plain:
        """Return the arguments by name, without the key. Raises TypeError as the function would if they do not fit.

        Raises:
            InputError: A key is given.
        """
        if args or not self._is_named:
            bound = self._signature.bind_partial(*args, **kwargs)
            args, kwargs = _unnamed(bound)
        given = kwargs.get(KEY_PARAMETER) if self.takes_key else None
        if given and given != self._signature.parameters[KEY_PARAMETER].default:
            raise InputError(f"{self.name}: leave {KEY_PARAMETER} out, the run passes it")
        named = {name: value for name, value in kwargs.items() if name != KEY_PARAMETER}
        return {"args": list(args), "kwargs": named} if args else {"kwargs": named}

    def keyed(self, key: str) -> dict[str, str]:
        """Return the key as a keyword argument, if the function takes it."""
        return {KEY_PARAMETER: key} if self.takes_key else {}

    def hide_key(self, function: Any) -> None:
        """Hide the key parameter in the signature of a function that wraps this tool's."""
        if self.takes_key:
            shown = [each for name, each in self._signature.parameters.items() if name != KEY_PARAMETER]
            function.__signature__ = self._signature.replace(parameters=shown)
            function.__annotations__ = {
                name: kind for name, kind in function.__annotations__.items() if name != KEY_PARAMETER
            }

    def send(self, args: tuple[Any, ...], kwargs: dict[str, Any], key: str) -> Plain:
        """Call the function of a write tool.

        Args:
            args: Its positional arguments.
            kwargs: Its keyword arguments, without the key.
            key: The idempotency key, which the function gets if it takes one.

        Returns:
            The answer as the ledger stores it.
        """
        return self.plain(self.function(*args, **{**kwargs, **self.keyed(key)}))

    async def send_async(self, args: tuple[Any, ...], kwargs: dict[str, Any], key: str) -> Plain:
        """As `send`, for an async function."""
        return self.plain(await self.function(*args, **{**kwargs, **self.keyed(key)}))

    def plain(self, answer: object) -> Plain:
        """Return an answer as the ledger stores it; a Done keeps its receipt."""
        if isinstance(answer, Done):
            return Done(decoded(self.shape.recorded(answer.result)), answer.receipt)
        return decoded(self.shape.recorded(answer))


def _unnamed(bound: inspect.BoundArguments) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and the keyword arguments."""
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            args = value
        elif kind is inspect.Parameter.VAR_KEYWORD:
            kwargs |= value
        else:
            kwargs[name] = value
    return args, kwargs


@overload
def tool(function: Callable[P, T], /) -> Callable[P, T]: ...


@overload
def tool(
    *, effect: Literal["read", "write"] = "read", name: str | None = None, returns: Any = None,
    attempts_max: int | None = None, backoff_ms: int = BACKOFF_MS, retry_on: tuple[type[Exception], ...] = (Exception,),
    safe: tuple[type[Exception], ...] = (), lease_s: float = LEASE_S, probe: Probe | None = None,
    undo: Undo | None = None, ignore: Iterable[str] = (), key: Callable[[Any], Any] | None = None,
) -> Callable[[Callable[P, T]], Callable[P, T]]: ...  # fmt: skip


@overload
def tool(
    function: Callable[P, T], /, *, effect: Literal["read", "write"] = "read", name: str | None = None,
    returns: Any = None, attempts_max: int | None = None, backoff_ms: int = BACKOFF_MS,
    retry_on: tuple[type[Exception], ...] = (Exception,), safe: tuple[type[Exception], ...] = (),
    lease_s: float = LEASE_S, probe: Probe | None = None, undo: Undo | None = None, ignore: Iterable[str] = (),
    key: Callable[[Any], Any] | None = None,
) -> Callable[P, T]: ...  # fmt: skip


def tool(
    function: Callable[..., Any] | None = None, /, *, effect: Literal["read", "write"] = "read",
    name: str | None = None, returns: Any = None, attempts_max: int | None = None, backoff_ms: int = BACKOFF_MS,
    retry_on: tuple[type[Exception], ...] = (Exception,), safe: tuple[type[Exception], ...] = (),
    lease_s: float = LEASE_S, probe: Probe | None = None, undo: Undo | None = None, ignore: Iterable[str] = (),
    key: Callable[[Any], Any] | None = None,
) -> Any:  # fmt: skip
    """Make a function, sync or async, a tool of the run in which it is called.

    Args:
        function: The function; without it, a decorator is returned.
        effect: "read", or "write" for a function that changes the world: it takes effect once for each key
            (docs/EFFECTS.md).
        name: The tool's name [the function's].
        returns: The type of its answers, if they are not JSON values and it has no annotation.
        attempts_max: The maximum of attempts [1 for a read, 3 for a write].
        backoff_ms: The first wait, doubled each time.
        retry_on: The errors after which a read is retried.
        safe: The errors that mean that nothing happened. A write is retried only after these, and after NotDone.
        lease_s: At least twice as long as a write may take.
        probe: probe(key, arguments) finds out the result of a write of unknown status.
        undo: undo(performed) undoes it, on request.
        ignore: Paths of arguments that may differ when a recorded call is searched, such as ("request_id",
            "options.at").
        key: key(arguments) returns the value that is compared instead (docs/AGENTS.md).

    Raises:
        InputError: An argument is invalid.
    """
    if effect not in ("read", "write"):
        raise InputError(f"effect: read or write, given {effect!r}")
    volatile = Volatile(ignore, key)

    def made(function: Callable[P, T]) -> Callable[P, T]:
        called = name or function.__name__
        trying = RetryPolicy(1 if attempts_max is None else attempts_max, backoff_ms, retry_on)
        terms = Terms(ATTEMPTS_MAX if attempts_max is None else attempts_max, backoff_ms, lease_s, safe, probe)
        found = Tool(function, effect, called, returns, trying, terms, undo, volatile)

        @functools.wraps(function)
        def recorded(*args: P.args, **kwargs: P.kwargs) -> T:
            run = current(called)
            if run is None:
                return function(*args, **kwargs)
            return cast(T, run.call_tool(found, args, kwargs))

        @functools.wraps(function)
        async def awaited(*args: P.args, **kwargs: P.kwargs) -> Any:
            return await cast(Awaitable[Any], recorded(*args, **kwargs))

        # Makes inspect.iscoroutinefunction return the same as for the function.
        kept: Any = awaited if found.is_async else recorded
        kept.refold_tool = found
        found.hide_key(kept)
        return cast(Callable[P, T], kept)

    return made if function is None else made(function)


def tool_of(function: Callable[..., Any]) -> Tool | None:
    """Return the Tool of a function made by `tool`."""
    found = getattr(function, "refold_tool", None)
    return found if isinstance(found, Tool) else None
