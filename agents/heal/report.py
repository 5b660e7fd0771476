"""A report on healing: how often each failure occurred, which remedy helped, and the cost."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from refold.agents.heal.healings import Healing


class RemedyCount(NamedTuple):
    """How a remedy did for one kind of failure: attempts, and how many of them ended in each way."""

    remedy: str
    attempts: int
    healed: int
    refuted: int
    failed: int


class FailureCount(NamedTuple):
    """One kind of failure.

    Attributes:
        runs: How many runs had it.
        healed: How many of them were healed.
        stopped: How many are left to a person: their last attempt is `stopped`.
        input_tokens, output_tokens, cost_usd: The sums of all attempts; cost_usd is None if no model of them has a
            price.
    """

    failure: str
    runs: int
    healed: int
    stopped: int
    input_tokens: int
    output_tokens: int
    cost_usd: float | None
    remedies: tuple[RemedyCount, ...]


def report(attempts: Iterable[Healing]) -> list[FailureCount]:
    """Return each kind of failure, the most frequent first.

    Args:
        attempts: The attempts of a log, oldest first.
    """
    by_failure: dict[str, list[Healing]] = {}
    for each in attempts:
        by_failure.setdefault(each.failure, []).append(each)
    found = [_failure(failure, some) for failure, some in by_failure.items()]
    return sorted(found, key=lambda each: (-each.runs, each.failure))


def report_json(attempts: Iterable[Healing]) -> dict[str, Any]:
    """Return the report and the attempts as JSON."""
    every = list(attempts)
    failures = [{**each._asdict(), "remedies": [one._asdict() for one in each.remedies]} for each in report(every)]
    return {"failures": failures, "healings": [each.json() for each in every]}


def _failure(failure: str, attempts: list[Healing]) -> FailureCount:
    costs = [each.cost_usd for each in attempts if each.cost_usd is not None]
    last = {each.run: each.status for each in attempts}
    names = dict.fromkeys(each.remedy for each in attempts if each.remedy)
    return FailureCount(
        failure, len({each.run for each in attempts}), len({each.run for each in attempts if each.status == "healed"}),
        sum(status == "stopped" for status in last.values()), sum(each.input_tokens for each in attempts),
        sum(each.output_tokens for each in attempts), sum(costs) if costs else None,
        tuple(_remedy(name, [each for each in attempts if each.remedy == name]) for name in names),
    )  # fmt: skip


def _remedy(name: str, attempts: list[Healing]) -> RemedyCount:
    def count(status: str) -> int:
        return sum(each.status == status for each in attempts)

    return RemedyCount(name, len(attempts), count("healed"), count("refuted"), count("failed"))
