"""Messages between a process and its sealing process, short and long, arrive complete and in order."""

from __future__ import annotations

import random
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import IO, Any

import pytest

from refold.streams.snapshots.sealing_process.channel import MEMORY_BYTES, SHORT_BYTES, Channel, shared_memory

Pair = tuple[Channel, Channel]


def file_of_memory() -> IO[bytes]:
    """The path for systems without named shared memory."""
    found = tempfile.TemporaryFile()  # noqa: SIM115 - as shared_memory
    found.truncate(MEMORY_BYTES)
    return found


@pytest.fixture(params=[shared_memory, file_of_memory])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    memory: Callable[[], IO[bytes]] = request.param
    one, other = socket.socketpair()
    with memory() as held:
        own, their = Channel(one, held.fileno()), Channel(other, held.fileno())
    with closing(own), closing(their):
        yield own, their


def echoing(channel: Channel) -> threading.Thread:
    def run() -> None:
        while (heard := channel.hear()) is not None:
            channel.tell(heard)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_all_that_is_said_comes_back(seed: int, pair: Pair) -> None:
    rng = random.Random(seed)
    own, their = pair
    echo = echoing(their)
    near = [0, 1, SHORT_BYTES - 40, SHORT_BYTES, SHORT_BYTES + 1, 300_000, MEMORY_BYTES - 100, MEMORY_BYTES + 1]
    for length in rng.sample(near, len(near)) + [rng.randrange(2 * SHORT_BYTES) for _ in range(40)]:
        said: list[Any] = ["rows", (length,), rng.randbytes(length), [rng.randbytes(length // 7)] * 3]
        own.tell(said)
        assert own.hear() == said
    own.tell(None)
    echo.join(30)


def test_what_is_heard_stays_as_it_was(seed: int, pair: Pair) -> None:
    """Any later content of the memory."""
    own, their = pair
    first, second = random.Random(seed).randbytes(1 << 20), b"x" * (1 << 20)
    own.tell([first])
    heard = their.hear()
    their.tell([second])
    assert own.hear() == [second]
    assert heard == [first]


def test_two_short_ones_after_each_other_are_two(pair: Pair) -> None:
    own, their = pair
    own.tell("first")
    own.tell(("second", 2))
    assert their.hear() == "first"
    assert their.hear() == ("second", 2)


def test_one_that_is_gone_is_heard_of(pair: Pair) -> None:
    own, their = pair
    own.close()
    with pytest.raises(EOFError):
        their.hear()
    with pytest.raises(ConnectionError):
        their.tell("anything")


def test_hearing_nothing_for_too_long_is_said() -> None:
    one, other = socket.socketpair()
    with shared_memory() as held, closing(Channel(one, held.fileno(), silent_s=1)) as own, other, \
            pytest.raises(TimeoutError):  # fmt: skip
        own.hear()


def test_systems_without_memory_of_a_name_take_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    with shared_memory() as found:
        assert found.seek(0, 2) == MEMORY_BYTES
