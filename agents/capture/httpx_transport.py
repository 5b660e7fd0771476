"""Exchanges of SDK clients that use httpx, recorded at the transport: `run.client(openai.OpenAI())`.

The SDK builds its own objects from the same bytes in a recording and in a replay. The code gets a copy of the SDK's
client whose httpx client has a transport of refold's around its own:

1. A request becomes an open call of the run (agents/recorder/open_call.py), found again by its content
   (agents/capture/exchange.py).
2. If the recording answers, the response is built from it, and nothing is sent.
3. Otherwise the client's own transport sends it. The body passes to the SDK and is recorded as it is read; when it
   ends, breaks, or is closed, the exchange is recorded.
4. A body that is read after its step has ended raises Unfinished, because it would not be recorded.
5. If `refold record` or `refold proxy` captures the program too, the request names its step (step_header.py).

Each attempt of an SDK's own retries is a separate exchange. This works with httpx and httpx2; the client shows which of
them is in use.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import importlib
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from types import ModuleType
from typing import Any, Protocol, TypeVar

import msgspec

from refold.agents.capture.exchange import (
    Broken,
    Response,
    bytes_of,
    name_of,
    request_of,
)
from refold.agents.capture.step_header import HTTPX_MODULES, STEP_HEADER, is_for_proxy
from refold.agents.journal.record import Kind, Plain
from refold.agents.journal.volatile import WHOLE, Volatile
from refold.agents.recorder.failures import Unfinished
from refold.agents.recorder.open_call import OpenCall
from refold.avro.errors import InputError

T = TypeVar("T")


class Exchanges(Protocol):
    """The part of a run that exchanges need."""

    def opened(self, kind: Kind, name: str, request: Plain) -> OpenCall:
        """Begin an exchange."""

    def arguments(self, name: str) -> Mapping[str, Plain]:
        """Return the arguments that a fork changes in a request's JSON."""


def recorded_client(run: Exchanges, client: T, monotonic_s: Callable[[], float], volatile: Volatile = WHOLE) -> T:
    """Return a copy of an SDK's client, or of an httpx client, whose exchanges belong to the run.

    Args:
        run: The run.
        client: The client.
        monotonic_s: A monotonic clock, seconds.
        volatile: The parts of requests that are not compared.

    Raises:
        InputError: It holds no httpx client.
    """
    if _module_of(client) is not None:
        return _recording_client(run, client, monotonic_s, volatile)
    place = next((name for name, each in _attributes(client) if _module_of(each) is not None), None)
    if place is None:
        raise InputError(
            f"{type(client).__qualname__} is not a client that uses httpx: pass its calls through "
            "run.model(client.method, ...)"
        )
    inner = _recording_client(run, getattr(client, place), monotonic_s, volatile)
    again = getattr(client, "copy", None)
    if callable(again):
        try:
            made: T = again(http_client=inner)
            return made
        except TypeError:
            pass  # its `copy` copies something else
    made = copy.copy(client)
    for name in [name for name in vars(made) if isinstance(getattr(type(made), name, None), functools.cached_property)]:
        del vars(made)[name]  # it refers to the client from which the copy was made
    setattr(made, place, inner)
    return made


def _attributes(client: object) -> list[tuple[str, Any]]:
    return list(getattr(client, "__dict__", {}).items())


def _module_of(client: object) -> ModuleType | None:
    """Return httpx or httpx2 if the object is a client of that library."""
    for each in type(client).__mro__:
        module = each.__module__.partition(".")[0]
        if module in HTTPX_MODULES and each.__name__ in ("Client", "AsyncClient"):
            return importlib.import_module(module)
    return None


