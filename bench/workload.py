"""What the benchmarks fold: 5-field observations of tool_config entities, uniform or Zipf, made from a seed.

An observation sets rate_limit, timeout_ms, endpoint, tool and enabled; it is about 190 bytes in the log, its record's
key and id included. Entities are drawn uniformly, or by a Zipf law with exponent 1.1, by inverting its distribution.
"""

from __future__ import annotations

import itertools
import random
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Any

from refold import Source

START_MICROS = 1_700_000_000_000_000
ZIPF_EXPONENT = 1.1


def uniform(entities: int, seed: int) -> Callable[[], int]:
    """Draws of an entity's number, each as likely."""
    chosen = random.Random(seed)
    return lambda: chosen.randrange(entities)


def zipf(entities: int, seed: int) -> Callable[[], int]:
    """Draws of an entity's number, the k-th in proportion to k^-1.1."""
    chosen = random.Random(seed)
    cumulative = list(itertools.accumulate(1 / rank**ZIPF_EXPONENT for rank in range(1, entities + 1)))
    total = cumulative[-1]
    return lambda: bisect_left(cumulative, chosen.random() * total)


def observations(count: int, draw: Callable[[], int]) -> Iterator[dict[str, Any]]:
    """Keyword arguments for `Log.observe`."""
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
