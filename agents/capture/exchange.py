"""An exchange: one HTTP request and its response, as they are recorded.

Every recorder of exchanges makes this record: a client's transport (agents/capture/httpx_transport.py), or a proxy.

A replay finds an exchange by its request, so the request holds nothing that changes from one time to the next:

    {"exchange": 1, "method": "POST", "url": "https://api.openai.com/v1/responses", "type": "application/json",
     "body": BODY}

The answer:

    {"sent": HEADERS, "http": "HTTP/1.1", "status": 200, "headers": HEADERS, "chunks": [[MS, BODY], ...],
     "end": "whole"}

1. BODY is text, or {"base64": TEXT} if the bytes are not UTF-8, or {"frames": [FRAME, ...]} in an event stream of
   Amazon's (event_stream.py), where each chunk ends with a frame. The joined chunks are the response's body, byte for
   byte after the transfer encodings (gzip and the like) are removed.
2. A stream of events has a chunk for each piece that arrived, with the milliseconds since the response's head. Any
   other body is one chunk.
3. Of a WebSocket each message of the agent is a request, of the method WEBSOCKET and the type `websocket`. The
   provider's messages are the chunks of its answer, whose `http` is "WebSocket" and whose status is 101; a binary one
   is base64.
4. `end` is "whole"; "broken" with `error` {"class", "message"} if the connection broke, or the reading task was
   cancelled; "left" if the code stopped reading, unless the last event of a stream had arrived. A replay ends the body
   in the same way.
5. HEADERS is [[name, value], ...]. Of the request's headers only those in SENT are kept. Of the response's headers
   those with the name of a secret are left out. In a URL the values with such names, and a user and password, are
   replaced.
6. The boundary of a multipart body is random, and is replaced by a fixed one in the request.

If both recorders see the same exchange, the request names the step that records it (step_header.py).
"""

from __future__ import annotations

import base64
import binascii
import codecs
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, urlsplit, urlunsplit

from refold.agents.capture import event_stream
from refold.agents.capture.event_stream import Frames
from refold.agents.journal.record import Plain
from refold.agents.redaction.names import Names

VERSION = 1
WEBSOCKET = "WEBSOCKET"
WEBSOCKET_TYPE = "websocket"
WEBSOCKET_HTTP = "WebSocket"
HIDDEN = "HIDDEN"
SENT = frozenset({
    "accept", "content-type", "user-agent", "anthropic-version", "anthropic-beta", "openai-beta", "idempotency-key",
    "x-stainless-retry-count", "x-stainless-package-version",
})  # fmt: skip
# The recorded body is decoded, so these headers would be wrong for it.
_OF_THE_TRANSFER = frozenset({"content-encoding", "content-length", "transfer-encoding", "connection", "keep-alive"})
_EVENTS = ("text/event-stream", "application/x-ndjson", "application/jsonl", event_stream.CONTENT_TYPE)
_BOUNDARY = re.compile(r'boundary="?([^";,\s]+)"?')
_FIXED_BOUNDARY = "refold-boundary"
NO_RESPONSE = "the proxy got no response from "
"""The begin of the error that an agent gets if the provider sent no response."""
# A provider sends nothing after this event.
_LAST_EVENT = re.compile(
    rb"^(?:data: ?\[DONE\]|event: ?(?:message_stop|response\.(?:completed|incomplete|failed)))\r?\n", re.MULTILINE
)
_LINE_BYTES = 64
_BLANK_LINES = (b"\n\n", b"\r\n\r\n")
# Names of secrets in URLs, in addition to those everywhere: Google's APIs take `key`, signed URLs have a signature.
NAMES = Names(("key", "sig", "signature", "x-amz-signature", "x-goog-signature"))

Headers = Iterable[tuple[str, str]]


class Broken(NamedTuple):
    """How a connection broke: the exception's class, without its module, and its text."""

    name: str
    message: str


def request_of(method: str, url: str, content_type: str, body: bytes) -> Plain:
    """Return the request as it is recorded, and by which it is found.

    Args:
        method: The method.
        url: The URL; secrets in it are replaced.
        content_type: The type of the body.
        body: The body, without transfer encodings.
    """
    boundary = _BOUNDARY.search(content_type) if content_type.startswith("multipart/") else None
    if boundary is not None:
        body = body.replace(boundary[1].encode(), _FIXED_BOUNDARY.encode())
        content_type = content_type.replace(boundary[1], _FIXED_BOUNDARY)
    return {"exchange": VERSION, "method": method, "url": shown_url(url), "type": content_type, "body": kept(body)}


