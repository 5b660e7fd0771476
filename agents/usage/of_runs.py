"""The tokens and the cost of steps and runs, call by call, from the usage that the models' answers report.

1. A call counts if it was really made: a call that was answered from a recording cost nothing.
2. Failed attempts count too, because their calls were paid.
3. A fork's steps before it diverges are its parent's, and so is their cost. Nested runs have their own.
4. A model without a price has tokens and no cost. It is listed in `unpriced`, and the sum covers the other models.
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
    """The model and the tokens of one call."""

    model: str
    tokens: TokenUsage


@dataclass(slots=True)
class UsageSum:
    """The usage of several calls.

    Attributes:
        cost_usd: The cost, in US dollars; None if none of their models has a price.
        unpriced: The models without a price.
        by_model: The usage of each model, by its name.
    """

    tokens: TokenUsage = field(default_factory=TokenUsage)
    cost_usd: float | None = None
    unpriced: list[str] = field(default_factory=list)
    by_model: dict[str, UsageSum] = field(default_factory=dict)


def usage_of_call(call: Call) -> ModelUsage | None:
    """Return the usage of one call.

    Returns:
        None if it is not a model call, was answered from a recording, or does not report its usage.
    """
    if call.asked.kind != "model" or call.source != "live":
        return None
    request, answered = said_in_call(call)
    tokens = usage_in(answered)
    return None if tokens is None else ModelUsage(_model(request, answered), tokens)


def usage_of_step(step: Step, since: int = 0) -> Iterator[ModelUsage]:
    """Yield the usage of each call of a step, in every attempt.

    Args:
        step: The step.
        since: Only of calls that began then or later, microseconds.
    """
    calls = (call for attempt in step.attempts for call in attempt.calls if call.started_at >= since)
    yield from (each for each in map(usage_of_call, calls) if each is not None)


def usage_of_run(run: Recording, since: int = 0) -> Iterator[ModelUsage]:
    """Yield the usage of each of a run's own calls, without those that a fork shares with its parent.

    Args:
        run: The run.
        since: Only of calls that began then or later, microseconds.
    """
    before = run.forked_at if run.parent else 0
    for step in run.steps[before:]:
        yield from usage_of_step(step, since)


def usage_of_fields(step: Fields) -> list[ModelUsage]:
    """Return the usage of each call of a stored step.

    If the step's content cannot be read, the usage comes from the fields that are stored in clear.
    """
    clear = list(step.plain("model_calls") or ())
    try:
        parts = step.exact_map("journal")
        attempts = [msgspec.convert(parts[key]["attempt"], Attempt) for key in sorted(parts, key=int)]
    except (NotAnswerable, CorruptionError, msgspec.ValidationError, KeyError, TypeError, ValueError):
        return [each for each in map(_clear_usage, clear) if each is not None]
    calls = [call for attempt in attempts for call in attempt.calls if call.asked.kind == "model"]
    # The requested model is in the request, of which this step may store only a difference.
    names = [each.get("response_model") or each.get("model") or "" for each in clear]
    names = names if len(names) == len(calls) else [""] * len(calls)
    found = []
    for call, name in zip(calls, names, strict=True):
        usage = usage_of_call(call)
        if usage is not None:
            found.append(ModelUsage(name or usage.model, usage.tokens))
    return found or [each for each in map(_clear_usage, clear) if each is not None and not calls]


def summed(usages: Iterable[ModelUsage], table: Prices | None = None) -> UsageSum | None:
    """Sum the usage of calls, in total and by model. Each call is priced by itself.

    Args:
        usages: The usage of each call.
        table: The prices; by default the configured ones.

    Returns:
        The sum; None if there are no calls.
    """
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


def _model(request: Any, answered: Any) -> str:
    names = (answered.get("model"), answered.get("modelVersion"), request.get("model"))
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
