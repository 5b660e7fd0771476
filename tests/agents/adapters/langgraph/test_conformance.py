"""RefoldSaver passes LangGraph's own conformance suite for checkpointers, all of it, on both kinds of log."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, Checkpoint, empty_checkpoint
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import ALL_CAPABILITIES

from refold.langgraph import RefoldSaver
from refold_tests.brokers import SharedKafka

pytestmark = pytest.mark.outside

# The number of tests in langgraph-checkpoint-conformance 0.0.2. If a suite runs fewer tests, it found another saver.
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


def test_saver_conforms_on_a_file_log(tmp_path: Path) -> None:
    conforms(f"file:{tmp_path / 'log'}")


@pytest.mark.timeout(600)
def test_saver_conforms_on_kafka(kafka: SharedKafka, prefix: str) -> None:
    """Without a worker, the log itself answers. A value larger than a Kafka record is stored as a content."""
    url = f"kafka://{kafka.bootstrap}/{prefix}?partitions=2"
    conforms(url)
    config: RunnableConfig = {"configurable": {"thread_id": "large", "checkpoint_ns": ""}}
    values = {"text": "x" * 3_000_000, "bytes": os.urandom(300_000)}
    checkpoint: Checkpoint = {**empty_checkpoint(), "channel_values": values}
    with RefoldSaver(url) as saver:
        head = saver.put(config, checkpoint, {"source": "input", "step": -1}, {})
        saver.put_writes(head, [("text", values["text"])], "task")
    with RefoldSaver(url) as saver:
        found = saver.get_tuple(config)
        assert found is not None
        assert found.checkpoint["channel_values"] == values
        assert found.pending_writes == [("task", "text", values["text"])]
