"""RefoldSaver passes LangGraph's own conformance suite for checkpointers, all of it, on both kinds of log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import ALL_CAPABILITIES

from refold.langgraph import RefoldSaver
from refold_tests.brokers import SharedKafka

pytestmark = pytest.mark.outside

# As many as langgraph-checkpoint-conformance 0.0.2 has: a suite that finds fewer tests something else.
TESTS = 81


def conforms(url: str) -> None:
    @checkpointer_test(name="RefoldSaver")
    async def saver() -> AsyncGenerator[BaseCheckpointSaver[int], None]:
        async with RefoldSaver(url) as opened:
            yield opened

    report = asyncio.run(validate(saver))
    failures = [failure for each in report.results.values() for failure in each.failures]
    assert not failures, "\n".join(failures)
    assert {name for name, each in report.results.items() if each.passed} == {each.value for each in ALL_CAPABILITIES}
    assert sum(each.tests_skipped for each in report.results.values()) == 0
    assert sum(each.tests_passed for each in report.results.values()) >= TESTS


def test_it_conforms_on_a_file_log(tmp_path: Path) -> None:
    conforms(f"file:{tmp_path / 'log'}")


@pytest.mark.timeout(600)
def test_it_conforms_on_kafka(kafka: SharedKafka, prefix: str) -> None:
    """Without a worker: the log itself answers."""
    conforms(f"kafka://{kafka.bootstrap}/{prefix}?partitions=2")
