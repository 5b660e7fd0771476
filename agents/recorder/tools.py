"""Tools: functions of the agent's that touch the world, recorded where they are called.

    @refold.tool(effect="read")
    def search(query): ...

    @refold.tool(effect="write", undo=cancel_refund)
    def refund(order, amount, *, idempotency_key=""): ...

A tool called in a run is recorded in it, or answered from its recording; outside of any run it is the plain function. A
write tool takes effect once for each idempotency key (agents/effects/), which it is given in the parameter of that name
where it has one. That parameter is not in the tool's signature: frameworks that describe a tool to a model by its
signature leave it out. The request is what was called with, by the parameters' names: refund(1, 2) and refund(order=1,
amount=2) are the same.
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
class Trying:
    """How often something is tried: at most so many attempts, each wait twice the one before, on these errors only."""

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
        """The wait before the next attempt after so many failed ones; None: there is none."""
        if failed >= self.attempts_max or not isinstance(error, self.on):
            return None
        return self.backoff_ms << (failed - 1)


class Tool:
    """What a run knows of a tool. trying: how reads are tried; terms: how writes are. undo: module:function."""

    def __init__(
        self, function: Callable[..., Any], effect: Literal["read", "write"], name: str, returns: Any,
        trying: Trying, terms: Terms, undo: Undo | None, volatile: Volatile = WHOLE,
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
        # Binding costs as much as all else about a call, and changes nothing where all is given by name.
        kinds = {each.kind for each in parameters.values()}
        self._is_named = (
            inspect.Parameter.VAR_POSITIONAL not in kinds and inspect.Parameter.POSITIONAL_ONLY not in kinds
        )

    def request(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Plain:
        """What is called with, by name, without the key. TypeError as of the function where it does not fit.

        Raises:
            InputError: a key is given.
        """
        if args or not self._is_named:
            bound = self._signature.bind_partial(*args, **kwargs)
            args, kwargs = _unnamed(bound)
        given = kwargs.get(KEY_PARAMETER) if self.takes_key else None
        if given and given != self._signature.parameters[KEY_PARAMETER].default:
            raise InputError(f"{self.name}: leave {KEY_PARAMETER} out, the run gives it")
        named = {name: value for name, value in kwargs.items() if name != KEY_PARAMETER}
        return {"args": list(args), "kwargs": named} if args else {"kwargs": named}

    def keyed(self, key: str) -> dict[str, str]:
        """The key, where the function takes it."""
        return {KEY_PARAMETER: key} if self.takes_key else {}

    def hide_key(self, function: Any) -> None:
        """Show a function, which wraps this tool's, without the key to who asks for its signature."""
        if self.takes_key:
            shown = [each for name, each in self._signature.parameters.items() if name != KEY_PARAMETER]
            function.__signature__ = self._signature.replace(parameters=shown)
            function.__annotations__ = {
                name: kind for name, kind in function.__annotations__.items() if name != KEY_PARAMETER
            }

    def plain(self, answer: object) -> Plain:
        """An answer as the ledger keeps it; a Done goes on with its receipt."""
        if isinstance(answer, Done):
            return Done(decoded(self.shape.recorded(answer.result)), answer.receipt)
        return decoded(self.shape.recorded(answer))


def _unnamed(bound: inspect.BoundArguments) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What has no name, and what has one."""
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
    """Make a function, sync or async, a tool of whatever run it is called in.

    effect: "read", or "write" for what changes the world: it takes place once for each key (docs/EFFECTS.md). name:
    else the function's. returns: the type of its answers, where they are no JSON values and it has no annotation.
    attempts_max, backoff_ms: how often it is tried, a read once and a write 3 times if not said otherwise, and the
    first wait, doubled each time. A read is tried again on the errors in retry_on; a write only on those in `safe`,
    and on NotDone, which say that nothing happened. lease_s: at least twice as long as a write may take. probe(key,
    arguments): finds out what became of a write of which nothing is known. undo(performed): takes it back, when asked.
    ignore: paths of arguments that may differ where a recorded call is found, such as ("request_id", "options.at");
    key(arguments): what it is found by in place of them (docs/AGENTS.md).
    """
    if effect not in ("read", "write"):
        raise InputError(f"effect: read or write, given {effect!r}")
    volatile = Volatile(ignore, key)

    def made(function: Callable[P, T]) -> Callable[P, T]:
        called = name or function.__name__
        trying = Trying(1 if attempts_max is None else attempts_max, backoff_ms, retry_on)
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

        # Whoever asks whether it is a coroutine function hears what holds of the function.
        kept: Any = awaited if found.is_async else recorded
        kept.refold_tool = found
        found.hide_key(kept)
        return cast(Callable[P, T], kept)

    return made if function is None else made(function)


def tool_of(function: Callable[..., Any]) -> Tool | None:
    """The Tool behind what `tool` made of a function."""
    found = getattr(function, "refold_tool", None)
    return found if isinstance(found, Tool) else None