def _recording_client(run: Exchanges, client: T, monotonic_s: Callable[[], float], volatile: Volatile) -> T:
    module = _module_of(client)
    assert module is not None
    is_async = isinstance(client, module.AsyncClient)
    kind = AsyncTransport if is_async else Transport
    copied: Any = copy.copy(client)
    wrapped: Any = client

    def recording(transport: Any) -> Any:
        """Return the inner transport of a client that is recorded already, so that an exchange is recorded once."""
        inner = transport._inner if isinstance(transport, _Transport) else transport
        return kind(run, module, inner, monotonic_s, volatile)

    copied._transport = recording(wrapped._transport)
    copied._mounts = {pattern: None if each is None else recording(each) for pattern, each in wrapped._mounts.items()}
    found: T = copied
    return found


class _Transport:
    """The common part of both transports. The owner of the SDK's own transport closes it."""

    def __init__(
        self, run: Exchanges, module: ModuleType, inner: Any, monotonic_s: Callable[[], float], volatile: Volatile
    ) -> None:
        self._run = run
        self._module = module
        self._inner = inner
        self._monotonic_s = monotonic_s
        self._volatile = volatile

    def _open_call(self, request: Any, body: bytes) -> tuple[OpenCall, Any]:
        """Return the call, and the request to be sent."""
        url, content_type = str(request.url), request.headers.get("content-type", "")
        name = name_of(request.method, url)
        changed = self._run.arguments(name)
        if changed and content_type.startswith("application/json"):
            body = msgspec.json.encode({**msgspec.json.decode(body), **changed})
            headers = [(key, value) for key, value in request.headers.multi_items() if key.lower() != "content-length"]
            request = self._build_request(request, body, headers)
        asking = self._volatile.asking(request_of(request.method, url, content_type, body))
        call = self._run.opened("model", name, asking)
        if not call.is_recorded and is_for_proxy(url, os.environ):
            request = self._build_request(request, body, [*request.headers.multi_items(), (STEP_HEADER, call.step)])
        return call, request

    def _build_request(self, request: Any, body: bytes, headers: list[tuple[str, str]]) -> Any:
        return self._module.Request(
            request.method, request.url, headers=headers, content=body, extensions=request.extensions
        )

    def _response(self, call: OpenCall, request: Any, found: Any) -> tuple[Response, Mapping[str, Any]]:
        """Return the collector of a response, and the properties that the SDK's response shares with it."""
        http = found.extensions.get("http_version", b"HTTP/1.1").decode("ascii", "replace")
        collected = Response(
            request.headers.multi_items(), http, found.status_code, found.headers.multi_items(),
            self._monotonic_s() * 1000,
        )  # fmt: skip
        call.settle_with(functools.partial(collected.answer, "left"))
        return collected, self._head(found.status_code, collected.headers, http)

    @staticmethod
    def _head(status: int, headers: Plain, http: str) -> dict[str, Any]:
        return {"status_code": status, "headers": headers, "extensions": {"http_version": http.encode()}}

    def _broken(self, error: BaseException) -> Broken:
        return Broken(type(error).__name__, str(error))

    def _error(self, answer: Plain) -> BaseException | None:
        """Return the error with which a recorded body ended; None if it was whole."""
        if answer["end"] == "left":
            return Unfinished("the code reads more of a response than it read when it was recorded")
        if answer["end"] != "broken":
            return None
        if answer["error"]["class"] == asyncio.CancelledError.__name__:
            return asyncio.CancelledError()
        kind = getattr(self._module, answer["error"]["class"], None)
        if not (isinstance(kind, type) and issubclass(kind, self._module.TransportError)):
            kind = self._module.ReadError
        broken: BaseException = kind(answer["error"]["message"])
        return broken

    def _require_open(self, call: OpenCall) -> None:
        if not call.is_open:
            raise Unfinished(
                "a response was read after its step had ended: read it in the step, and open one around responses that "
                "are read at once"
            )


