"""The content of a log after a run: every field, of all five layers, on both kinds of log."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.agents.journal.chain import broken
from refold.agents.log import AgentLog
from refold_tests.brokers import SharedKafka

BEGIN = {"items": [], "note": "ä"}


@refold.tool(effect="read", attempts_max=2, backoff_ms=1)
def search(query: str, box: list[int]) -> list[str]:
    """Fails the first time."""
    box.append(1)
    if len(box) == 1:
        raise ConnectionError("reset")
    return [query]


@refold.tool(effect="write")
def send(to: str, *, idempotency_key: str = "") -> dict[str, str]:
    return {"to": to, "key": idempotency_key}


def client(*, model: str, messages: list[Any], temperature: float) -> dict[str, Any]:
    return {"id": "resp-1", "model": f"{model}-2026", "usage": {"prompt_tokens": 5, "completion_tokens": 7}}


def one_run(log: AgentLog) -> str:
    log.observe("document/ticket-1", {"fields": {"status": "open"}})
    with log.run(
        "refunds", version="1.4", code_version="c0ffee", input={"order": 7}, seed=7, state=BEGIN, task="task-1",
        title="Order 7", user="u-1", kind="test", entry="shop:agent", tags=["b", "a"], metadata={"place": {"x": 1.0}},
        id="run-1",
    ) as run:  # fmt: skip
        with run.step("look"):
            search("order 7", [0])
            run.read("document/ticket-1")
            run.observe("document/ticket-1", {"fields": {"status": "seen"}})
            run.state["note"] = "long " * 500
        attempts: list[int] = []

        def decide() -> dict[str, str]:
            run.model(client, model="m", messages=[{"role": "user"}], temperature=0.5)
            run.state["items"].append(1)
            attempts.append(1)
            if len(attempts) == 1:
                raise TimeoutError("slow")
            run.decide("refund", why="it is small", options=["refund", "ask"])
            return {"choice": "refund"}

        run.step("decide", decide, attempts_max=2, backoff_ms=1)
        send("a@b")
        with contextlib.suppress(ValueError), run.step("fails"):
            search("nothing", [])
            raise ValueError("no such order")
        run.output = {"refunded": 50.0}
    return run.id


@pytest.fixture(params=["file", pytest.param("kafka", marks=pytest.mark.kafka)])
def both(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AgentLog]:
    url = f"file:{tmp_path / 'log'}"
    if request.param == "kafka":
        kafka: SharedKafka = request.getfixturevalue("kafka")
        prefix = request.getfixturevalue("prefix")
        url = f"kafka://{kafka.bootstrap}/{prefix}?partitions=2&blobs={(tmp_path / 'blobs').as_uri()}"
    with refold.open(url) as log:
        yield log


@pytest.mark.filterwarnings("ignore:.*REFOLD_MASTER_KEY")
def test_whole_run_is_in_its_log(both: AgentLog) -> None:
    log, run = both, one_run(both)
    recording = log.recording(run)
    assert list(broken(recording)) == []
    fields = log.state("run/run-1").fields
    clear = {
        "agent": "refunds", "agent_version": "1.4", "code_version": "c0ffee", "kind": "test", "task": "task-1",
        "user": "u-1", "status": "ended", "outcome": "succeeded", "seed": 7, "entry": "shop:agent", "attempts": 1,
        "tags": ["a", "b"], "step_count": 4, "position": 4, "retention_class": "test", "hash": recording.hash,
    }  # fmt: skip
    assert {name: fields[name] for name in clear} == clear
    assert fields["started_at"] <= fields["ended_at"]
    assert fields["duration_ms"] == (fields["ended_at"] - fields["started_at"]) / 1000
    assert "error" not in fields
    assert (recording.input, recording.state, recording.output, recording.title, recording.metadata) == (
        {"order": 7}, BEGIN, {"refunded": 50.0}, "Order 7", {"place": {"x": 1.0}},
    )  # fmt: skip
    assert type(recording.output["refunded"]) is type(recording.metadata["place"]["x"]) is float

    steps = [log.state(f"step/run-1#{number}").fields for number in range(1, 5)]
    # Layer 1, position: which step, and that it is final. Layer 4, attempts.
    names = ["look", "decide", "tool: send", "fails"]
    assert [(each["run"], each["agent"], each["position"], each["name"]) for each in steps] == [
        ("run-1", "refunds", number, name) for number, name in enumerate(names, 1)
    ]
    assert [(each["status"], each["outcome"], each["attempts"]) for each in steps] == [
        ("committed", "succeeded", 1), ("committed", "succeeded", 2), ("committed", "succeeded", 1),
        ("committed", "failed", 1),
    ]  # fmt: skip
    for each, step in zip(steps, recording.steps, strict=True):
        assert (each["state_after"], each["turn_hash"]) == (step.state_after, step.hash)
        # What the step before already states is not repeated.
        assert ("state_before" in each) == ("previous_turn_hash" in each) == (step.number == 1)
        assert each["started_at"] <= each["ended_at"]
        assert each["duration_ms"] >= 0
    look, decide, sent, failed = recording.steps
    # Layer 2, tool outputs, verbatim; the retries of a call itself.
    assert [call.asked.kind for call in look.calls] == ["tool", "read", "observe"]
    assert look.calls[0].asked.request == {"kwargs": {"query": "order 7", "box": [0]}}
    assert look.calls[0].answer == ["order 7"]
    assert [(each["position"], each["tool"]) for each in steps[0]["calls"]] == [(1, "search")]
    assert [(each["entity"], each["version"]) for each in steps[0]["reads"]] == [("document/ticket-1", 1)]
    assert look.delta == (["set", ["note"], "long " * 500],)
    # Layer 3, decision and rationale; requests to models.
    assert decide.calls[-1].asked.request == {"choice": "refund", "why": "it is small", "options": ["refund", "ask"]}
    assert "decision" in steps[1]
    assert "rationale" in steps[1]
    assert decide.result == {"choice": "refund"}
    (model,) = steps[1]["model_calls"]
    assert {name: model[name] for name in ("model", "temperature", "response_model", "response_id", "determinism",
                                           "input_tokens", "output_tokens")} == {
        "model": "m", "temperature": 0.5, "response_model": "m-2026", "response_id": "resp-1", "determinism": "live",
        "input_tokens": 5, "output_tokens": 7,
    }  # fmt: skip
    assert model["request_hash"] == decide.calls[0].asked.hash
    # Layer 4, retries.
    (retry,) = steps[1]["retries"]
    assert (retry["attempt"], retry["backoff_ms"]) == (1, 1)
    first, _ = decide.attempts
    assert first.failure is not None
    assert (first.failure.exception, first.failure.message) == ("builtins.TimeoutError", "slow")
    assert "in decide" in first.failure.traceback
    assert decide.delta == (["splice", ["items"], 0, 0, [1]],), "what the failed attempt did is gone"
    # A write: its key, passed to the tool.
    (call,) = sent.calls
    assert call.key.startswith("task-1:3:send:")
    assert call.answer == {"to": "a@b", "key": call.key}
    # Layer 5, failures, in parts that can be queried.
    assert (steps[3]["failure"]["exception"], steps[3]["failure"]["step"]) == ("builtins.ValueError", "run-1#4")
    assert failed.failure is not None
    assert failed.failure.message == "no such order"
    assert [each.failure.message for each in failed.calls[0].retries] == ["reset"]
    # The causes of everything lead back to its origin.
    assert log.verify().ok
