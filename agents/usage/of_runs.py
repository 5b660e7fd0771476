"""The tokens and the cost of steps and runs, call by call, from what the models' answers say.

1. A call counts where it was really made: one that was answered from a recording cost nothing.
2. Attempts that failed count too: their calls were paid.
3. A fork's steps before it parts are its parent's, and so is what they cost. Runs within a run have their own.
4. A model without a price has tokens and no cost. It is named in `unpriced`, and the sum is then of the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from refold.agents.journal.record import Attempt, Call, Recording, Step
from refold.agents.recorder.observations import said_in_call
from refold.agents.recordings.fields import Fields
from refold.agents.usage.prices import Prices, prices
from refold.agents.usage.tokens import TokenUsage, total, usage_in
from refold.avro.errors import CorruptionError, NotAnswerable

UNKNOWN_MODEL = "unknown"
_CACHE_APART = ("anthropic", "aws.bedrock")


@dataclass(frozen=True, slots=True)
class ModelUsage:
    """Of one call: the model, and its tokens."""

    model: str
    tokens: TokenUsage


@dataclass(slots=True)
class UsageSum:
    """Of several calls. cost_usd: None where no model of them has a price. unpriced: the models without one."""

    tokens: TokenUsage = field(default_factory=TokenUsage)
    cost_usd: float | None = None
    unpriced: list[str] = field(default_factory=list)
    by_model: dict[str, UsageSum] = field(default_factory=dict)


def usage_of_call(call: Call) -> ModelUsage | None:
    """Of one call; None where it is none of a model, was answered from a recording, or does not say."""
    if call.asked.kind != "model" or call.source != "live":
        return None
    asked, answered = said_in_call(call)
    tokens = usage_in(answered)
    return None if tokens is None else ModelUsage(_model(asked, answered), tokens)


def usage_of_step(step: Step) -> Iterator[ModelUsage]:
    """Of the calls of a step, of every attempt."""
    found = (usage_of_call(call) for attempt in step.attempts for call in attempt.calls)
    yield from (each for each in found if each is not None)


def usage_of_run(run: Recording) -> Iterator[ModelUsage]:
    """Of a run's own calls."""
    before = run.forked_at if run.parent else 0
    for step in run.steps[before:]:
        yield from usage_of_step(step)


def usage_of_fields(step: Fields) -> list[ModelUsage]:
    """Of the calls of a stored step. Where its content cannot be read, of what stands in clear of them."""
    clear = list(step.plain("model_calls") or ())
    try:
        parts = step.exact_map("journal")
        attempts = [msgspec.convert(parts[key]["attempt"], Attempt) for key in sorted(parts, key=int)]
    except (NotAnswerable, CorruptionError, msgspec.ValidationError, KeyError, TypeError, ValueError):
        return [each for each in map(_clear_usage, clear) if each is not None]
    calls = [call for attempt in attempts for call in attempt.calls if call.asked.kind == "model"]
    # The model asked for is in the request, of which this step may hold no more than a difference.
    names = [each.get("response_model") or each.get("model") or "" for each in clear]
    names = names if len(names) == len(calls) else [""] * len(calls)
    found = []
    for call, name in zip(calls, names, strict=True):
        usage = usage_of_call(call)
        if usage is not None:
            found.append(ModelUsage(name or usage.model, usage.tokens))
    return found or [each for each in map(_clear_usage, clear) if each is not None and not calls]


def summed(usages: Iterable[ModelUsage], table: Prices | None = None) -> UsageSum | None:
    """All of them, and by model; None where there are none. Each call is priced by itself."""
    table = table or prices()
    every = list(usages)
    if not every:
        return None
    names = dict.fromkeys(each.model for each in every)
    by_model = {name: _sum([each for each in every if each.model == name], table) for name in names}
    whole = _sum(every, table)
    whole.by_model = by_model
    return whole


def _sum(usages: list[ModelUsage], table: Prices) -> UsageSum:
    costs = [(each.model, table.cost(each.model, each.tokens)) for each in usages]
    known = [cost for _, cost in costs if cost is not None]
    unpriced = list(dict.fromkeys(model for model, cost in costs if cost is None))
    return UsageSum(total(each.tokens for each in usages), sum(known) if known else None, unpriced)


def _model(asked: Any, answered: Any) -> str:
    names = (answered.get("model"), answered.get("modelVersion"), asked.get("model"))
    return next((each for each in names if isinstance(each, str) and each), UNKNOWN_MODEL)


def _clear_usage(call: Any) -> ModelUsage | None:
    if call.get("determinism") == "recorded" or (
        call.get("input_tokens") is None and call.get("output_tokens") is None
    ):
        return None
    read, cached = call.get("input_tokens") or 0, call.get("cached_tokens") or 0
    anew = read if call.get("provider") in _CACHE_APART else max(0, read - cached)
    return ModelUsage(
        call.get("response_model") or call.get("model") or UNKNOWN_MODEL,
        TokenUsage(anew, call.get("output_tokens") or 0, cached),
    )
