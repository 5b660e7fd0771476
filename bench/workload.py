"""The benchmarks' input: 5-field observations of tool_config entities, uniform or Zipf, generated from a seed.

An observation sets rate_limit, timeout_ms, endpoint, tool and enabled; it takes about 190 bytes in the log, including
its record's key and id. Entities are drawn uniformly, or by a Zipf law with exponent 1.1, by inverting its
distribution. `disturbed` makes observations arrive as in real logs: some twice, some late.
"""

from __future__ import annotations

import heapq
import itertools
import random
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from refold import Source

START_MICROS = 1_700_000_000_000_000
ZIPF_EXPONENT = 1.1
DUPLICATES = 0.01
LATE = 0.01
LATE_RECORDS_MAX = 10_000


def uniform(entities: int, seed: int) -> Callable[[], int]:
    """Return a function that draws an entity's number; all are equally likely."""
    chosen = random.Random(seed)
    return lambda: chosen.randrange(entities)


def zipf(entities: int, seed: int) -> Callable[[], int]:
    """Return a function that draws an entity's number; the k-th has a probability in proportion to k^-1.1."""
    chosen = random.Random(seed)
    cumulative = list(itertools.accumulate(1 / rank**ZIPF_EXPONENT for rank in range(1, entities + 1)))
    total = cumulative[-1]
    return lambda: bisect_left(cumulative, chosen.random() * total)


def observations(count: int, draw: Callable[[], int]) -> Iterator[dict[str, Any]]:
    """Yield keyword arguments for `Log.observe`."""
    for number in range(count):
        yield {
            "entity": f"tool_config/entity-{draw():07d}",
            "patch": {
                "rate_limit": number % 1000,
                "timeout_ms": 30_000 + number % 7,
                "endpoint": "https://tools.internal/v1/search",
                "tool": f"search-{number % 50}",
                "enabled": number % 3 > 0,
            },
            "source": Source("bench", f"run-{number // 10_000}", str(number % 40), "search", number % 10_000),
            "observed_at": START_MICROS + number * 1000,
        }


def disturbed(observations: Iterable[dict[str, Any]], seed: int) -> Iterator[dict[str, Any]]:
    """Yield the same observations, with 1 % of them twice, the repeat 1 to 10,000 records after the original, and
    another 1 % once, but late by as many records. Observations still held back at the end follow there, in their order.
    """
    chosen = random.Random(seed)
    held: list[tuple[int, int, dict[str, Any]]] = []  # (the record after which it comes, a unique number, observation)
    given = 0
    for number, each in enumerate(observations):
        while held and held[0][0] <= given:
            yield heapq.heappop(held)[2]
            given += 1
        fate = chosen.random()
        is_late = fate < LATE
        if is_late or fate < LATE + DUPLICATES:
            heapq.heappush(held, (given + chosen.randint(1, LATE_RECORDS_MAX), number, each))
        if not is_late:
            yield each
            given += 1
    while held:
        yield heapq.heappop(held)[2]


def ended_runs(start: int, stop: int, steps: int) -> Iterator[dict[str, Any]]:
    """Yield the observations of runs number start to stop, all ended, with `steps` steps each; every tenth run changes
    a tool's settings."""
    for run in range(start, stop):
        at = START_MICROS + run * 60_000_000
        seq = itertools.count()

        def said(entity: str, later_s: int, patch: dict[str, Any], run: int = run, at: int = at,
                 seq: Iterator[int] = seq) -> dict[str, Any]:  # fmt: skip
            return {"entity": entity, "patch": patch, "observed_at": at + later_s * 1_000_000,
                    "source": Source("agent", f"run-{run}", "", "", next(seq))}  # fmt: skip

        yield said(f"run/run-{run}", 0, {"agent": "agent", "kind": "bench", "status": "running"})
        for step in range(steps):
            yield said(f"step/run-{run}#{step}", step, {"run": f"run-{run}", "ended_at": at + (step + 1) * 1_000_000})
        if run % 10 == 0:
            yield said(f"tool_config/tool-{run % 1000}", steps, {"rate_limit": run})
        yield said(f"run/run-{run}", steps, {"status": "ended", "ended_at": at + steps * 1_000_000})