class Transport(_Transport):
    """For httpx.Client."""

    def handle_request(self, request: Any) -> Any:
        """As httpx's transports."""
        call, request = self._open_call(request, request.read())
        if call.is_recorded:
            return self._replayed_response(call)
        try:
            found = self._inner.handle_request(request)
        except BaseException as error:
            call.failed(error)
            raise
        collected, head = self._response(call, request, found)

        def pieces() -> Iterator[bytes]:
            try:
                for data in found.iter_bytes():
                    self._require_open(call)
                    collected.add(data, self._monotonic_s() * 1000)
                    yield data
            except self._module.TransportError as error:
                call.answered(collected.answer("broken", self._broken(error)))
                raise
            call.answered(collected.answer())

        def close() -> None:
            found.close()
            call.answered(collected.answer("left"))

        return self._module.Response(**head, stream=_stream(self._module, pieces, close))

    def _replayed_response(self, call: OpenCall) -> Any:
        answer = call.recorded

        def pieces() -> Iterator[bytes]:
            for _, body in answer["chunks"]:
                yield bytes_of(body)
            if (error := self._error(answer)) is not None:
                raise error

        head = self._head(answer["status"], answer["headers"], answer["http"])
        return self._module.Response(**head, stream=_stream(self._module, pieces, call.done))

    def close(self) -> None:
        """Do nothing: see the class."""

    def __enter__(self) -> Transport:
        return self

    def __exit__(self, *error: object) -> None:
        """Do nothing."""


class AsyncTransport(_Transport):
    """For httpx.AsyncClient."""

    async def handle_async_request(self, request: Any) -> Any:
        """As httpx's transports."""
        call, request = self._open_call(request, await request.aread())
        if call.is_recorded:
            await call.wait_as_then()
            return self._replayed_response(call)
        try:
            found = await self._inner.handle_async_request(request)
        except BaseException as error:
            call.failed(error)
            raise
        collected, head = self._response(call, request, found)

        async def pieces() -> AsyncIterator[bytes]:
            try:
                async for data in found.aiter_bytes():
                    self._require_open(call)
                    collected.add(data, self._monotonic_s() * 1000)
                    yield data
            except (self._module.TransportError, asyncio.CancelledError) as error:
                call.answered(collected.answer("broken", self._broken(error)))
                raise
            call.settle_with(collected.answer)  # the answer is complete, even if the step ends before it is encoded
            await call.answered_beside_loop(collected.answer, collected.body)

        async def close() -> None:
            await found.aclose()
            await call.answered_beside_loop(functools.partial(collected.answer, "left"), collected.body)

        return self._module.Response(**head, stream=_async_stream(self._module, pieces, close))

    def _replayed_response(self, call: OpenCall) -> Any:
        answer = call.recorded

        async def pieces() -> AsyncIterator[bytes]:
            for _, body in answer["chunks"]:
                yield bytes_of(body)
            if (error := self._error(answer)) is not None:
                if isinstance(error, asyncio.CancelledError):
                    await call.wait_as_then(is_cancelled=True)
                raise error

        async def close() -> None:
            call.done()

        head = self._head(answer["status"], answer["headers"], answer["http"])
        return self._module.Response(**head, stream=_async_stream(self._module, pieces, close))

    async def aclose(self) -> None:
        """Do nothing: see the class."""

    async def __aenter__(self) -> AsyncTransport:
        return self

    async def __aexit__(self, *error: object) -> None:
        """Do nothing."""


def _stream(module: ModuleType, pieces: Callable[[], Iterator[bytes]], close: Callable[[], None]) -> Any:
    """Return a body of the class that httpx requires. A second iteration continues where the first one stopped."""
    body = pieces()
    kind: Any = type(
        "RecordedStream", (module.SyncByteStream,), {"__iter__": lambda self: body, "close": lambda self: close()}
    )
    return kind()


def _async_stream(module: ModuleType, pieces: Callable[[], AsyncIterator[bytes]], close: Callable[[], Any]) -> Any:
    body = pieces()
    kind: Any = type(
        "RecordedAsyncStream", (module.AsyncByteStream,),
        {"__aiter__": lambda self: body, "aclose": lambda self: close()},
    )  # fmt: skip
    return kind()