def name_of(method: str, url: str) -> str:
    """Return the name of the call: `POST api.openai.com/v1/responses`."""
    parts = urlsplit(url)
    return f"{method} {parts.hostname or ''}{parts.path}"


def shown_url(url: str) -> str:
    """Return the URL without secrets."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")
    netloc = f"{HIDDEN}@{host[2]}" if host[1] else parts.netloc
    query = "&".join(
        f"{quote(name, safe='')}={HIDDEN if NAMES.is_secret(name) else quote(value, safe='')}"
        for name, value in parse_qsl(parts.query, keep_blank_values=True)
    )
    return urlunsplit((parts.scheme, netloc, parts.path, query, ""))


def sent_headers(headers: Headers) -> list[list[str]]:
    """Return the headers of a request that are recorded."""
    return [[name, value] for name, value in headers if name.lower() in SENT]


def kept_headers(headers: Headers) -> list[list[str]]:
    """Return the headers of a response that are recorded."""
    return [[name, value] for name, value in headers
            if name.lower() not in _OF_THE_TRANSFER and not NAMES.is_secret(name)]  # fmt: skip


class LastEvent:
    """Detects the last event of a stream. Some clients then close the body before the stream's own end."""

    def __init__(self) -> None:
        self._line = b""  # the part so far of an unfinished line
        self._is_named = False
        self._end = b""

    @property
    def has_come(self) -> bool:
        """Whether it has arrived, with the blank line that ends it."""
        return self._is_named and self._end.endswith(_BLANK_LINES)

    def add(self, data: bytes) -> None:
        """Add a piece of the body."""
        lines = self._line + data
        self._is_named = self._is_named or _LAST_EVENT.search(lines) is not None
        self._line = lines[lines.rfind(b"\n") + 1 :][:_LINE_BYTES]
        self._end = (self._end + data)[-4:]


class Response:
    """Collects a response."""

    def __init__(self, sent: Headers, http: str, status: int, headers: Headers, head_ms: float) -> None:
        """Begin with the head of the response.

        Args:
            sent: The request's headers.
            http: The version of HTTP.
            status: The status.
            headers: The response's headers.
            head_ms: When the head arrived, milliseconds on the clock of the chunks.
        """
        self._sent = sent_headers(sent)
        self._http = http
        self._status = status
        self.headers = kept_headers(headers)
        content_type = next((value for name, value in self.headers if name.lower() == "content-type"), "")
        self._is_events = content_type.startswith(_EVENTS)
        self._has_frames = content_type.startswith(event_stream.CONTENT_TYPE)
        self._head_ms = head_ms
        self._is_messages = http == WEBSOCKET_HTTP
        self._chunks: list[tuple[int, bytes]] = []
        self._binary: set[int] = set()
        self._last_event = LastEvent()

    def add_message(self, data: bytes, now_ms: float, *, is_binary: bool) -> None:
        """Add a message of a WebSocket.

        Args:
            data: The message.
            now_ms: When it arrived, milliseconds on the clock of the chunks.
            is_binary: Whether it is binary, as opposed to text.
        """
        if is_binary:
            self._binary.add(len(self._chunks))
        self._chunks.append((max(0, round(now_ms - self._head_ms)), data))

    def add(self, data: bytes, now_ms: float) -> None:
        """Add a piece of the body."""
        if data:
            self._chunks.append((max(0, round(now_ms - self._head_ms)), data))
            if self._is_events:
                self._last_event.add(data)

    @property
    def body(self) -> list[bytes]:
        """Return the added chunks."""
        return [data for _, data in self._chunks]

    def answer(self, end: str = "whole", error: Broken | None = None) -> Plain:
        """Return the record of the response. A stream that the code left after its last event is whole.

        Args:
            end: How the response ended.
            error: How the connection broke, if it did.
        """
        chunks = self._chunks
        if end == "left" and self._last_event.has_come:
            end = "whole"
        if not self._is_events and not self._is_messages and len(chunks) > 1:
            chunks = [(chunks[0][0], b"".join(data for _, data in chunks))]
        bodies: Plain
        if self._has_frames:
            bodies = _chunks_with_frames(chunks)
        else:
            bodies = [[at_ms, _base64(data) if number in self._binary else kept(data)]
                      for number, (at_ms, data) in enumerate(chunks)]  # fmt: skip
        found: dict[str, Plain] = {
            "sent": self._sent, "http": self._http, "status": self._status, "headers": self.headers,
            "chunks": bodies, "end": end,
        }  # fmt: skip
        if error is not None:
            found["error"] = {"class": error.name, "message": error.message}
        return found


