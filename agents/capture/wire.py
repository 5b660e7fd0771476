"""The HTTP that a proxy and a replay share: which requests they accept, their own answers, and headers to pass on."""

from __future__ import annotations

import json
import re
from typing import Any

import aiohttp
from aiohttp import web
from multidict import CIMultiDict

from refold.agents.capture.step_header import STEP_HEADER
from refold.streams.web.guard import Head, RequestGuard

_OF_THE_CONNECTION = frozenset({
    "connection", "keep-alive", "proxy-connection", "proxy-authenticate", "te", "trailer", "transfer-encoding",
    "upgrade", "host", "expect", STEP_HEADER.lower(),
})  # fmt: skip
_CONTROLS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


def error_response(status: int, message: str) -> web.Response:
    """Return a response of the proxy itself, in a form that the SDKs of OpenAI, Anthropic, Google and Amazon show."""
    error = {"type": "refold_proxy", "message": f"refold: {message}"}
    return web.json_response({"type": "error", "error": error, "message": error["message"]}, status=status)


def ask_for_body(request: web.BaseRequest) -> None:
    """Tell a client that waits before sending its body to send it."""
    if request.headers.get("Expect", "").lower() == "100-continue" and request.transport is not None:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")


def forwarded_headers(headers: Any) -> CIMultiDict[str]:
    """Return the received headers, without those of the connection itself."""
    named = [(text_of(name), text_of(value)) for name, value in headers]
    of_connection = {each.strip().lower() for name, value in named if name.lower() == "connection"
                     for each in value.split(",")}  # fmt: skip
    left_out = _OF_THE_CONNECTION | of_connection
    return CIMultiDict([(name, value) for name, value in named if name.lower() not in left_out])


_GUARD = RequestGuard("http", (), None)
_STRANGER = "name this server by an address on loopback, or localhost; pages of web sites may not ask it"


def refusal(request: web.BaseRequest) -> web.Response | None:
    """Return the answer to a request that is not admitted; None if it is admitted."""
    headers = request.headers
    local = request.transport.get_extra_info("sockname") if request.transport is not None else None
    head = Head(
        request.raw_path, headers.getall("Host", ()), headers.getall("Origin", ()), (), str(local[0]) if local else ""
    )
    found = _GUARD.refusal(head)
    if found is None:
        return None
    is_stranger = found.status == 403
    return error_response(found.status, _STRANGER if is_stranger else json.loads(found.content)["error"])


def reason_of(found: aiohttp.ClientResponse) -> str:
    return text_of((found.reason or "").encode("utf-8", "surrogateescape"))


def encoded_url(url: str) -> Any:
    """Return the URL without quoting anything again."""
    from yarl import URL

    return URL(url, encoded=True)


def text_of(data: bytes) -> str:
    """Return a header's name or value as text. Latin-1 is recorded, and passed on, as UTF-8; control characters are
    not."""
    try:
        found = data.decode()
    except UnicodeDecodeError:
        found = data.decode("latin-1")
    return _CONTROLS.sub("", found)
