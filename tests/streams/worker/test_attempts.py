"""A worker whose transactions are always refused ends with the reason; it waits for the end of an outage."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import KafkaError

from refold.streams.log.kafka.log import KafkaLog
from refold.streams.worker.emission import REFUSALS_MAX, REFUSED_FOR_S, RefusalCount
from refold_tests.child import Child
from refold_tests.folding import REFUSED, append, await_folded, check_whole, drain, fold_all, history, worker

TRANSACTION_ABORTABLE = 120
"""A code without a name in confluent-kafka."""

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]


def test_refusals_end_after_a_count_and_a_time() -> None:
    now_s = 1_000.0
    found = RefusalCount(lambda: now_s)
    now_s += 10 * REFUSED_FOR_S
    for _ in range(REFUSALS_MAX):
        assert not found.is_over_limit
        found.refused()
    assert (found.times, found.seconds, found.is_over_limit) == (REFUSALS_MAX, 0.0, False)  # within a moment
    now_s += REFUSED_FOR_S
    assert found.is_over_limit


def test_few_refusals_never_end_it() -> None:
    now_s = 0.0
    found = RefusalCount(lambda: now_s)
    for _ in range(REFUSALS_MAX - 1):
        found.refused()
        now_s += REFUSED_FOR_S
        assert not found.is_over_limit
    found.refused()
    assert found.is_over_limit


def test_refusals_before_a_commit_or_an_outage_do_not_count() -> None:
    now_s = 0.0
    found = RefusalCount(lambda: now_s)
    for _ in range(3):
        for _ in range(REFUSALS_MAX - 1):
            found.refused()
            now_s += REFUSED_FOR_S
        found.reset()
        assert (found.times, found.seconds) == (0, 0.0)
    found.refused()
    now_s += 2.0
    assert found.seconds == 2.0
    assert not found.is_over_limit


# Whenever its fold begins a transaction, another producer begins one with the same id.
FENCED = """
from refold.streams.log.kafka import clients
from refold.streams.worker import emission

emission.REFUSALS_MAX, emission.REFUSED_FOR_S = 5, 3.0
class Fenced(clients.Producer):
    def __init__(self, settings, **more):
        super().__init__(settings, **more)
        self.own = {name: settings.get(name) for name in ("bootstrap.servers", "transactional.id")}

    def begin_transaction(self):
        super().begin_transaction()
        if self.own["transactional.id"].endswith(".fold.w"):
            Producer(self.own).init_transactions(30)

Producer, clients.Producer = clients.Producer, Fenced
"""


def test_worker_fenced_for_good_ends_and_says_so(
    log: KafkaLog, tmp_path: Path, child: Callable[..., Child], seed: int
) -> None:
    print(f"seed {seed}")
    acknowledged = append(log, history(random.Random(seed), 40))
    running = worker(child, log.url, tmp_path, before=FENCED)
    said = running.line()
    assert running.end() == REFUSED, said
    assert f"the worker's transactions ({log.topics.group}.fold.w) were refused" in said
    assert "another process uses this transactional id" in said
    again = worker(child, log.url, tmp_path)
    await_folded(log, again)
    drain(again)
    check_whole(log, tmp_path, acknowledged)


# Some calls of its fold's producer raise an error that is in no list of transient errors.
UNHEARD_OF = """
from confluent_kafka import KafkaError, KafkaException
from refold.streams.log.kafka import clients

class Refused(clients.Producer):
    left = {times}

    def {method}(self, *given, **named):
        found = super().{method}(*given, **named) if {is_done} else None
        if Refused.left and {of_the_fold}:
            Refused.left -= 1
            raise KafkaException(KafkaError({code}, "as a broker that stops may say"))
        return found if {is_done} else super().{method}(*given, **named)

    def __init__(self, settings, **more):
        super().__init__(settings, **more)
        self.id = settings.get("transactional.id", "")

clients.Producer = Refused
"""


@pytest.mark.parametrize(
    ("method", "is_done", "code"),
    [("init_transactions", False, KafkaError.UNKNOWN), ("begin_transaction", False, KafkaError.UNKNOWN),
     ("send_offsets_to_transaction", False, KafkaError.UNKNOWN), ("commit_transaction", False, TRANSACTION_ABORTABLE),
     ("commit_transaction", True, KafkaError.UNKNOWN)],
)  # fmt: skip
def test_unknown_error_is_retried(
    log: KafkaLog, tmp_path: Path, child: Callable[..., Child], seed: int, method: str, is_done: bool, code: int
) -> None:
    print(f"seed {seed}")
    acknowledged = append(log, history(random.Random(seed), 40))
    refused = UNHEARD_OF.format(
        times=3, method=method, is_done=is_done, code=code, of_the_fold="self.id.endswith('.fold.w')"
    )
    running = worker(child, log.url, tmp_path, before=refused)
    await_folded(log, running)
    drain(running)
    # Its tables may lag a commit whose response was lost.
    fold_all(log, tmp_path)
    check_whole(log, tmp_path, acknowledged)
