"""Runs that ended are at the receiver as whole traces, over both protocols; and again when they continued."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

import refold
from refold.agents import otel
from refold.agents.journal.record import Attempt, Recording, Step
from refold.agents.vault import run_key
from refold.sinks.feed import Feed
from refold.sinks.otlp.sink import BYTES_MAX, SPANS_MAX, OtlpSink
from refold.sinks.port import Batch, SinkBusy, SinkRefused
from refold.sinks.run import keep_up
from refold_tests.otlp_receiver import Receiver
from refold_tests.otlp_traces import expected, held, send, sending, told_twice
from refold_tests.recorded_runs import call, chained, forked, random_run, write
from refold_tests.sink_logs import SinkLog

SCHEMES = ["http", "grpc"]


def with_calls(name: str, count: int, text: str = "") -> Recording:
    """A run of one step with so many calls."""
    calls = tuple(call("orders.get", {"n": number}, given={"text": text}, started_at=number) for number in range(count))
    step = Step(number=1, name="all", attempts=(Attempt(calls=calls, started_at=1, ended_at=2),), outcome="succeeded")
    return chained(Recording(run=name, agent="desk", steps=(step,), status="ended", outcome="succeeded", state={},
                             started_at=1, ended_at=count + 9))  # fmt: skip


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_ended_run_is_sent_once_and_whole(
    scheme: str, runs: refold.AgentLog, receiver: Receiver, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    made = [random_run(rng, f"r-{number}", rng.randrange(4)) for number in range(6)]
    made.append(forked(made[0], "r-child", min(1, len(made[0].steps))))
    for each in [*made, random_run(rng, "r-open", 2, ended=False)]:
        write(runs, each, runs.vault)
    runs.observe("document/d", {"fields": {"a": 1}}, source="one")
    report = send(runs, receiver.url(scheme), tmp_path / "position")
    ended = [each.run for each in made]
    assert held(receiver) == expected(runs, ended)
    assert len(receiver.spans) == len(held(receiver)), "a span came twice"
    before = len(receiver.requests)
    assert send(runs, receiver.url(scheme), tmp_path / "position").position == report.position
    assert len(receiver.requests) == before, "what was sent is sent again"


def test_environment_variables_of_the_sdk_are_respected(
    runs: refold.AgentLog, receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(runs, with_calls("r-1", 1))
    receiver.mood(token="Bearer open-sesame")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20open-sesame")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=staging")
    send(runs, receiver.url("http"), tmp_path / "one")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "desk-agents")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    send(runs, receiver.url("grpc"), tmp_path / "two")
    of_agent, of_service = (
        {each.key: each.value.string_value for each in request.resource_spans[0].resource.attributes}
        for request in receiver.requests
    )
    assert (of_agent["service.name"], of_service["service.name"]) == ("desk", "desk-agents")
    assert of_agent["deployment.environment.name"] == "staging"


def test_nested_run_links_to_the_step_that_started_it(
    runs: refold.AgentLog, receiver: Receiver, tmp_path: Path
) -> None:
    def outer(run: refold.Run) -> None:
        with run.step("first"):
            pass
        with run.step("delegate"), run.child("clerk") as child, child.step("works"):
            pass

    runs.run("desk", id="r-1").drive(outer)
    send(runs, receiver.url("http"), tmp_path / "position")
    (clerk,) = (row.run for row in runs.runs(agent="clerk"))
    assert held(receiver) == expected(runs, ["r-1", clerk])
    (step,) = (each for each in receiver.spans if each.name == "delegate")
    (root,) = (each for each in receiver.spans if each.name == "invoke_agent clerk")
    (link,) = root.links
    assert (link.trace_id, link.span_id) == (step.trace_id, step.span_id)
    assert root.trace_id != step.trace_id
    (event,) = step.events
    assert event.name == "refold.run"
    assert {each.key: each.value.string_value for each in event.attributes} == {
        "gen_ai.agent.name": "clerk", "refold.run": clerk,
    }  # fmt: skip


def test_no_text_is_sent_without_content(runs: refold.AgentLog, receiver: Receiver, tmp_path: Path) -> None:
    write(runs, with_calls("r-1", 3, text="marta@example.org"), runs.vault)
    send(runs, receiver.url("http"), tmp_path / "position", "content=no", "system=openai")
    assert held(receiver) == expected(runs, ["r-1"], content=False)
    assert b"marta" not in b"".join(each.SerializeToString() for each in receiver.requests)


def test_resumed_run_is_sent_again_under_its_ids(runs: refold.AgentLog, receiver: Receiver, tmp_path: Path) -> None:
    @refold.tool
    def look(n: int) -> int:
        return n

    def first_step(run: refold.Run) -> None:
        with run.step("one"):
            look(1)

    def fails(run: refold.Run) -> None:
        first_step(run)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), runs.run("desk", id="r-1") as run:
        fails(run)
    send(runs, receiver.url("http"), tmp_path / "position")
    first = held(receiver)
    assert first == expected(runs, ["r-1"])
    with runs.run("desk", resume="r-1") as run:
        first_step(run)
        with run.step("two"):
            look(2)
        # While it continues it is not sent.
        before = len(receiver.requests)
        send(runs, receiver.url("http"), tmp_path / "position")
        assert len(receiver.requests) == before
    send(runs, receiver.url("http"), tmp_path / "position")
    assert held(receiver) == expected(runs, ["r-1"])
    assert first.keys() < held(receiver).keys()
    assert told_twice(receiver).keys() <= first.keys()


def test_step_after_its_runs_end_is_reported(runs: refold.AgentLog, receiver: Receiver, tmp_path: Path) -> None:
    run = random_run(random.Random(7), "r-1", 2)
    write(runs, msgspec.structs.replace(run, steps=run.steps[:1]))
    runs.observe("run/r-1", {"step_count": 2}, source="late")
    send(runs, receiver.url("http"), tmp_path / "position")
    assert held(receiver) == {}
    write(runs, run)
    send(runs, receiver.url("http"), tmp_path / "position")
    assert held(receiver) == expected(runs, ["r-1"])


@pytest.mark.parametrize("scheme", SCHEMES)
def test_requests_are_bounded_and_split_when_too_large(
    scheme: str, runs: refold.AgentLog, receiver: Receiver, tmp_path: Path
) -> None:
    write(runs, with_calls("r-1", SPANS_MAX + 100))
    send(runs, receiver.url(scheme), tmp_path / "one")
    sizes = [sum(len(scope.spans) for each in one.resource_spans for scope in each.scope_spans)
             for one in receiver.requests]  # fmt: skip
    assert sizes == [SPANS_MAX, 102]
    assert max(each.ByteSize() for each in receiver.requests) <= BYTES_MAX
    receiver.mood(bytes_max=30_000)
    send(runs, receiver.url(scheme), tmp_path / "two")
    assert max(each.ByteSize() for each in receiver.requests[2:]) <= 30_000
    assert len(receiver.spans) == 2 * (SPANS_MAX + 102)
    assert held(receiver) == expected(runs, ["r-1"])
    assert told_twice(receiver) == {}
    receiver.mood(bytes_max=50)
    with pytest.raises(SinkRefused, match="one span is larger than it takes"):
        send(runs, receiver.url(scheme), tmp_path / "three")


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("status", [429, 503])
def test_busy_receiver_is_awaited_as_long_as_it_asks(
    scheme: str, status: int, runs: refold.AgentLog, receiver: Receiver, tmp_path: Path
) -> None:
    write(runs, with_calls("r-1", 1))
    receiver.mood(status=status, retry_after=7, said="busy, come later")
    with sending(receiver.url(scheme), tmp_path / "position") as sink:
        sink.attach(runs.port)
        position = sink.position()
        assert position is not None
        batch = Feed(runs.port, sink.stored, history=False).next(position)
        assert isinstance(batch, Batch)
        with pytest.raises(SinkBusy, match=r"takes nothing now.*busy, come later") as busy:
            sink.write(batch)
        assert busy.value.retry_after_s == 7
        assert sink.position() == batch.before
        receiver.mood()
        sink.write(batch)
        assert sink.position() == batch.cut
    assert held(receiver) == expected(runs, ["r-1"])


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    ("status", "do"), [(401, "OTEL_EXPORTER_OTLP_HEADERS"), (403, "allowed to write"), (400, "OTLP receiver"),
                       (500, "its own log says more")],
)  # fmt: skip
def test_permanent_failure_is_refused_with_a_remedy(
    scheme: str, status: int, do: str, runs: refold.AgentLog, receiver: Receiver, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    write(runs, with_calls("r-1", 1))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20open-sesame")
    receiver.mood(status=status, said="no: Bearer open-sesame\x1b[31m")
    with sending(receiver.url(scheme), tmp_path / "position") as sink:
        with pytest.raises(SinkRefused) as refused:
            keep_up(runs.port, sink, follow=True, stop=threading.Event())
        assert isinstance(sink, OtlpSink)
        assert "sesame" not in f"{sink!r}{vars(sink)}{sink._sender._wire!r}"
    said = str(refused.value)
    assert do in said
    assert "***" in said
    assert "sesame" not in said
    assert "\x1b" not in said


def test_credentials_go_only_to_the_receiver(runs: refold.AgentLog, receiver: Receiver, tmp_path: Path) -> None:
    write(runs, with_calls("r-1", 1))
    receiver.mood(status=307)
    with pytest.raises(SinkRefused, match=r"307.*the address that it leads to"):
        send(runs, receiver.url("http"), tmp_path / "position")


def test_partial_success_is_no_success(
    runs: refold.AgentLog, receiver: Receiver, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(runs, with_calls("r-1", 1))
    receiver.mood(rejected=2, said="names too long")
    with pytest.raises(SinkRefused, match=r"run r-1.*2 of its spans: names too long.*rejected=skip"):
        send(runs, receiver.url("http"), tmp_path / "position")
    send(runs, receiver.url("grpc"), tmp_path / "position", "rejected=skip")
    assert "names too long" in caplog.text
    receiver.mood(said="deprecated")
    send(runs, receiver.url("grpc"), tmp_path / "two")
    assert "deprecated" in caplog.text
    assert [otel.trace_id_of("r-1")] == [*{int.from_bytes(each.trace_id, "big") for each in receiver.spans}]


def test_command_sends_and_reports_its_position(runs: refold.AgentLog, receiver: Receiver, tmp_path: Path) -> None:
    write(runs, with_calls("r-1", 2), runs.vault)
    command = [sys.executable, "-m", "refold.explorer.cli.main", "sink", "otlp", "--once", "--log", runs.port.url]
    done = subprocess.run(
        [*command, "--to", receiver.url("grpc")], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert str(runs.point().cut) in done.stdout
    assert held(receiver) == expected(runs, ["r-1"])
    assert len([*(tmp_path / ".refold-otlp").glob("*.json")]) == 1
    receiver.mood(status=401)
    write(runs, with_calls("r-2", 2), runs.vault)
    done = subprocess.run(
        [*command, "--to", receiver.url("grpc")], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2
    assert "OTEL_EXPORTER_OTLP_HEADERS" in done.stderr
    assert "Traceback" not in done.stderr


def test_runs_of_a_log_on_kafka(kafka_log: SinkLog, receiver: Receiver, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    ended = [random_run(rng, f"r-{number}", 3) for number in range(4)]
    with refold.open(kafka_log.url) as runs:
        for each in [*ended, random_run(rng, "r-open", 2, ended=False)]:
            write(runs, each, runs.vault)
        kafka_log.await_folded()
        send(runs, receiver.url("grpc"), tmp_path / "position", changes_max=4)
        assert held(receiver) == expected(runs, [each.run for each in ended])
        assert told_twice(receiver) == {}


def test_run_with_expired_content_is_skipped(
    runs: refold.AgentLog, receiver: Receiver, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(2):
        write(runs, with_calls(f"r-{number}", 1), runs.vault)
    assert runs.vault.ring is not None
    runs.vault.ring.destroy(run_key("r-0"))
    report = send(runs, receiver.url("http"), tmp_path / "position")
    assert report.position == runs.point().cut
    assert held(receiver) == expected(runs, ["r-1"])
    assert "run r-0 is passed over" in caplog.text


def test_run_without_its_keys_is_not_skipped(
    runs: refold.AgentLog, receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(runs, with_calls("r-1", 1), runs.vault)
    monkeypatch.setenv("REFOLD_KEYS", "none")
    with pytest.raises(SinkRefused, match="REFOLD_KEYS"):
        send(runs, receiver.url("http"), tmp_path / "position")
    assert receiver.requests == []
    monkeypatch.delenv("REFOLD_KEYS")
    send(runs, receiver.url("http"), tmp_path / "position")
    assert held(receiver) == expected(runs, ["r-1"])
