"""`refold receive` on Kafka: an answer says that the brokers have the spans."""

from __future__ import annotations

import http.client
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import refold
from refold_tests.brokers import SharedKafka
from refold_tests.otlp_receiving import OK, WAIT_S, Receiving, post, request, span

pytestmark = [pytest.mark.outside, pytest.mark.faults]

SENDERS, ENOUGH = 4, 40


def test_kill_after_the_answer_loses_nothing_on_kafka(kafka: SharedKafka, prefix: str) -> None:
    url = f"kafka://{kafka.bootstrap}/{prefix}"
    with refold.open(f"{url}?partitions=2"):
        pass  # the topics are there
    receiving, enough = Receiving(url), threading.Event()
    count, acknowledged = iter(range(1, 1 << 30)), set[int]()

    def send() -> None:
        while True:
            number = next(count)
            try:
                answer = post(receiving.url, request(span(number % 3 + 1, number)))
            except (OSError, http.client.HTTPException):
                return  # killed
            assert answer == OK
            acknowledged.add(number)
            if len(acknowledged) >= ENOUGH:
                enough.set()

    with ThreadPoolExecutor(SENDERS) as pool:
        senders = [pool.submit(send) for _ in range(SENDERS)]
        assert enough.wait(WAIT_S)
        receiving.kill()
        for each in senders:
            each.result(WAIT_S)
    with refold.open(url) as log:
        view = log.rebuild()
        missing = [each for each in acknowledged if f"step/{each % 3 + 1:032x}#{each:016x}" not in view]
        assert not missing
        assert log.verify().ok
