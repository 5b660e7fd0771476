"""The bytes of responses as an SDK receives them, before it parses them: of all clients of httpx and httpx2."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch


@contextmanager
def received_bytes() -> Iterator[list[bytearray]]:
    """Yield the bodies of the responses that arrive in the block, in order; they grow as they are read."""
    bodies: list[bytearray] = []

    def watched(module: Any, response: Any) -> Any:
        body, inner = bytearray(), response.stream
        bodies.append(body)

        class Watched(module.SyncByteStream, module.AsyncByteStream):  # type: ignore[misc]  # the module is a variable
            def __iter__(self) -> Iterator[bytes]:
                for piece in inner:
                    body.extend(piece)
                    yield piece

            async def __aiter__(self) -> AsyncIterator[bytes]:
                async for piece in inner:
                    body.extend(piece)
                    yield piece

            def close(self) -> None:
                inner.close()

            async def aclose(self) -> None:
                await inner.aclose()

        response.stream = Watched()
        return response

    def sending(module: Any, send: Callable[..., Any]) -> Callable[..., Any]:
        return lambda transport, request: watched(module, send(transport, request))

    def sending_async(module: Any, send: Callable[..., Any]) -> Callable[..., Any]:
        async def sent(transport: Any, request: Any) -> Any:
            return watched(module, await send(transport, request))

        return sent

    with ExitStack() as stack:
        for name in ("httpx", "httpx2"):
            module: Any = importlib.import_module(name)
            kind, async_kind = module.HTTPTransport, module.AsyncHTTPTransport
            stack.enter_context(patch.object(kind, "handle_request", sending(module, kind.handle_request)))
            made = sending_async(module, async_kind.handle_async_request)
            stack.enter_context(patch.object(async_kind, "handle_async_request", made))
        yield bodies
