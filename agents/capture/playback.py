"""Play a recording: captured exchanges answer the requests, and nothing is connected to.

1. A request is brought into its recorded form: decoded, without credentials, redacted if the run was.
2. It is searched among the recorded requests by method, path, query, type and body: first unchanged, then without its
   volatile parts (RULES). Among equal requests the first that was not served yet answers.
3. The answer is the recorded one: its status, its headers, its pieces by their boundaries, and the same end. A body
   that broke off breaks off again; a request that had no response gets the same 502 or 504.
4. Over a WebSocket each message is a request, and a message that is not recorded gets an event `error`.
5. A request that is not recorded gets a 400, which SDKs do not retry. It names the nearest turn, and the leaves that
   differ; for each leaf, the turn that first had it, and the observation which records that.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, partial
from typing import Any
from urllib.parse import urlsplit

import msgspec
from aiohttp import web
from multidict import CIMultiDict

from refold.agents.capture.credentials import known_secrets, url_without_credentials, without_credentials
from refold.agents.capture.encodings import Decoder, Undecodable
from refold.agents.capture.exchange import WEBSOCKET, WEBSOCKET_TYPE, bytes_of, is_exchange, request_of
from refold.agents.capture.program import PROVIDERS
from refold.agents.capture.spool import spool_of
from refold.agents.capture.turns import VOLATILE_KEYS, without_keys
from refold.agents.capture.websockets import CLOSED, close_of, is_socket
from refold.agents.capture.wire import ask_for_body, error_response, refusal
from refold.agents.journal.difference import ABSENT, Difference, differences
from refold.agents.journal.record import Call, Plain, Recording
from refold.agents.redaction.redactor import Redact

LINES_MAX = 8
_DATE = re.compile(r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?")
_PLACES = re.compile(r"\[(\d+)\]|([^.\[\]]+)")
_OF_SESSION = frozenset({"prompt_cache_key", "safety_identifier", "client_metadata", "user_id", "session_id"})


def _without_dates(tree: Any) -> Any:
    if isinstance(tree, str):
        return _DATE.sub("DATE", tree)
    if isinstance(tree, dict):
        return {key: _without_dates(each) for key, each in tree.items()}
    return [_without_dates(each) for each in tree] if isinstance(tree, list) else tree


RULES: Mapping[str, Callable[[Any], Any]] = {
    "cache marks": partial(without_keys, keys=VOLATILE_KEYS),
    "ids of the session": partial(without_keys, keys=_OF_SESSION),
    "dates": _without_dates,
}
"""By name, functions that remove the parts of a body that are not compared."""


class RecordedExchange:
    """One exchange of a recording.

    Attributes:
        step: The number of its step in the run.
    """

    def __init__(self, run: str, step: int, call: Call) -> None:
        self.run = run
        self.step = step
        self.call = call
        self.request = call.asked.request

    @cached_property
    def normal(self) -> Plain:
        """As _normal. Cached, because bodies are long, and each is compared with many requests."""
        return _normal(self.request)


def exchanges_in(recordings: Iterable[Recording]) -> list[RecordedExchange]:
    """Return the exchanges of recordings in the order in which they began; once those that a fork has of its parent."""
    found = {
        (call.started_at, call.asked.hash): RecordedExchange(each.run, step.number, call)
        for each in recordings for step in each.steps for call in step.calls if is_exchange(call.asked.request)
    }  # fmt: skip
    return sorted(found.values(), key=lambda each: each.call.started_at)


class RecordedUpstream:
    """Answers from recordings.

    Attributes:
        served, unrecorded: How many requests were answered, and how many were not.
    """

    def __init__(
        self, recordings: Iterable[Recording], redact: Redact | None = None, *, is_paced: bool = False,
        say: Callable[[str], None] = lambda line: None,
        observation_of: Callable[[str, int], str] = lambda run, step: "",
        may_answer: Callable[[Call], bool] = lambda call: True,
    ) -> None:  # fmt: skip
        """Load the recordings.

        Args:
            recordings: The runs.
            redact: The redactor with which they were recorded.
            is_paced: Whether to reproduce the recorded pauses between pieces.
            say: Shows a line to the user.
            observation_of: Returns the id of the observation that holds a step of a run; "" if it is not known.
            may_answer: Which recorded exchanges may answer.
        """
        self._observation_of = observation_of
        self._redact = redact
        self._is_paced = is_paced
        self._say = say
        self._turn = threading.Lock()
        self.served = self.unrecorded = 0
        self._waiting = [each for each in exchanges_in(recordings) if may_answer(each.call)]
        self._done: list[RecordedExchange] = []

    @property
    def waiting(self) -> int:
        """How many recorded exchanges have not been requested."""
        return len(self._waiting)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        if is_socket(request) and refusal(request) is None:
            return await self._socket(request)
        answered, _, why = await self.tried(request)
        if answered is not None:
            return answered
        self.unrecorded += 1
        self._say(why)
        return error_response(400, why)

    async def tried(self, request: web.BaseRequest) -> tuple[web.StreamResponse | None, bytes, str]:
        """Return the response, or None if the request is not recorded; its received body; why it is not recorded."""
        if (refused := refusal(request)) is not None:
            return refused, b"", ""
        ask_for_body(request)
        body = await request.content.read()
        received = self._read_request(request, body)
        found = self._find_exchange(received)
        if found is None:
            return None, body, self._describe_mismatch(received)
        self.served += 1
        return await self._send_answer(request, found.call), body, ""

    def malformed(self, why: str) -> web.Response:
        """As CaptureHandler."""
        self.unrecorded += 1
        self._say(f"a request was not HTTP: {why}")
        return error_response(400, f"this is not HTTP/1.1: {why}")

    def ending(self) -> None:
        """Do nothing: no request waits."""

    async def close(self) -> None:
        """Do nothing: there is nothing to release."""

    async def _socket(self, request: web.BaseRequest) -> web.WebSocketResponse:
        """Answer a WebSocket: each message of the agent gets the messages that were recorded for it."""
        offered = request.headers.get("Sec-WebSocket-Protocol", "").split(",")
        agent = web.WebSocketResponse(compress=False, max_msg_size=0, protocols=[each.strip() for each in offered])
        await agent.prepare(request)
        await self._send_unprompted(request, agent, 0)
        async for message in agent:
            data = message.data.encode() if isinstance(message.data, str) else bytes(message.data)
            received = self._recorded_form(request, WEBSOCKET, WEBSOCKET_TYPE, data)
            found = self._find_exchange(received)
            if found is None:
                self.unrecorded += 1
                why = self._describe_mismatch(received)
                self._say(why)
                error = {"type": "refold_proxy", "code": "not_recorded", "message": f"refold: {why}"}
                await agent.send_json({"type": "error", "status": 400, "error": error})
                continue
            self.served += 1
            await self._send_recorded(request, agent, found.call)
            await self._send_unprompted(request, agent, found.call.started_at)
        return agent

    async def _send_unprompted(self, request: web.BaseRequest, agent: web.WebSocketResponse, after: int) -> None:
        """Send what the provider sent unprompted, after an exchange and before the agent's next message."""
        received = self._recorded_form(request, WEBSOCKET, WEBSOCKET_TYPE, b"")
        while not agent.closed:
            with self._turn:
                near = (each for each in self._waiting
                        if each.call.started_at > after and _is_same_target(received, each.request))  # fmt: skip
                found = next(near, None)
                if found is None or found.request["body"]:
                    return
                self._waiting.remove(found)
                self._done.append(found)
            after = found.call.started_at
            await self._send_recorded(request, agent, found.call)

    async def _send_recorded(self, request: web.BaseRequest, agent: web.WebSocketResponse, call: Call) -> None:
        past_ms = 0
        for at_ms, body in call.answer["chunks"]:
            if self._is_paced:
                await asyncio.sleep(max(0, at_ms - past_ms) / 1000)
                past_ms = at_ms
            await (agent.send_str(body) if isinstance(body, str) else agent.send_bytes(bytes_of(body)))
        if call.answer["end"] != "broken":
            return
        error = call.answer["error"]
        if error["class"] == CLOSED:
            code, reason = close_of(error["message"])
            await agent.close(code=code, message=reason)
        elif request.transport is not None:
            request.transport.close()

    def _read_request(self, request: web.BaseRequest, body: bytes) -> Plain:
        headers = request.headers
        try:
            decoder = Decoder(headers.get("Content-Encoding"))
            body = decoder.feed(body)
        except Undecodable:
            pass  # then it is not a recorded request
        return self._recorded_form(request, request.method, headers.get("Content-Type", ""), body)

    def _recorded_form(self, request: web.BaseRequest, method: str, content_type: str, body: bytes) -> Plain:
        known = known_secrets(request.headers.items(), request.raw_path)
        body = without_credentials(body, known, content_type)
        target = url_without_credentials(request.raw_path, known)
        first, slash, rest = target[1:].partition("/")
        if slash and first in PROVIDERS:
            target = f"/{rest}"
        received = request_of(method, f"http://recording{target}", content_type, body)
        return received if self._redact is None else self._redact(received)

    def _find_exchange(self, request: Plain) -> RecordedExchange | None:
        with self._turn:
            near = [each for each in self._waiting if _is_same_target(request, each.request)]
            exact = _content_of(request)
            found = next((each for each in near if _content_of(each.request) == exact), None)
            if found is None and near:
                normal = _normal(request)
                found = next((each for each in near if each.normal == normal), None)
            if found is not None:
                self._waiting.remove(found)
                self._done.append(found)
            return found

    async def _send_answer(self, request: web.BaseRequest, call: Call) -> web.StreamResponse:
        if call.failure is not None and call.answer is None:
            return error_response(504 if call.failure.exception == "TimeoutError" else 502, call.failure.message)
        answer = call.answer
        headers = CIMultiDict([(name, value) for name, value in answer["headers"]])
        encoding = answer.get("encoding") or {}
        if encoding.get("raw"):
            headers["Content-Encoding"] = encoding["name"]
        pieces = [(at_ms, bytes_of(body)) for at_ms, body in answer["chunks"]]
        is_whole = answer["end"] == "whole"
        if is_whole and len(pieces) < 2 and request.method != "HEAD":
            headers["Content-Length"] = str(sum(len(data) for _, data in pieces))
        response = web.StreamResponse(status=answer["status"], headers=headers)
        await response.prepare(request)
        past_ms = 0
        for at_ms, data in pieces:
            if self._is_paced:
                await asyncio.sleep(max(0, at_ms - past_ms) / 1000)
                past_ms = at_ms
            await response.write(data)
        if is_whole:
            await response.write_eof()
        elif request.transport is not None:
            request.transport.close()
        return response

    def _describe_mismatch(self, request: Plain) -> str:
        """Describe the request, the nearest recorded turn, and where they differ."""
        name = f"{request['method']} {urlsplit(request['url']).path}"
        with self._turn:
            waiting, done = list(self._waiting), list(self._done)
        normal = _normal(request)
        same = next((each for each in done if _is_same_target(request, each.request) and each.normal == normal), None)
        if same is not None:
            return f"{name}: turn {same.step} of run {same.run} answers this, and was served already"
        near = [each for each in waiting if _is_same_target(request, each.request)]
        if not near:
            left = f"{len(waiting)} recorded requests were not asked for" if waiting else "all of it was served"
            return f"{name} is not in the recording: {left}"
        found = [(differences(normal, each.normal), each) for each in near[:LINES_MAX]]
        differing, nearest = min(found, key=lambda each: (len(each[0]), each[1].call.started_at))
        lines = [
            f"{name} is not in the recording; nearest is turn {nearest.step} of run {nearest.run}, which differs in"
        ]
        of_run = sorted((each for each in (*done, *waiting) if each.run == nearest.run), key=_began)
        for each in differing[:LINES_MAX]:
            lines.append(each.line("asked", "recorded") + self._describe_origin(each, nearest, of_run))
        if len(differing) > LINES_MAX:
            lines.append(f"{len(differing) - LINES_MAX} more places")
        return "\n  ".join(lines)

    def _describe_origin(
        self, difference: Difference, nearest: RecordedExchange, of_run: Iterable[RecordedExchange]
    ) -> str:
        """Describe which turn first had the recorded value, and the observation that holds that turn."""
        if difference.right is ABSENT:
            return ""
        is_first = (each for each in of_run if _value_at(each.normal, difference.path) == difference.right)
        first = next(is_first, nearest)
        observation = self._observation_of(first.run, first.step)
        return f" in turn {first.step}" + (f", observation {observation}" if observation else "")


