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
        while (heard := channel.receive()) is not None:
            channel.send(heard)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_messages_round_trip(seed: int, pair: Pair) -> None:
    rng = random.Random(seed)
    own, their = pair
    echo = echoing(their)
    near = [0, 1, SHORT_BYTES - 40, SHORT_BYTES, SHORT_BYTES + 1, 300_000, MEMORY_BYTES - 100, MEMORY_BYTES + 1]
    for length in rng.sample(near, len(near)) + [rng.randrange(2 * SHORT_BYTES) for _ in range(40)]:
        said: list[Any] = ["rows", (length,), rng.randbytes(length), [rng.randbytes(length // 7)] * 3]
        own.send(said)
        assert own.receive() == said
    own.send(None)
    echo.join(30)


def test_received_message_stays_unchanged(seed: int, pair: Pair) -> None:
    """Any later content of the memory."""
    own, their = pair
    first, second = random.Random(seed).randbytes(1 << 20), b"x" * (1 << 20)
    own.send([first])
    heard = their.receive()
    their.send([second])
    assert own.receive() == [second]
    assert heard == [first]


def test_two_short_messages_stay_separate(pair: Pair) -> None:
    own, their = pair
    own.send("first")
    own.send(("second", 2))
    assert their.receive() == "first"
    assert their.receive() == ("second", 2)


def test_dead_peer_is_detected(pair: Pair) -> None:
    own, their = pair
    own.close()
    with pytest.raises(EOFError):
        their.receive()
    with pytest.raises(ConnectionError):
        their.send("anything")


def test_silent_peer_times_out() -> None:
    one, other = socket.socketpair()
    with shared_memory() as held, closing(Channel(one, held.fileno(), silent_s=1)) as own, other, \
            pytest.raises(TimeoutError):  # fmt: skip
        own.receive()


def test_systems_without_named_memory_use_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    with shared_memory() as found:
        assert found.seek(0, 2) == MEMORY_BYTES
