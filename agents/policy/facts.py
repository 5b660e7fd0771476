"""The facts for a policy's decision: the calls of a run so far, counted. Pure, and equal in the run and in its
recording.

Time is the recorded time: from the run's start to the end of the last call. If the decision read a clock, a replay
would decide differently.

One of the facts is whether the run is in a loop: tool calls that repeat in cycles, by their requests and results. The
tool calls are a sequence of tokens, one for each answered call: its request with its result. The run is in a
loop if the sequence ends in one block of 1 to `period_max` tokens, `repeats` times in a row: A A A, or A B A B A B. The
next call of the cycle is then denied. Any other call is allowed, and its token ends the loop. A different result
ends it too: polling that makes progress is not a loop.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from refold.agents.capture.answers import json_exchange
from refold.agents.capture.exchange import is_exchange
from refold.agents.journal.record import Call, Failure, Plain, RecordedRequest
from refold.agents.policy.rules import Policy
from refold.agents.recorder.observations import model_call
from refold.agents.usage.of_runs import usage_of_call
from refold.agents.usage.prices import prices


class AnsweredCall(NamedTuple):
    """The token of an answered call: hashes of its request and of its result, and the step that made it."""

    request: str
    result: str
    step: str


class Circle(NamedTuple):
    """Calls that repeat.

    Attributes:
        calls: All of the calls, oldest first.
        period: How many calls one cycle has.
    """

    calls: tuple[AnsweredCall, ...] = ()
    period: int = 0


class LoopFinder:
    """Finds loops in the calls of one run. The time per call depends on period_max, not on the length of the run."""

    def __init__(self, repeats: int, period_max: int) -> None:
        self._repeats = repeats
        self._period_max = period_max
        self._last: list[AnsweredCall] = []
        # By period: how many of the last tokens equal the token one period before them.
        self._equal = [0] * (period_max + 1)

    def add(self, call: AnsweredCall) -> None:
        """Add an answered tool call."""
        length = len(self._last)
        for period in range(1, self._period_max + 1):
            is_equal = length >= period and self._last[length - period][:2] == call[:2]
            self._equal[period] = self._equal[period] + 1 if is_equal else 0
        self._last.append(call)
        if length > 4 * self._period_max * self._repeats:
            del self._last[: length // 2]

    def circle(self, request: str) -> list[AnsweredCall]:
        """Return the calls of the cycle that a request would continue.

        Args:
            request: The hash of the request.

        Returns:
            The answered calls, oldest first; empty if the request continues no cycle.
        """
        for period in range(1, self._period_max + 1):
            if self._equal[period] >= period * (self._repeats - 1) and self._last[-period].request == request:
                return self._last[-period * self._repeats :]
        return []

    @property
    def ending(self) -> Circle:
        """The loop that the calls so far end in, with every repetition that is kept; empty if they end in none."""
        for period in range(1, self._period_max + 1):
            if self._equal[period] >= period * (self._repeats - 1):
                return Circle(tuple(self._last[-(self._equal[period] + period) :]), period)
        return Circle()


DECIDED_ON = ("tool", "model")


class RunFacts:
    """The facts of one run, with its nested runs. A registered rule reads them and must not change them.

    Attributes:
        calls, tool_calls, write_calls, model_calls: How many calls were begun: of all, to tools, to tools that write,
            and to models.
        steps: How many steps had such calls.
        input_tokens, output_tokens: The numbers of tokens that the answers report.
        cost_usd: What the tokens cost, in US dollars.
        unpriced: A model without a price that answered; empty if every such model has a price.
        time_s: The time from the run's start to the last call's end, in seconds.
        denied: How many calls were denied.
    """

    def __init__(self, policy: Policy, started_at: int = 0) -> None:
        """Begin with no calls.

        Args:
            started_at: When the run began, microseconds.
        """
        self.calls = self.tool_calls = self.write_calls = self.model_calls = self.denied = 0
        self.input_tokens = self.output_tokens = 0
        self.cost_usd = self.time_s = 0.0
        self.unpriced = ""
        self._prices = prices() if policy.budget.cost_usd is not None else None
        self._started_at = started_at
        self._steps: set[str] = set()
        loop = policy.loop
        self._loops = None if loop is None else LoopFinder(loop.repeats, loop.period_max)

    @property
    def steps(self) -> int:
        """The number of steps that had calls."""
        return len(self._steps)

    @property
    def tokens(self) -> int:
        """Input and output tokens together."""
        return self.input_tokens + self.output_tokens

    def circle(self, request: RecordedRequest) -> list[AnsweredCall]:
        """Return the calls of the cycle that a tool call would continue; empty if it continues none."""
        return [] if self._loops is None or request.kind != "tool" else self._loops.circle(request.hash)

    def begin(self, request: RecordedRequest, step: str) -> None:
        """Count the begin of a call.

        Args:
            step: The call's step, as RUN#NUMBER.
        """
        if request.kind not in DECIDED_ON:
            return
        self.calls += 1
        self._steps.add(step)
        if request.kind == "model":
            self.model_calls += 1
        else:
            self.tool_calls += 1
            self.write_calls += request.effect == "write"

    def end(self, call: Call, step: str) -> None:
        """Count the end of a call, of any kind.

        Args:
            step: As in `begin`.
        """
        ended_at = call.started_at + round(call.duration_ms * 1000)
        if self._started_at and call.started_at:
            self.time_s = max(self.time_s, (ended_at - self._started_at) / 1e6)
        if call.asked.kind == "model":
            exchange = model_call(call)
            self.input_tokens += exchange.get("input_tokens", 0)
            self.output_tokens += exchange.get("output_tokens", 0)
            self._pay(call)
        elif call.asked.kind == "tool" and self._loops is not None:
            self._loops.add(AnsweredCall(call.asked.hash, result_hash(call.answer, call.failure), step))

    def _pay(self, call: Call) -> None:
        """Count what a model call cost, if a budget depends on it."""
        usage = usage_of_call(call) if self._prices is not None else None
        if self._prices is None or usage is None:
            return
        cost = self._prices.cost(usage.model, usage.tokens)
        if cost is None:
            self.unpriced = usage.model
        else:
            self.cost_usd += cost


def result_hash(answer: Plain, failure: Failure | None) -> str:
    """Return a hash that is equal for equal results. For a failure, its class and its message count."""
    tree = {"answer": answer} if failure is None else {"failed": [failure.exception, failure.message]}
    return hashlib.sha256(msgspec.json.encode(tree, order="sorted")).hexdigest()


def title_of(request: RecordedRequest) -> str:
    """Return how decisions name a call, such as `tool refund`."""
    return f"{request.kind} {request.name}"


def arguments_of(request: RecordedRequest) -> Plain:
    """Return a call's arguments by name: a tool's or a model's keyword arguments, or the JSON of an exchange."""
    if is_exchange(request.request):
        return json_exchange(request.request, None)[0]
    if not isinstance(request.request, Mapping):
        return {}
    by_place = {str(place): value for place, value in enumerate(request.request.get("args", ()))}
    return {**by_place, **request.request.get("kwargs", {})}
