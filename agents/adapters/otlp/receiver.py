"""Answer OTLP over HTTP: traces and logs as protobuf or JSON, plain or gzip, at POST /v1/traces and /v1/logs.

    200   recorded, and durable; partial_success says how many items were rejected, and why. Not to be sent again
    400   the body is no request, or not as encoded as it says. Not to be sent again
    403   a browser's page, or a name that is not this machine's, sent it
    404   another path, such as that of metrics
    405, 415   another method, content type or encoding
    408   its body took longer than BODY_S
    413   larger than BODY_BYTES_MAX, as sent or decompressed
    503   too many requests wait, or the log is not available; with Retry-After, in seconds

1. Name, origin, path, method and types are checked before the body is read.
2. The body is read up to the bound, and decompressed up to it. At most READING_MAX bodies are in memory at once that
   are not yet in the queue; others wait for their turn, unread. So that none waits for ever, a body has BODY_S.
3. It is decoded (requests.py, native.py), and waits in the queue (intake.py) until it is durable.

Error answers are a google.rpc.Status in the encoding of the request, as OTLP says. They quote nothing of a body.
"""

from __future__ import annotations

import asyncio
import zlib
from typing import Any

from aiohttp import web
from google.protobuf.json_format import MessageToJson
from google.rpc.status_pb2 import Status

from refold.agents.adapters.otlp.counts import Refused
from refold.agents.adapters.otlp.intake import OtlpIntake, Unavailable
from refold.agents.adapters.otlp.requests import JSON, PROTOBUF
from refold.agents.adapters.otlp.signals import SIGNALS, Signal
from refold.avro.errors import InputError
from refold.streams.web.guard import is_loopback

_BY_PATH = {each.path: each for each in SIGNALS}
BODY_BYTES_MAX = 16 << 20
READING_MAX = 8
BODY_S = 30.0
RETRY_AFTER_S = 1
_GZIP = 16 + zlib.MAX_WBITS


class _Refusal(Exception):
    def __init__(self, status: int, said: str, reason: Refused = "unsupported") -> None:
        super().__init__(said)
        self.status = status
        self.reason = reason


class OtlpReceiver:
    """Handles the requests of a LoopbackServer.

    Args:
        body_bytes_max: The largest body, as sent and decompressed.
        body_s: How long a body may take, in seconds.
    """

    def __init__(self, intake: OtlpIntake, body_bytes_max: int = BODY_BYTES_MAX, body_s: float = BODY_S) -> None:
        self._intake = intake
        self._body_s = body_s
        self._body_bytes_max = body_bytes_max
        self._reading = asyncio.Semaphore(READING_MAX)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        content_type = request.content_type if request.content_type in (PROTOBUF, JSON) else JSON
        try:
            signal = _checked(request)
            async with self._reading:
                try:
                    async with asyncio.timeout(self._body_s):
                        body = await self._body(request)
                except TimeoutError:
                    raise _Refusal(408, f"the body took longer than {self._body_s:g} s", "slow") from None
                items, without_id = await asyncio.to_thread(self._intake.decode, signal, body, content_type)
                waiting = self._intake.put(items, len(body), without_id)
                del body
            recorded = await asyncio.shield(asyncio.wrap_future(waiting))
        except _Refusal as refusal:
            self._intake.counts.refused(refusal.reason)
            return _refused(content_type, refusal.status, str(refusal))
        except InputError as error:
            self._intake.counts.refused("malformed")
            return _refused(content_type, 400, str(error))
        except Unavailable as error:
            self._intake.counts.refused(error.reason)
            return _refused(content_type, 503, str(error))
        return _answer(content_type, 200, signal.response(without_id, recorded))

    def malformed(self, why: str) -> web.Response:
        """Answer what is not HTTP."""
        self._intake.counts.refused("malformed")
        return _answer(JSON, 400, Status(code=3, message=f"not a request: {why}"))

    def ending(self) -> None:
        """Refuse nothing yet: requests in progress are answered when they are durable."""

    async def close(self) -> None:
        """Release nothing: the intake is its owner's."""

    async def _body(self, request: web.BaseRequest) -> bytes:
        if request.content_length is not None and request.content_length > self._body_bytes_max:
            raise self._too_large()
        unpacking = zlib.decompressobj(_GZIP) if request.headers.get("Content-Encoding") == "gzip" else None
        parts, sent, size = [], 0, 0
        async for piece in request.content.iter_any():
            sent += len(piece)
            if sent > self._body_bytes_max:
                raise self._too_large()
            if unpacking is not None:
                try:
                    piece = unpacking.decompress(piece, self._body_bytes_max + 1 - size)  # noqa: PLW2901
                except zlib.error:
                    raise _Refusal(400, "the body is not gzip", "malformed") from None
                if unpacking.unconsumed_tail:
                    raise self._too_large()
                if unpacking.unused_data:
                    raise _Refusal(400, "the body goes on after its gzip stream", "malformed")
            size += len(piece)
            if size > self._body_bytes_max:
                raise self._too_large()
            parts.append(piece)
        if unpacking is not None and not unpacking.eof:
            raise _Refusal(400, "the body's gzip stream is cut off", "malformed")
        return b"".join(parts)

    def _too_large(self) -> _Refusal:
        return _Refusal(413, f"the body is larger than {self._body_bytes_max:,} bytes", "large")


def _checked(request: web.BaseRequest) -> Signal:
    """Return what a request sends. Refuse what this receiver does not take, before its body is read."""
    host = (request.host or "").rpartition(":")[0] if ":" in (request.host or "") else request.host or ""
    if "Origin" in request.headers or not (host == "localhost" or is_loopback(host.strip("[]"))):
        raise _Refusal(403, "only programs of this machine may send here", "foreign")
    signal = _BY_PATH.get(request.path)
    if signal is None:
        raise _Refusal(404, f"this receiver takes {' and '.join(f'{each.name} at {each.path}' for each in SIGNALS)}")
    if request.method != "POST":
        raise _Refusal(405, f"{signal.name} are sent by POST")
    if request.content_type not in (PROTOBUF, JSON):
        raise _Refusal(415, f"the content type is neither {PROTOBUF} nor {JSON}")
    if request.headers.get("Content-Encoding", "identity") not in ("gzip", "identity"):
        raise _Refusal(415, "the content encoding is not gzip")
    return signal


_CODES = {400: 3, 403: 7, 404: 12, 405: 12, 408: 4, 413: 8, 415: 3, 503: 14}
"""google.rpc.Code of each status."""


def _refused(content_type: str, status: int, said: str) -> web.Response:
    answer = _answer(content_type, status, Status(code=_CODES[status], message=said))
    if status == 503:
        answer.headers["Retry-After"] = str(RETRY_AFTER_S)
    elif status != 400:
        answer.force_close()  # the body was not read
    return answer


def _answer(content_type: str, status: int, message: Any) -> web.Response:
    body = message.SerializeToString() if content_type == PROTOBUF else MessageToJson(message, indent=None).encode()
    return web.Response(status=status, body=body, content_type=content_type)