def _began(exchange: RecordedExchange) -> int:
    return exchange.call.started_at


def _value_at(tree: Plain, path: str) -> Plain:
    """Return the value at a path, as differences name it; ABSENT if there is none."""
    for index, key in _PLACES.findall(path):
        if index and isinstance(tree, list) and int(index) < len(tree):
            tree = tree[int(index)]
        elif key and isinstance(tree, dict) and key in tree:
            tree = tree[key]
        else:
            return ABSENT
    return tree


def _is_same_target(request: Plain, recorded: Plain) -> bool:
    """Return whether both have the same method, path and query; the recorded path may begin with its upstream's."""
    a, b = urlsplit(request["url"]), urlsplit(recorded["url"])
    return bool(request["method"] == recorded["method"] and b.path.endswith(a.path) and a.query == b.query)


def _content_of(request: Plain) -> Plain:
    return [request["type"], request["body"]]


def _normal(request: Plain) -> Plain:
    """Return the body's JSON without the parts that are not compared; the body itself if it is not JSON."""
    body = request["body"]
    try:
        tree = msgspec.json.decode(body) if isinstance(body, str) else body
    except msgspec.DecodeError:
        tree = body
    for rule in RULES.values():
        tree = rule(tree)
    return {"body": tree}


def recorded_together(log: Any, recording: Recording) -> list[Recording]:
    """Return a captured run and the others of the same proxy, because one program may have several sessions.

    Args:
        log: The log.
        recording: The run.
    """
    spool = spool_of(recording)
    if not spool:
        return [recording]
    rows = log.runs(agent=recording.agent, further=True)
    others = (log.recording(row.run) for row in rows if row.run != recording.run)
    return [recording, *(each for each in others if spool_of(each) == spool)]
