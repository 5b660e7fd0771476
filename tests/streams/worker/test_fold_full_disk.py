"""A worker with a full disk: it reports that and ends, and continues once there is space."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from refold.avro.observation import Observation
from refold.streams.log.kafka.log import KafkaLog
from refold_tests.brokers import SharedKafka
from refold_tests.child import Child
from refold_tests.devices import fill, small_device
from refold_tests.folding import (
    PATIENCE_S,
    REFUSED,
    append,
    await_folded,
    check_whole,
    drain,
    history,
    opened,
    url_of,
    worker,
)
from refold_tests.sample_types import THING

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]


@pytest.fixture
def log(kafka: SharedKafka, prefix: str) -> Iterator[KafkaLog]:
    with opened(url_of(kafka.bootstrap, prefix)) as found:
        found.register(THING)
        yield found


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    with small_device(tmp_path / "small") as folder:
        yield folder


def fed_to_its_end(found: Child, log: KafkaLog, observations: Sequence[Observation]) -> str:
    """Return a worker's last line, while it has more to fold; repeats are folded, and lengthen the log."""
    deadline = time.monotonic() + PATIENCE_S
    while found.process.poll() is None:
        assert time.monotonic() < deadline, "it goes on, though its disk takes no more"
        append(log, observations)
        time.sleep(0.05)
    said = found.line()
    assert found.end() == REFUSED, said
    return said


def test_full_device_ends_the_worker_by_name_and_space_lets_it_continue(
    log: KafkaLog, small: Path, child: Callable[..., Child], seed: int, fault_rounds: int
) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    rounds = max(2, fault_rounds // 5)
    observations = history(rng, 60 * rounds, 200)
    acknowledged: set[bytes] = set()
    for number in range(rounds):
        some = observations[60 * number : 60 * (number + 1)]
        running = worker(child, log.url, small)
        acknowledged |= append(log, some[:20])
        if number or rng.random() < 0.5:  # else the device is full before there is a table
            await_folded(log, running)
        filler = fill(small)
        acknowledged |= append(log, some[20:])
        said = fed_to_its_end(running, log, some)
        print(said)
        assert "no space left" in said.lower()
        assert str(small) in said
        again = worker(child, log.url, small)  # as whoever supervises it starts it again
        assert "no space left" in fed_to_its_end(again, log, some).lower()
        filler.unlink()
    last = worker(child, log.url, small)
    await_folded(log, last)
    drain(last)
    check_whole(log, small, acknowledged)


LIMITED = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, ({bytes}, resource.RLIM_INFINITY))
"""


def test_file_size_limit_ends_the_worker_by_name_wherever_it_applies(
    log: KafkaLog, tmp_path: Path, child: Callable[..., Child], seed: int, fault_rounds: int
) -> None:
    """In the middle of any write, of opening and of closing; each start continues from what is there."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    rounds = max(3, fault_rounds // 5)
    observations = history(rng, 60 * rounds, 200)
    acknowledged: set[bytes] = set()
    for number in range(rounds):
        some = observations[60 * number : 60 * (number + 1)]
        acknowledged |= append(log, some)
        limit = rng.choice([rng.randrange(1, 5_000), rng.randrange(5_000, 40_000)])
        limited = worker(child, log.url, tmp_path, before=LIMITED.format(bytes=limit))
        said = fed_to_its_end(limited, log, some)
        print(limit, said)
        assert "File too large" in said
        assert str(tmp_path) in said
    last = worker(child, log.url, tmp_path)
    await_folded(log, last)
    drain(last)
    check_whole(log, tmp_path, acknowledged)
