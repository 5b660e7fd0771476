"""HTTP messages in exceptions, as JSON: requests and responses of httpx and of requests.

    httpx.Request       {"method", "url", "headers", "body"}
    httpx.Response      {"status", "headers", "body", "request": the above or null}
    requests.PreparedRequest, requests.Response   the same; of a response "reason", "url" and "encoding" too

Headers, URLs and bodies are kept by the rules of an exchange (capture/exchange.py): of a request's headers only
harmless ones, of a response's those without the name of a secret. A body is null if it was not read, or is too long;
reading it then fails as it does for an unread body.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any, NamedTuple

from refold.agents.capture.exchange import bytes_of, kept, kept_headers, sent_headers, shown_url
from refold.agents.journal.record import Plain

Body = Callable[[object], Plain]


class MessageClass(NamedTuple):
    """One class of messages.

    Attributes:
        take: Converts a message to JSON, given a function that converts its body.
        make: Creates a message of this class from its JSON.
    """

    module: str
    name: str
    take: Callable[[Any, Body], Plain]
    make: Callable[[Any, Mapping[str, Plain]], Any]


def message_of(value: object) -> MessageClass | None:
    """Return the class of messages that a value belongs to; None if it is not a message."""
    for each in MESSAGES.values():
        module = sys.modules.get(each.module)
        if module is not None and type(value) is vars(module).get(each.name):
            return each
    return None


def message_made(name: str, form: Plain) -> Any:
    """Create the message from its JSON.

    Args:
        name: The name of its class.
        form: Its JSON.

    Raises:
        LookupError: There is no class of the name, or its library is not imported here.
    """
    found = MESSAGES[name]
    module: ModuleType = sys.modules[found.module]
    return found.make(module, form)


def _httpx_request(value: Any, body: Body) -> Plain:
    sent = sent_headers(value.headers.multi_items())
    return {"method": value.method, "url": shown_url(str(value.url)), "headers": sent, "body": body(_read(value))}


def _httpx_response(value: Any, body: Body) -> Plain:
    request = getattr(value, "_request", None)
    return {
        "status": value.status_code, "headers": kept_headers(value.headers.multi_items()), "body": body(_read(value)),
        "request": None if request is None else _httpx_request(request, body),
    }  # fmt: skip


def _read(value: Any) -> object:
    """Return the part of a body that was read; None if nothing was."""
    try:
        return value.content
    except Exception:  # httpx has several errors for a body that was not read, or not completely
        return None


def _httpx_request_made(module: Any, form: Mapping[str, Plain]) -> Any:
    return module.Request(form["method"], form["url"], headers=form["headers"], content=_bytes(form))


def _httpx_response_made(module: Any, form: Mapping[str, Plain]) -> Any:
    request = None if form["request"] is None else _httpx_request_made(module, form["request"])
    headers = kept_headers(form["headers"])  # a header that names an encoding would decode the body again
    if form["body"] is not None:
        return module.Response(form["status"], headers=headers, content=_bytes(form), request=request)

    def unread(stream: object) -> Iterator[bytes]:
        raise module.StreamClosed()

    stream: Any = type("UnreadStream", (module.SyncByteStream,), {"__iter__": unread})
    return module.Response(form["status"], headers=headers, stream=stream(), request=request)


def _requests_request(value: Any, body: Body) -> Plain:
    sent = sent_headers((value.headers or {}).items())
    return {"method": value.method, "url": shown_url(str(value.url)), "headers": sent, "body": body(value.body)}


def _requests_response(value: Any, body: Body) -> Plain:
    request = value.request
    return {
        "status": value.status_code, "reason": value.reason, "url": shown_url(str(value.url)),
        "encoding": value.encoding, "headers": kept_headers(value.headers.items()),
        "body": body(value._content if value._content_consumed else None),
        "request": None if request is None else _requests_request(request, body),
    }  # fmt: skip


def _requests_request_made(module: Any, form: Mapping[str, Plain]) -> Any:
    request = module.PreparedRequest()
    request.method, request.url = form["method"], form["url"]
    request.headers = module.structures.CaseInsensitiveDict(form["headers"])
    request.body = _bytes(form)
    return request


def _requests_response_made(module: Any, form: Mapping[str, Plain]) -> Any:
    response = module.Response()
    response.status_code, response.reason, response.url = form["status"], form["reason"], form["url"]
    response.encoding = form["encoding"]
    response.headers.update(form["headers"])
    if form["body"] is not None:
        response._content, response._content_consumed = _bytes(form), True
    response.request = None if form["request"] is None else _requests_request_made(module, form["request"])
    return response


def _bytes(form: Mapping[str, Plain]) -> bytes | None:
    return None if form["body"] is None else bytes_of(form["body"])


def body_of(data: object) -> Plain:
    """Return a body as JSON; null if it is neither text nor bytes."""
    if isinstance(data, str):
        data = data.encode()
    return kept(data) if isinstance(data, bytes) else None


MESSAGES: Mapping[str, MessageClass] = {
    f"{each.module}.{each.name}": each
    for each in (
        *(MessageClass(module, "Request", _httpx_request, _httpx_request_made) for module in ("httpx", "httpx2")),
        *(MessageClass(module, "Response", _httpx_response, _httpx_response_made) for module in ("httpx", "httpx2")),
        MessageClass("requests", "PreparedRequest", _requests_request, _requests_request_made),
        MessageClass("requests", "Response", _requests_response, _requests_response_made),
    )
}
