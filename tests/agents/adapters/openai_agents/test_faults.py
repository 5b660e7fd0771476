"""Traces while the log is away or refuses, and of processes that are killed: the agent never notices."""

from __future__ import annotations

import itertools
import json
import logging
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import agents
import pytest

import refold
from refold.agents.adapters.openai_agents.processor import QUEUE_BYTES_MAX
from refold.agents.adapters.openai_agents.trace_runs import GAP
from refold.agents.adapters.openai_agents.trace_writer import TraceWriter
from refold.agents.journal.chain import broken
from refold.agents.log import AgentLog
from refold.avro.errors import StorageError, ValidationError
from refold.errors import InputError
from refold.openai_agents import RefoldTracingProcessor
from refold_tests.brokers import SharedKafka
from refold_tests.child import Child
from refold_tests.sdk_agents import processing

pytestmark = pytest.mark.outside

LINES_MAX = 8
APPENDS = 10

# Traces, each of three turns, into the log at argv[1]; prints what is durable.
TRACING = """
import itertools, sys
import agents
from refold.avro.errors import StorageError, ValidationError
from refold.openai_agents import RefoldTracingProcessor

processor = RefoldTracingProcessor(sys.argv[1])
agents.set_trace_processors([processor])
first = int(sys.argv[2])
for number in itertools.count(first):
    with agents.trace("t", trace_id=f"trace_{number}"), agents.agent_span("desk"):
        for turn in range(1, 4):
            with agents.turn_span(turn, "desk"):
                with agents.generation_span(input=[{"turn": turn}], output=[{"content": "x"}], model="m"):
                    pass
                with agents.function_span("look", '{"turn": %d}' % turn, output="y" * 200):
                    pass
            if turn == 2:
                processor.force_flush()
                print([number, 2], flush=True)
    processor.force_flush()
    print([number, 3], flush=True)
"""


def one_trace(name: str, *, turns: int = 1, output: Any = "seen") -> None:
    """Make a trace of one agent, by the SDK's own spans."""
    with agents.trace("t", trace_id=name), agents.agent_span("desk"):
        for turn in range(turns):
            with agents.turn_span(turn + 1, "desk"), agents.function_span("look", "{}", output=output):
                pass


def check(url: str, durable: list[tuple[int, int]]) -> int:
    """Check that everything durable is there, and every run is whole or open. Return how many runs there are."""
    with refold.open(url) as log:
        found = {row.run: log.recording(row.run) for row in log.runs()}
        for number, turns in durable:
            run = found[f"trace_{number}"]
            assert len(run.steps) >= turns
            assert turns == 2 or run.outcome == "succeeded"
        for run in found.values():
            assert [*broken(run)] == []
            assert [step.number for step in run.steps] == [*range(1, len(run.steps) + 1)]
            assert run.outcome == ("succeeded" if run.status == "ended" else "")
            assert [step.calls[0].asked.request["kwargs"]["input"] for step in run.steps if step.is_committed] == [
                [{"turn": n}] for n, step in enumerate(run.steps, 1) if step.is_committed
            ]
        assert log.verify().mismatches == []
        return len(found)


