"""Play a recorded MCP session: its answers answer the same requests, and no server is started.

1. A call is found by its tool and arguments, redacted if the run was; other requests by method and parameters. The
   handshake and the lists are found by their method alone, because clients of other versions send other contents in
   them.
2. Equal requests are answered in the recorded order. A read may be repeated: then the last answer is returned again. A
   call that may write is answered only as often as it is recorded.
3. A request that is not recorded gets an error that says so.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from refold.agents.capture.mcp_runs import RPC_ERROR
from refold.agents.capture.mcp_wire import CALL, PREFIX, MessageLines, messages_in
from refold.agents.journal.record import Call, Plain, Recording
from refold.agents.redaction.redactor import Redact

NOT_RECORDED = -32_001
BY_METHOD = frozenset({"initialize", "server/discover", "tools/list", "resources/list", "prompts/list",
                       "resources/templates/list"})  # fmt: skip


class RecordedSession:
    """Answers from a run.

    Attributes:
        unrecorded: The requests that it does not have.
    """

    def __init__(self, recording: Recording, redact: Redact | None) -> None:
        self.unrecorded: list[str] = []
        self._run = recording.run
        self._redact = redact
        self._answers: dict[str, list[Call]] = defaultdict(list)
        self._tools: dict[str, int] = defaultdict(int)
        for call in (call for step in recording.steps for call in step.calls):
            self._answers[_key(call.asked.name, call.asked.request)].append(call)
            self._tools[call.asked.name] += 1

    def serve(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """Return the answers to a client's bytes, line by line."""
        reader = MessageLines()
        for piece in pieces:
            for line in reader.lines(piece):
                for answer in self.answers(line):
                    yield json.dumps(answer).encode() + b"\n"

    def answers(self, content: bytes) -> Iterator[dict[str, Plain]]:
        """Return the answers to one message of a client, or to a batch."""
        for message in messages_in(content):
            if isinstance(message.get("method"), str) and message.get("id") is not None:
                yield {"jsonrpc": "2.0", "id": message["id"], **self._answer(message)}

    def _answer(self, message: dict[str, Any]) -> dict[str, Plain]:
        method, params = message["method"], message.get("params")
        given: dict[str, Any] = params if isinstance(params, dict) else {}
        name = str(given.get("name")) if method == CALL else f"{PREFIX}{method}"
        request: Plain = (
            given.get("arguments") or {} if method == CALL else {k: v for k, v in given.items() if k != "_meta"}
        )
        if self._redact is not None:
            request = self._redact(request)
        found = self._answers.get(_key(name, request), [])
        if found:
            call = found[0]
            if len(found) > 1 or call.asked.effect != "read":
                del found[0]
            is_error = call.failure is not None and call.failure.exception == RPC_ERROR
            if call.answer is not None or call.failure is None:
                return {"error" if is_error else "result": call.answer}
            return _error(f"the recorded call of {name} had no answer: {call.failure.message}")
        if method == "ping":
            return {"result": {}}
        self.unrecorded.append(name)
        count = self._tools.get(name, 0)
        why = f"it was called {count} times, with other arguments or by now as often" if count else "it was never asked"
        return _error(f"{name:.100} is not recorded so in run {self._run}: {why}")


def _key(name: str, request: Plain) -> str:
    if name.removeprefix(PREFIX) in BY_METHOD:
        request = {}
    return json.dumps([name, request], sort_keys=True)


def _error(message: str) -> dict[str, Plain]:
    return {"error": {"code": NOT_RECORDED, "message": message}}
