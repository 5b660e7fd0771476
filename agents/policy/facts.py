"""The facts for a policy's decision: the calls of a run so far, counted. Pure, and equal in the run and in its
recording.

Time is the recorded time: from the run's begin to the end of the last call. A clock read at the decision would decide
differently in a replay.

One of the facts is whether the run is in a loop: tool calls that repeat in cycles, by their requests and results. The
tool calls are a sequence of tokens, one for each answered call: its request with its result. The run is in a
loop if the sequence ends in one block of 1 to `period_max` tokens, `repeats` times in a row: A A A, or A B A B A B. The
next call of the circle is then denied. Any other call is allowed, and its token ends the loop. A different result
ends it, too: polling that makes progress is no loop.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from refold.agents.capture.answers import said_in
from refold.agents.capture.exchange import is_exchange
from refold.agents.journal.record import Call, Failure, Plain, RecordedRequest
from refold.agents.policy.rules import Policy
from refold.agents.recorder.observations import model_call


class AnsweredCall(NamedTuple):
    """The token of an answered call: hashes of its request and of its result, and the step that it was in."""

    request: str
    result: str
    step: str


class LoopFinder:
    """Follows one run. Each call costs time in proportion to period_max, however long the run is."""

    def __init__(self, repeats: int, period_max: int) -> None:
        self._repeats = repeats
        self._period_max = period_max
        self._last: list[AnsweredCall] = []
        # By period: how many of the last tokens equal the token one period before them.
        self._equal = [0] * (period_max + 1)

    def add(self, call: AnsweredCall) -> None:
        """A tool call was answered."""
        length = len(self._last)
        for period in range(1, self._period_max + 1):
            is_equal = length >= period and self._last[length - period][:2] == call[:2]
            self._equal[period] = self._equal[period] + 1 if is_equal else 0
        self._last.append(call)
        if length > 4 * self._period_max * self._repeats:
            del self._last[: length // 2]

    def circle(self, request: str) -> list[AnsweredCall]:
        """The answered calls of the circle that a request would go on with, oldest first; none where it does not."""
        for period in range(1, self._period_max + 1):
            if self._equal[period] >= period * (self._repeats - 1) and self._last[-period].request == request:
                return self._last[-period * self._repeats :]
        return []


DECIDED_ON = ("tool", "model")


class RunFacts:
    """The facts of one run, with its nested runs. A registered rule reads them, and changes nothing.

    calls, tool_calls, write_calls, model_calls: the number begun. steps: the number with such calls. input_tokens,
    output_tokens: as the answers report them. time_s: from the run's begin to the last call's end. denied: the number
    of denied calls.
    """

    def __init__(self, policy: Policy, started_at: int = 0) -> None:
        """started_at: when the run began, microseconds."""
        self.calls = self.tool_calls = self.write_calls = self.model_calls = self.denied = 0
        self.input_tokens = self.output_tokens = 0
        self.time_s = 0.0
        self._started_at = started_at
        self._steps: set[str] = set()
        loop = policy.loop
        self._loops = None if loop is None else LoopFinder(loop.repeats, loop.period_max)

    @property
    def steps(self) -> int:
        """How many steps had calls."""
        return len(self._steps)

    @property
    def tokens(self) -> int:
        """Input and output together."""
        return self.input_tokens + self.output_tokens

    def circle(self, asked: RecordedRequest) -> list[AnsweredCall]:
        """The calls of the circle that a tool call would go on with; none where it is in no loop."""
        return [] if self._loops is None or asked.kind != "tool" else self._loops.circle(asked.hash)

    def begin(self, asked: RecordedRequest, step: str) -> None:
        """A call begins. step: of it, as RUN#NUMBER."""
        if asked.kind not in DECIDED_ON:
            return
        self.calls += 1
        self._steps.add(step)
        if asked.kind == "model":
            self.model_calls += 1
        else:
            self.tool_calls += 1
            self.write_calls += asked.effect == "write"

    def end(self, call: Call, step: str) -> None:
        """A call ended, of any kind. step: as `begin`."""
        ended_at = call.started_at + round(call.duration_ms * 1000)
        if self._started_at and call.started_at:
            self.time_s = max(self.time_s, (ended_at - self._started_at) / 1e6)
        if call.asked.kind == "model":
            said = model_call(call)
            self.input_tokens += said.get("input_tokens", 0)
            self.output_tokens += said.get("output_tokens", 0)
        elif call.asked.kind == "tool" and self._loops is not None:
            self._loops.add(AnsweredCall(call.asked.hash, result_hash(call.answer, call.failure), step))


def result_hash(answer: Plain, failure: Failure | None) -> str:
    """Equal for equal results. Of a failure its class and its text count."""
    tree = {"answer": answer} if failure is None else {"failed": [failure.exception, failure.message]}
    return hashlib.sha256(msgspec.json.encode(tree, order="sorted")).hexdigest()


def title_of(asked: RecordedRequest) -> str:
    """Return the name of a call in decisions: `tool refund`."""
    return f"{asked.kind} {asked.name}"


def arguments_of(asked: RecordedRequest) -> Plain:
    """Return a call's arguments by name: a tool's or a model's keyword arguments, or the JSON of an exchange."""
    if is_exchange(asked.request):
        return said_in(asked.request, None)[0]
    if not isinstance(asked.request, Mapping):
        return {}
    by_place = {str(place): value for place, value in enumerate(asked.request.get("args", ()))}
    return {**by_place, **asked.request.get("kwargs", {})}
