"""The header by which a request names the step that records it, to the proxy that captures the program too.

If a program records its own run, and `refold record` or `refold proxy` captures it, both see the same exchanges. So the
recorder names the step, RUN#N, in STEP_HEADER: to the proxy that REFOLD_PROXY names, and to no other server. The proxy
does not pass it on. It links its record of the exchange to that step (recordings/same_turns.py).

1. A client of `run.client` has a transport of refold's, which adds the header (httpx_transport.py).
2. A function that `run.model` calls may use any client. So the first such call wraps methods of HTTP libraries, as
   tracing libraries do: `handle_request` of httpx's own transports, and `endheaders` of http.client, which urllib,
   requests and botocore use. A wrapped method adds the header to requests that are sent within `requests_of`, and
   changes no others.
3. Requests of a tool are no calls of a model, and are not named.

Without REFOLD_PROXY nothing is wrapped. Other libraries, such as aiohttp, and transports that a program brings itself
send no header: such a run and its capture are two runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, wraps
from importlib import import_module
from typing import Any

STEP_HEADER = "Refold-Step"
PROXY_ENVIRONMENT = "REFOLD_PROXY"
HTTPX_MODULES = ("httpx", "httpx2")

_STEP: ContextVar[str] = ContextVar("refold.step_of_requests", default="")


def is_for_proxy(url: str, environment: Mapping[str, str]) -> bool:
    """Return whether a request is sent to the proxy that captures this program, if one does."""
    proxy = environment.get(PROXY_ENVIRONMENT, "").rstrip("/")
    return bool(proxy) and url.startswith(f"{proxy}/")


@contextmanager
def requests_of(step: str | None) -> Iterator[None]:
    """Name a step in the requests that are sent in this context.

    Args:
        step: The step, RUN#N; "" for requests that no step records; None for the step that is named already.
    """
    if step is None or PROXY_ENVIRONMENT not in os.environ:
        yield
        return
    _wrap_libraries()
    token = _STEP.set(step)
    try:
        yield
    finally:
        _STEP.reset(token)


@cache
def _wrap_libraries() -> None:
    for name in HTTPX_MODULES:
        try:
            module: Any = import_module(name)
        except ImportError:
            continue
        for kind, method in (
            (module.HTTPTransport, "handle_request"),
            (module.AsyncHTTPTransport, "handle_async_request"),
        ):
            setattr(kind, method, _named_by_httpx(getattr(kind, method)))
    connection: Any = import_module("http.client").HTTPConnection
    connection.endheaders = _named_by_http_client(connection.endheaders)


def _named_by_httpx(send: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(send)
    def sending(transport: Any, request: Any) -> Any:
        step = _STEP.get()
        if step and STEP_HEADER not in request.headers and is_for_proxy(str(request.url), os.environ):
            # Another request, because the headers of the client's own are used again after a redirect.
            headers = [*request.headers.multi_items(), (STEP_HEADER, step)]
            request = type(request)(
                request.method, request.url, headers=headers, stream=request.stream, extensions=request.extensions
            )
        return send(transport, request)

    return sending


def _named_by_http_client(end: Callable[..., None]) -> Callable[..., None]:
    @wraps(end)
    def ending(connection: Any, *args: Any, **kwargs: Any) -> None:
        step = _STEP.get()
        if step and is_for_proxy(f"http://{connection.host}:{connection.port}/", os.environ):
            connection.putheader(STEP_HEADER, step)
        end(connection, *args, **kwargs)

    return ending
