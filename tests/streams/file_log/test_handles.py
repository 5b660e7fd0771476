"""Handles on one log, in one process and in several, interrupted and not."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest

from refold.avro.definition import TypeDefinition
from refold.avro.ids import identify
from refold.avro.observation import Observation
from refold.streams.log.port import AppendedObservation, LogPort, Marked
from refold_tests.child import Child
from refold_tests.cuts import cut_text
from refold_tests.file_logs import FileOpened, Owned, Remote, assert_verified, records_of
from refold_tests.histories import random_history
from refold_tests.log_handles import assert_folded, put
from refold_tests.sample_types import THING, A, said, versions

INTERRUPTED = """
import random, signal, sys, uuid
from pathlib import Path
from refold.avro.ids import identify
from refold.streams.log.file.log import FileLog
from refold_tests.clock import FileClock
from refold_tests.log_handles import put
from refold_tests.sample_types import A, said

def interrupt(*_):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
rng = random.Random(int(sys.argv[3]))
log = FileLog(Path(sys.argv[1]), clock_ms=FileClock(Path(sys.argv[2])), new_id=lambda: uuid.uuid4().bytes)
interrupts = 0
most_s = 0.01  # to an interrupt; it follows what a flush takes here: each gets through, and many are interrupted
for number in range(0, 2_000, 20):
    some = [said(f"{A}{rng.randrange(9)}", each) for each in range(number, number + 20)]
    while True:
        try:
            signal.setitimer(signal.ITIMER_REAL, rng.random() * most_s)
            put(log, some)
            log.flush()
            signal.setitimer(signal.ITIMER_REAL, 0)
            most_s *= 0.8
            break
        except KeyboardInterrupt:
            interrupts += 1
            most_s *= 1.5
    print(" ".join(identify(each).hex() for each in some), flush=True)
assert interrupts > 5, interrupts
log.close()
"""


@pytest.mark.parametrize("kind", [Owned, Remote])
def test_interrupted_writer_continues_without_loss(
    tmp_path: Path, child: Callable[..., Child], kind: type[FileOpened], seed: int
) -> None:
    """As in a notebook: Ctrl-C in the middle of anything, and then the same call again."""
    opened = kind(tmp_path, child)
    with opened():
        pass
    with contextlib.ExitStack() as stack:
        if kind is Remote:
            stack.enter_context(opened.owned_by_another())
        writer = child(INTERRUPTED, opened.path, opened.clock.path, seed)
        acknowledged = []
        while line := writer.line():
            acknowledged += line.split()
        assert writer.end() == 0
    assert len(acknowledged) == 2_000
    with Owned(tmp_path, child)() as (log, _):
        assert {each.id.hex() for each in records_of(log)} == set(acknowledged)
        assert_verified(log)


def test_ids_with_a_common_prefix_are_distinguished(owned: FileOpened) -> None:
    ids = [bytes(8) + bytes([number]) * 24 for number in (3, 1, 2)]
    with owned() as (log, _):
        log.register(THING)
        codec = log.registry.versions(THING.name)[0].codec
        for number, each in enumerate(ids):
            observation = said(f"{A}{number}", 0)
            log.append(
                AppendedObservation(observation.entity, each, codec.encode_observation(observation), observation)
            )
        log.flush()
        for number, each in enumerate(ids):
            found = log.find(each)
            assert found is not None
            assert (found.id, found.entity) == (each, f"{A}{number}")
        assert log.find(bytes(8) + bytes([4]) * 24) is None


def test_two_handles_in_one_process(owned: FileOpened) -> None:
    with owned() as (first, _), contextlib.closing(owned.file()) as second:
        observations = [said(A, number) for number in range(3)]
        assert not second.database.is_owner
        put(second, observations[:1])
        second.flush()
        put(first, observations[1:2])
        first.flush()
        second.refresh()
        assert_folded(second, observations[:2])
        first.close()
        put(second, observations[2:])
        second.flush()
        assert second.database.is_owner
        assert_folded(second, observations)
        assert_verified(second)


@pytest.mark.parametrize("number", range(6))
def test_any_number_of_handles_in_any_order_share_one_log(
    tmp_path: Path, child: Callable[..., Child], seed: int, number: int
) -> None:
    """A random walk: handles open and close, also owners; each writes, registers, marks, and sees everything."""
    print(f"seed {seed}")
    rng = random.Random(seed + number)
    owned = Owned(tmp_path, child)
    waiting = iter(random_history(seed + number, 400))
    versions_left = iter([*versions(6)])
    handles = [owned.file()]
    appended: list[list[Observation]] = [[]]
    flushed: list[Observation] = []
    names: list[str] = []

    def flush(at: int) -> None:
        handles[at].flush()
        flushed.extend(appended[at])
        appended[at].clear()

    for _ in range(150):
        at = rng.randrange(len(handles))
        match rng.choice(("append", "append", "flush", "open", "close", "register", "mark", "check")):
            case "append":
                some = list(islice(waiting, rng.randrange(8)))
                put(handles[at], some, chosen(handles[at]))
                appended[at] += some
            case "flush":
                flush(at)
            case "open" if len(handles) < 4:
                handles.append(owned.file())
                appended.append([])
            case "close":
                flush(at)
                handles.pop(at).close()
                appended.pop(at)
                if not handles:
                    handles, appended = [owned.file()], [[]]
            case "register" if (definition := next(versions_left, None)) is not None:
                handles[at].register(definition)
                flush(at)
            case "mark":
                names.append(f"m{len(names)}")
                handles[at].mark(Marked(names[-1], cut_text(handles[at]), len(names)), replace=False)
            case "check":
                flush(at)
                handles[at].refresh()
                stored = {each.id for each in records_of(handles[at])}
                allowed = [*flushed, *(each for some in appended for each in some)]
                assert {identify(each) for each in flushed} <= stored <= {identify(each) for each in allowed}
                assert [each.name for each in handles[at].markers()] == names
    for at in range(len(handles)):
        flush(at)
    handles[0].refresh()
    if flushed:
        order = {identify(each): each for each in flushed}
        assert_folded(handles[0], [order[each.id] for each in records_of(handles[0])], chosen(handles[0]))
    for handle in handles:
        handle.close()


def chosen(log: LogPort) -> TypeDefinition:
    """The newest version that a handle knows."""
    known = log.registry.versions(THING.name)
    return known[-1].definition if known else THING


def test_still_is_the_log_at_that_moment(opened: FileOpened) -> None:
    with opened() as (log, _), contextlib.closing(opened.file()) as other:
        put(log, [said(A, 0)])
        with log.frozen() as still:
            put(other, [said(A, 1)])
            other.flush()
            assert sum(still.ends().values()) == 1
            assert_folded(still, [said(A, 0)])
        log.refresh()
        assert_folded(log, [said(A, 0), said(A, 1)])
