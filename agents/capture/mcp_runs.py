"""Make a run from the messages between a client and an MCP server: a step for each request, with its answer.

    run       agent NAME, kind `mcp`; its metadata says in `capture` which server was started
    step n    the n-th request, as a call with its answer: of a tool, by its name and arguments; of any other method,
              by `mcp:METHOD` and its parameters
    action    each tool call also as `action/RUN#n.1`, with its effect

A process is one run. A process that was killed leaves its spool; the process that takes the spool over continues the
run.
"""

from __future__ import annotations

import json
from typing import Any

from refold.agents.capture.exchange import bytes_of
from refold.agents.capture.mcp_wire import CALL
from refold.agents.capture.sessions import EndedRuns, Sessions
from refold.agents.capture.spool import SpooledExchange
from refold.agents.journal.record import Failure, Plain
from refold.agents.live import CapturedRun
from refold.agents.recorder.plain import encoded
from refold.agents.recorder.step_assembler import PendingAttempt, PendingCall, PendingStep
from refold.agents.recordings.imported import ERROR

RPC_ERROR = "JSON-RPC error"


class McpRuns(Sessions):
    """The runs of one open log: one for each spool."""

    kind = "mcp"

    def store(self, exchange: SpooledExchange, spool: str) -> None:
        """Store one request with its answer; durable on return."""
        found = self._by_spool.get(spool)
        if found is None:
            head = self._head("calls of an MCP server", exchange.at, spool, self._capturing.runtime.new_id())
            found = self._by_spool[spool] = McpRun(self._capturing.begin(head), self._agent)
        if exchange.at not in found.stored:
            found.take(exchange)
            found.sink.flush()

    def end(self) -> EndedRuns:
        """End every run."""
        ended = list(self._by_spool.values())
        for each in ended:
            each.end()
        self._by_spool.clear()
        return EndedRuns(len(ended), [each.run for each in ended])

    def _recover(self, spools: frozenset[str]) -> None:
        self._by_spool: dict[str, McpRun] = {}
        for recording, captured, spool in self._unfinished_runs(spools):
            run = self._by_spool[spool] = McpRun(captured, recording.agent)
            for step in recording.steps:
                if step.is_committed:
                    run.number = step.number
                    run.stored |= {call.started_at for call in step.calls}
                    run.sink.step_reused(step, {})
            run.last_at = self._capturing.runtime.now_micros()


class McpRun:
    """One session's run.

    Attributes:
        stored: Its stored exchanges, by when they began, in microseconds since 1970.
        last_at: When its last exchange ended, or when the run was taken up again, in microseconds since 1970.
    """

    def __init__(self, captured: CapturedRun, agent: str) -> None:
        self.run = captured.id
        self.sink = captured.sink
        self.stored: set[int] = set()
        self.number = 0
        self.last_at = 0
        self._captured = captured
        self._agent = agent

    def take(self, exchange: SpooledExchange) -> None:
        """Record one request as a step."""
        request: Any = exchange.request
        answer, failure = _result_of(exchange)
        self.number += 1
        ended_at = exchange.at + round(exchange.duration_ms * 1000)
        call = PendingCall(
            "tool", exchange.name, encoded(request["asked"], "arguments"), effect=request["effect"],
            answer=encoded(answer, "an answer"), failure=failure, started_at=exchange.at,
            duration_ms=exchange.duration_ms, is_open=False,
        )  # fmt: skip
        attempt = PendingAttempt(1, exchange.at, [call], ended_at=ended_at)
        self.sink.step_begun(self.number, exchange.name, 1, exchange.at)
        # Before the step's end, because that marks the exchange as stored: after a kill, this is written again.
        if request["method"] == CALL:
            self._act(exchange, answer, failure, ended_at)
        nothing = encoded(None, "a result")
        self.sink.step_ended(
            PendingStep(self.number, exchange.name, [attempt], encoded({}, "the state"), nothing, "succeeded")
        )
        self.stored.add(exchange.at)
        self.last_at = max(self.last_at, ended_at)

    def end(self) -> None:
        """End the session."""
        self.sink.ended("succeeded", None, None, self.last_at)

    def _act(self, exchange: SpooledExchange, answer: Plain, failure: Failure | None, ended_at: int) -> None:
        request: Any = exchange.request
        step = f"{self.run}#{self.number}"
        entity = f"action/{step}.1"
        status = "succeeded" if failure is None else "unknown" if exchange.failure is not None else "failed"
        patch = {
            "tool": exchange.name, "agent": self._agent, "run": self.run, "step": step, "position": 1,
            "effect": request["effect"], "status": status, "started_at": exchange.at, "ended_at": ended_at,
        }  # fmt: skip
        # A text in the type of actions; a log that seals nothing refuses any other value.
        output = None if answer is None else encoded(answer, "an answer").decode()
        given = {"inputs": request["asked"], "output": output}
        payloads = {name: value for name, value in given.items() if value is not None}
        self._captured.observe(entity, patch, self.number, ended_at, payloads=payloads)
        self._captured.link(entity, "of", f"step/{step}", self.number, ended_at)
        listed = [{"position": 1, "tool": exchange.name, "action": f"{step}.1", "call_id": None}]
        self._captured.observe(f"step/{step}", {"calls": listed}, self.number, ended_at)


def _result_of(exchange: SpooledExchange) -> tuple[Plain, Failure | None]:
    """Return the answer, and its failure if any: no answer, an error of the protocol, or the tool's own error."""
    if exchange.failure is not None:
        return None, Failure(exception=exchange.failure.name, message=exchange.failure.message)
    answer: Any = exchange.answer
    content = b"".join(bytes_of(data) for _, data in answer["chunks"])
    if answer["end"] != "whole":
        return None, Failure(exception="AnswerLost", message="the process was killed while the answer came")
    said = json.loads(content)
    if "error" in said:
        error = said["error"]
        message = error.get("message") if isinstance(error, dict) else None
        return error, Failure(exception=RPC_ERROR, message=str(message or error))
    result = said["result"]
    if isinstance(result, dict) and result.get("isError") is True:
        parts = result.get("content")
        texts = [str(each.get("text", "")) for each in parts or () if isinstance(each, dict)]
        return result, Failure(exception=ERROR, message="\n".join(texts))
    return result, None
