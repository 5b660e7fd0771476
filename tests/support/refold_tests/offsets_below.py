"""The records of a log of THING before its cuts, as (offset, observation), for the naive reference."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence

from refold.avro.observation import Observation
from refold.streams.client import Log
from refold.streams.cut import Cut
from refold_tests.opening import take
from refold_tests.sample_types import THING, reference_definition

DEFINITION = reference_definition(THING)
Offsets = list[tuple[int, Observation]]


def logged(log: Log, observations: Sequence[Observation], seed: int, sizes: Sequence[int] = (1, 2, 9)) -> None:
    """Record in flushes of random size, so that changes have one to many steps."""
    rng = random.Random(seed)
    done = 0
    while done < len(observations):
        size = rng.choice(sizes)
        take(log, observations[done : done + size])
        done += size


def records(log: Log) -> dict[int, Offsets]:
    """Return every record as (offset, observation), by partition."""
    return {
        partition: [(each.offset, log.port.registry.decode(each.data)) for each in log.port.read(partition, 0, end)]
        for partition, end in log.port.ends().items()
    }


def below(every: dict[int, Offsets], offsets: Iterable[tuple[int, int]]) -> Offsets:
    """Return the records before the next offsets. The order within each entity is kept."""
    return [each for partition, end in offsets for each in every[partition][:end]]


def names(log: Offsets) -> set[str]:
    """Return the entities of these records."""
    return {observation.entity for _, observation in log}


def every_cut(log: Log) -> Iterator[tuple[Cut, Offsets]]:
    """Yield each combination of next offsets of a log of two partitions, with the records before it."""
    every = records(log)
    for first in range(len(every[0]) + 1):
        for second in range(len(every[1]) + 1):
            cut = log.point(f"offset:0={first},1={second}").cut
            yield cut, below(every, cut.offsets.items())


def some_cuts(log: Log, seed: int, count: int) -> list[tuple[Cut, Offsets]]:
    """Return the beginning, the end, and random points between."""
    rng, every, ends = random.Random(seed), records(log), log.port.ends()
    found = []
    for number in range(count):
        offsets = {partition: rng.randint(0, end) for partition, end in ends.items()}
        offsets = dict.fromkeys(ends, 0) if number == 0 else dict(ends) if number == 1 else offsets
        cut = log.point("offset:" + ",".join(f"{partition}={end}" for partition, end in offsets.items())).cut
        found.append((cut, below(every, cut.offsets.items())))
    return found