@pytest.mark.faults
def test_killed_process_keeps_its_flushed_traces(
    tmp_path: Path, child: Callable[..., Child], fault_rounds: int, seed: int
) -> None:
    url, chance = f"file:{tmp_path / 'log'}", random.Random(seed)
    durable: list[tuple[int, int]] = []
    for index in range(max(1, fault_rounds // 3)):
        process = child(TRACING, url, index * 1000)
        said = [process.line() for _ in range(chance.randrange(1, LINES_MAX))]
        process.process.kill()
        assert process.process.stdout is not None
        said += process.process.stdout.read().splitlines()
        process.end()
        durable += [(number, turns) for number, turns in map(json.loads, filter(lambda each: each[-1:] == "]", said))]
        check(url, durable)


@pytest.mark.parametrize("url", ["refold-log", "file:", "kafka://127.0.0.1"], ids=["no scheme", "no path", "no prefix"])
def test_url_that_no_log_can_have_is_refused_at_once(url: str) -> None:
    with pytest.raises(InputError, match=r"; give (file:PATH|the prefix of its topics), such as"):
        RefoldTracingProcessor(url)


def test_log_that_cannot_be_opened_yet_is_retried(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "folder"
    folder.write_text("no folder")
    processor = RefoldTracingProcessor(f"file:{folder / 'log'}")
    with processing(processor), caplog.at_level(logging.WARNING, "refold.openai_agents"):
        one_trace("trace_early", turns=3)
        while "held in memory" not in caplog.text:
            time.sleep(0.01)
        folder.unlink()
        one_trace("trace_later")
        processor.force_flush()
    processor.shutdown(60)
    assert caplog.text.count("held in memory") == 1
    assert "recorded again" in caplog.text
    with refold.open(f"file:{folder / 'log'}") as log:
        assert [row.run for row in log.runs()] == ["trace_later", "trace_early"]
        assert len(log.recording("trace_early").steps) == 3


def retrying(log: AgentLog) -> RefoldTracingProcessor:
    """Return a processor that repeats a failed write at once."""
    found = RefoldTracingProcessor(log)
    found._writer = TraceWriter(log, None, QUEUE_BYTES_MAX, retry_s=0.001)
    return found


@pytest.mark.parametrize("is_appended", [False, True], ids=["refused", "no answer"])
def test_any_failing_append_is_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault_rounds: int, seed: int, is_appended: bool
) -> None:
    """A trace of two turns is ten observations. Each of them fails once, before or after the log took it."""
    with refold.open(f"file:{tmp_path / 'log'}") as log:
        append = log.port.append
        for fails_at in random.Random(seed).sample(range(1, APPENDS + 1), min(APPENDS, fault_rounds)):
            count = itertools.count(1)

            def failing(*given: Any, count: Any = count, fails_at: int = fails_at) -> None:
                fails = next(count) == fails_at
                if is_appended or not fails:
                    append(*given)
                if fails:
                    raise StorageError("the log is away")

            monkeypatch.setattr(log.port, "append", failing)
            processor = retrying(log)
            with processing(processor):
                one_trace(f"trace_{fails_at}", turns=2)
                processor.force_flush()
            processor.shutdown(60)
            assert next(count) > fails_at
            run = log.recording(f"trace_{fails_at}")
            assert (run.outcome, len(run.steps)) == ("succeeded", 2)
            assert [*broken(run)] == []
            assert {log.state(f"action/{run.run}#{n}.1").fields["status"] for n in (1, 2)} == {"succeeded"}


def test_refused_step_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with refold.open(f"file:{tmp_path / 'log'}") as log, caplog.at_level(logging.WARNING, "refold.openai_agents"):
        append = log.port.append

        def refusing(*given: Any) -> None:
            if b"second" in given[0].data:
                raise ValidationError("inputs", "anything else", "second")
            append(*given)

        monkeypatch.setattr(log.port, "append", refusing)
        processor = retrying(log)
        with processing(processor):
            with agents.trace("t", trace_id="trace_refused"), agents.agent_span("desk"):
                for given in ("first", "second", "third"):
                    with agents.turn_span(1, "desk"), agents.function_span(given, "{}", output=given):
                        pass
            one_trace("trace_next")
            processor.force_flush()
        processor.shutdown(60)
        run = log.recording("trace_refused")
        assert [step.calls[0].asked.name for step in run.steps] == ["first", "third"]
        assert run.failure is not None
        assert (run.outcome, run.failure.exception) == ("failed", GAP)
        assert [*broken(run)] == []
        assert log.recording("trace_next").outcome == "succeeded"
    assert caplog.text.count("the log refuses it") == 1


def test_unavailable_log_does_not_stop_the_program(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "folder").write_text("no folder")
    processor = RefoldTracingProcessor(f"file:{tmp_path / 'folder' / 'log'}")
    with processing(processor), caplog.at_level(logging.WARNING, "refold.openai_agents"):
        one_trace("trace_lost")
        processor.shutdown(0.01)
        one_trace("trace_after")
        processor.force_flush()
    assert "lost" in caplog.text, "by the thread, or by the caller if the thread was slower"


def test_overflow_is_dropped_and_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "folder"
    folder.write_text("no folder")
    processor = RefoldTracingProcessor(f"file:{folder / 'log'}", queue_bytes_max=10_000)
    with processing(processor), caplog.at_level(logging.WARNING, "refold.openai_agents"):
        one_trace("trace_much", turns=5, output="z" * 4_000)
        folder.unlink()
        processor.force_flush()
        one_trace("trace_next")
        processor.force_flush()
    processor.shutdown(60)
    assert caplog.text.count("the content of others is lost") == 1
    with refold.open(f"file:{folder / 'log'}") as log:
        run = log.recording("trace_much")
        assert run.outcome == "failed"
        assert run.failure is not None
        assert run.failure.exception == GAP
        assert len(run.steps) == 5, "that there were turns is known"
        assert log.recording("trace_next").outcome == "succeeded"


def test_trace_id_reused_by_another_process_gets_its_own_run(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'log'}"
    for _ in range(3):
        processor = RefoldTracingProcessor(url)
        with processing(processor):
            one_trace("trace/1#%")
        processor.shutdown(60)
    with refold.open(url) as log:
        assert sorted(row.run for row in log.runs()) == ["trace/1%23%25", "trace/1%23%25.2", "trace/1%23%25.3"]


def test_forked_process_records_nothing(tmp_path: Path) -> None:
    with refold.open(f"file:{tmp_path / 'log'}") as log:
        processor = RefoldTracingProcessor(log)
        with processing(processor):
            one_trace("trace_parent")
            processor.force_flush()
            child = os.fork()
            if child == 0:
                one_trace("trace_child")
                processor.force_flush()
                processor.shutdown()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            one_trace("trace_parent_2")
        processor.shutdown(60)
        assert {row.run for row in log.runs()} == {"trace_parent", "trace_parent_2"}


def test_open_trace_is_recorded_as_unknown_at_shutdown(tmp_path: Path) -> None:
    with refold.open(f"file:{tmp_path / 'log'}") as log:
        processor = RefoldTracingProcessor(log)
        with processing(processor):
            trace = agents.trace("open", trace_id="trace_open")
            trace.start()
            span = agents.agent_span("desk", parent=trace)
            span.start()
            inner = agents.function_span("look", "{}", parent=span)
            inner.start()
            inner.finish()
            processor.shutdown(60)
        run = log.recording("trace_open")
        assert (run.outcome, len(run.steps)) == ("unknown", 1)


# Owns the log at argv[1] until it is killed.
OWNING = """
import sys
import refold

with refold.open(sys.argv[1]) as log:
    log.observe("tool_config/a", {"rate_limit": 1})
    print("owns it", flush=True)
    sys.stdin.read()
"""


@pytest.mark.faults
def test_log_whose_owner_is_killed_gets_every_trace(
    tmp_path: Path, child: Callable[..., Child], fault_rounds: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The process that owns the log is killed while traces are written. Nothing is lost, and nothing is there twice."""
    url, names = f"file:{tmp_path / 'log'}", [f"trace_{number}" for number in range(10 * fault_rounds)]
    owner = child(OWNING, url)
    assert owner.line() == "owns it"
    processor = RefoldTracingProcessor(url)
    with processing(processor):
        for number, name in enumerate(names):
            one_trace(name, turns=2)
            if number == len(names) // 2:
                processor.force_flush()
            elif number == len(names) // 2 + 3:
                owner.process.kill()
        processor.force_flush()
        processor.shutdown(60)
    owner.end()
    assert "lost" not in caplog.text
    with refold.open(url) as log:
        runs = [log.recording(row.run) for row in log.runs()]
        assert sorted(run.run for run in runs) == sorted(names)
        assert {(run.outcome, len(run.steps)) for run in runs} == {("succeeded", 2)}
        assert not any(fault for run in runs for fault in broken(run))
        assert log.verify().mismatches == []


@pytest.mark.faults
def test_trace_is_recorded_on_kafka(kafka: SharedKafka, prefix: str) -> None:
    url = f"kafka://{kafka.bootstrap}/{prefix}?partitions=2"
    processor = RefoldTracingProcessor(url)
    with processing(processor):
        one_trace("trace_kafka", turns=3)
        processor.force_flush()
    processor.shutdown(60)
    with refold.open(url) as log:
        run = log.recording("trace_kafka")
        assert (run.outcome, len(run.steps)) == ("succeeded", 3)
        assert [*broken(run)] == []
