"""A definition takes effect completely, after a kill at any moment and with concurrent registrations."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest

from refold.avro.errors import StorageError
from refold.streams.log.file.log import FileLog
from refold.streams.log.file.owner import Owner
from refold.streams.point import Points
from refold.streams.verify.run import verify
from refold_tests.child import Child
from refold_tests.file_logs import FileOpened, assert_verified
from refold_tests.log_handles import assert_chain, changes_of, put, written
from refold_tests.sample_types import HOLDING, OTHER, THING, A, said

REGISTERING = """
import sys, uuid
from pathlib import Path
from refold.streams.log.file.log import FileLog
from refold_tests.clock import FileClock
from refold_tests.sample_types import HOLDING

log = FileLog(Path(sys.argv[1]), clock_ms=FileClock(Path(sys.argv[2])), new_id=lambda: uuid.uuid4().bytes)
log.register(HOLDING)
"""


@pytest.mark.parametrize("folded_again", [0, 1, 499, 700, 1_199])
def test_activation_interrupted_by_a_kill_is_completed_on_opening(
    owned: FileOpened, child: Callable[..., Child], monkeypatch: pytest.MonkeyPatch, folded_again: int
) -> None:
    entities = 1_200
    observations = [
        said(f"{A}{number}", number + entities * more, start="xy"[more])
        for more in (0, 1)
        for number in range(entities)
    ]
    observations.append(said(A, 9_999, last=2))  # nothing of the changed field: its hash stays
    with owned() as handles:
        written(handles, observations)
    # One call for each "x" and "y" to see that they can be folded, then as many as they are folded again.
    monkeypatch.setenv("REFOLD_HOLD_AT", str(2 * entities + 2 * folded_again + 1))
    registering = child(REGISTERING, owned.path, owned.clock.path)
    assert registering.line() == "holding"
    registering.kill()
    monkeypatch.delenv("REFOLD_HOLD_AT")
    with monkeypatch.context() as without:
        without.delattr("refold_tests.sample_types.holding")
        with pytest.raises(StorageError, match=r"a definition cannot be applied: .*put its module on PYTHONPATH"):
            owned.file()
    reader = FileLog(owned.path, clock_ms=owned.clock, new_id=bytes, read_only=True, owner_timeout_s=0.1)
    with contextlib.closing(reader), reader.frozen() as still:
        problems = [each.problem for each in verify(still, Points(still, 0).end()).mismatches]
        assert any("open the log to write, then verify" in each for each in problems)
    with owned() as (log, _):
        assert [each.definition.fingerprint for each in log.registry] == [each.fingerprint for each in (THING, HOLDING)]
        chains = changes_of(log)
        assert chains.keys() == {each.entity for each in observations}
        for name, chain in chains.items():
            assert_chain(chain)
            assert [each.redefined for each in chain].count(True) == (name != A)
        assert_verified(log)


def test_activation_is_noted_only_when_there_is_something_to_fold(
    owned: FileOpened, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise InterruptedError

    with owned() as (log, _):
        put(log, [said(A, 0)])
        log.flush()
        with monkeypatch.context() as interrupting:
            interrupting.setattr(Owner, "_redefine", interrupt)
            log.register(OTHER)
            with contextlib.closing(owned.file(read_only=True)) as reader:
                assert verify(reader, Points(reader, 0).end()).mismatches == []
            with pytest.raises(InterruptedError):
                log.register(HOLDING)
            with contextlib.closing(owned.file(read_only=True)) as reader:
                problems = [each.problem for each in verify(reader, Points(reader, 0).end()).mismatches]
                assert any("verify" in each for each in problems)
        assert_verified(log)


def test_other_processes_register_while_the_owner_reads(owned: FileOpened, child: Callable[..., Child]) -> None:
    code = REGISTERING.replace("log.register(HOLDING)", "print('open', flush=True)") + (
        "from refold_tests.sample_types import defined, document\n"
        "for number in range(60):\n"
        "    log.register(defined(document(f'{sys.argv[3]}{number}')))\n"
        "log.close()\n"
    )
    with owned() as (log, _):
        registering = [child(code, owned.path, owned.clock.path, name) for name in ("p", "q")]
        assert [each.line() for each in registering] == ["open", "open"]
        while any(each.process.poll() is None for each in registering):
            log.refresh()
            put(log, [said(A, len(log.registry))])
            log.flush()
        assert [each.end() for each in registering] == [0, 0]
        assert [each.offset for each in log.registry] == list(range(121))
        expected = [each.definition.fingerprint for each in log.registry]
        assert len(set(expected)) == 121
    with owned() as (log, _):
        assert [each.definition.fingerprint for each in log.registry] == expected
        assert_verified(log)