def kept(data: bytes) -> Plain:
    """Return bytes in the form in which JSON stores them."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return _base64(data)


def _base64(data: bytes) -> Plain:
    return {"base64": base64.b64encode(data).decode()}


def _chunks_with_frames(chunks: Iterable[tuple[int, bytes]]) -> list[Plain]:
    """Return the chunks of an event stream, each with the frames that it completes."""
    cutting = Frames()
    pieces = [(at_ms, cutting.feed(data)) for at_ms, data in chunks]
    if rest := cutting.rest():
        pieces.append((pieces[-1][0], rest))
    found: list[Plain] = []
    for at_ms, each in pieces:
        frames = [event_stream.frame_kept(data) for data in each]
        if frames:
            found.append([at_ms, {"frames": frames} if all(frames) else kept(b"".join(each))])
    return found


def bytes_of(body: Plain) -> bytes:
    """Return the bytes of what `kept` returned, or of frames.

    Raises:
        ValueError: It is any other value.
    """
    if isinstance(body, str):
        return body.encode()
    if isinstance(body, dict) and isinstance(body.get("base64"), str):
        try:
            return base64.b64decode(body["base64"], validate=True)
        except binascii.Error as error:
            raise ValueError(f"a recorded body is not base64: {error}") from error
    if isinstance(body, dict) and isinstance(body.get("frames"), list):
        try:
            return b"".join(event_stream.frame_bytes(each) for each in body["frames"])
        except (LookupError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"a recorded body is not of frames: {error}") from error
    raise ValueError("a recorded body is neither text, base64 nor frames")


def texts_of(answer: Plain) -> list[str]:
    """Return the chunks of a recorded answer as texts, cut between characters; empty if they are not text.

    For an event stream: the text of each frame, as a line.
    """
    if any(frames_of(body) for _, body in answer["chunks"]):
        return [f"{event_stream.frame_text(each)}\n" for _, body in answer["chunks"] for each in frames_of(body)]
    decoder = codecs.getincrementaldecoder("utf-8")()
    chunks = [bytes_of(body) for _, body in answer["chunks"]]
    try:
        return [decoder.decode(data, final=number == len(chunks)) for number, data in enumerate(chunks, 1)]
    except UnicodeDecodeError:
        return []


def with_texts(answer: Plain, texts: list[str]) -> Plain:
    """Return the recorded answer with other texts; their number must be the same."""
    if any(frames_of(body) for _, body in answer["chunks"]):
        left = iter(texts)
        return {**answer, "chunks": [[at_ms, _with_frame_texts(body, left)] for at_ms, body in answer["chunks"]]}
    return {**answer, "chunks": [[at_ms, text] for (at_ms, _), text in zip(answer["chunks"], texts, strict=True)]}


def frames_of(body: Plain) -> list[Plain]:
    """Return the frames in the body of a recorded chunk; empty if it has none."""
    found = body.get("frames") if isinstance(body, dict) else None
    return found if isinstance(found, list) else []


def _with_frame_texts(body: Plain, texts: Iterator[str]) -> Plain:
    frames = [event_stream.with_frame_text(each, next(texts).removesuffix("\n")) for each in frames_of(body)]
    return {"frames": frames} if frames else body


def is_of_messages(answer: Plain) -> bool:
    """Return whether the chunks of a recorded answer are the messages of a WebSocket."""
    return isinstance(answer, dict) and answer.get("http") == WEBSOCKET_HTTP


def is_exchange(request: Plain) -> bool:
    """Return whether a recorded request is that of an exchange."""
    return isinstance(request, dict) and request.get("exchange") == VERSION and "method" in request
