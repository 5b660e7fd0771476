"""Calling tools on the record: what was asked, each failed try and the wait after it, and what came back."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any

from refold.explorer.demo.journal import Journal, now_micros
from refold.explorer.demo.tools import Inputs, Result, ToolFailure, Tools

TRIES_MAX = 4
BACKOFF_MS = 4


class Calls:
    """An agent's tool calls, each an `action` entity of the step it belongs to."""

    def __init__(self, journal: Journal, tools: Tools) -> None:
        self._journal = journal
        self._tools = tools
        self._position = 0
        self.failed_tries = 0

    def begin_step(self) -> None:
        """Number the calls, and count the failed tries, from the beginning."""
        self._position = self.failed_tries = 0

    def call(self, tool: str, inputs: Inputs, causes: Iterable[str], effect: str = "read") -> tuple[Result, str]:
        """The tool's answer, and the id of the observation of it; raises the last try's ToolFailure."""
        action, last = self._asked(tool, inputs, causes, effect)
        if effect == "write":
            # Should this process die during the call, the log will say that it may have happened.
            self._journal.flush()
        attempt = 1
        while True:
            began = time.perf_counter()
            try:
                output = self._tools.call(tool, inputs)
            except ToolFailure as failure:
                last = self._failed(action, tool, attempt, failure, last)
                attempt += 1
                continue
            return output, self._answered(action, tool, attempt, output, time.perf_counter() - began, last)

    def _asked(self, tool: str, inputs: Inputs, causes: Iterable[str], effect: str) -> tuple[str, str]:
        self._position += 1
        run, step = self._journal.run, f"{self._journal.run}#{self._journal.step}"
        action = f"action/{step}.{self._position}"
        who = {
            "tool": tool,
            "agent": self._journal.agent,
            "run": run,
            "step": step,
            "position": self._position,
        }
        what = {"inputs": inputs, "effect": effect, "status": "running", "started_at": now_micros()}
        asked = self._journal.note(action, who | what, causes, tool)
        self._journal.tie(action, "of", f"step/{step}", asked)
        return action, asked

    def _failed(self, action: str, tool: str, attempt: int, failure: ToolFailure, last: str) -> str:
        self.failed_tries += 1
        at, given_up = now_micros(), attempt == TRIES_MAX
        backoff_ms = 0 if given_up else BACKOFF_MS * 2 ** (attempt - 1)
        retry = {"attempt": attempt, "at": at, "backoff_ms": backoff_ms, "error": str(failure)}
        patch: dict[str, Any] = {"attempts": attempt, "retries": [retry]}
        if given_up:
            error = {"at": at, "exception": failure.code, "message": failure.text, "retryable": True}
            patch |= {"status": "failed", "error": error, "ended_at": at}
        noted = self._journal.note(action, patch, [last], tool)
        if given_up:
            raise failure
        time.sleep(backoff_ms / 1000)
        return noted

    def _answered(self, action: str, tool: str, attempt: int, output: Result, seconds: float, last: str) -> str:
        patch = {"status": "succeeded", "attempts": attempt, "duration_ms": seconds * 1000}
        patch |= {"output": json.dumps(output), "output_type": "application/json", "ended_at": now_micros()}
        return self._journal.note(action, patch, [last], tool)
