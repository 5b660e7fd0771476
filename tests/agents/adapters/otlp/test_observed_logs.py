"""Received log records: they join the spans that they name, in any order, and none is lost."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import refold
from refold.agents.adapters.otlp.requests import JSON, PROTOBUF, decode, decode_logs
from refold.agents.adapters.otlp.signals import Sent
from refold.agents.importers.conversation import import_conversation
from refold.agents.importers.file import ImportFile
from refold.agents.importers.otlp import IMPORTER
from refold.avro.shipped import shipped_types
from refold.streams.exchange.import_types import TypeCatalog
from refold.streams.exchange.intake import Recorder
from refold_tests.otlp_requests import (
    CALL,
    OLDER,
    TODAY,
    TRACE,
    TWO_CALLS,
    as_protobuf,
    known_by_both,
    log_record,
    log_request,
    logs_of,
    members,
    record,
    request,
    span,
    value,
)


def two_calls(records: list[dict[str, Any]]) -> list[Sent]:
    return [*decode(request(*TWO_CALLS), JSON)[0], *logs_of(*records)]


@pytest.mark.parametrize("records", [OLDER, TODAY], ids=["older names", "names of today"])
def test_messages_in_logs_are_those_of_the_span_that_they_name(records: list[dict[str, Any]], tmp_path: Path) -> None:
    with refold.open(f"file:{tmp_path / 'log'}") as log:
        record(log, two_calls(records))
        [row] = log.runs()
        run = log.recording(TRACE)
        assert (row.steps, run.input, run.output) == (2, "What is it?", "It is two.")
        assert [str(each["content"]) for each in run.state["messages"][:2]] == ["Be brief.", "What is it?"]
        [call] = [each for each in run.steps[0].calls if each.asked.kind == "tool"]
        assert (call.asked.name, call.answer) == ("look", "two")
        assert run.steps[1].result == "It is two."
        first, second = (log.state(f"step/{TRACE}#{each:016x}").fields for each in (1, 2))
        assert (first["decision"], first["calls"][0]["inputs"]) == ("call look", {"n": 1})
        assert (second["decision"], second["message"]) == ("reply", "It is two.")
        state = log.state(f"run/{TRACE}").fields
        assert (state["input"], state["output"]) == ("What is it?", "It is two.")
        assert [each.run for each in log.runs(text="Be brief")] == [TRACE]
        assert log.verify().ok


@pytest.fixture(scope="module")
def wanted_with_logs(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The root of a log that got the spans and the log records of two calls once."""
    with refold.open(f"file:{tmp_path_factory.mktemp('logs') / 'log'}") as log:
        record(log, two_calls(OLDER))
        return log.rebuild().root


@settings(max_examples=6, deadline=None)
@given(chance=st.randoms(use_true_random=False))
def test_logs_in_any_order_before_and_after_their_spans_give_the_same_root_and_run(
    chance: random.Random, wanted_with_logs: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    items = two_calls(OLDER)
    items += chance.choices(items, k=chance.randint(0, 5))
    chance.shuffle(items)
    with refold.open(f"file:{tmp_path_factory.mktemp('shuffled') / 'log'}?partitions=2") as log:
        while items:
            size = chance.randint(1, len(items))
            batch, items = items[:size], items[size:]
            record(log, batch)
        assert log.rebuild().root == wanted_with_logs
        assert [each.result for each in log.recording(TRACE).steps] == [None, "It is two."]


def test_span_with_messages_of_its_own_does_not_repeat_those_of_logs(tmp_path: Path) -> None:
    written = {**CALL, "gen_ai.input.messages": '[{"role": "user", "content": "Mine?"}]',
               "gen_ai.output.messages": '[{"role": "assistant", "content": "Mine."}]'}  # fmt: skip
    with refold.open(f"file:{tmp_path / 'log'}") as log:
        record(log, [*decode(request(span(1, written)), JSON)[0], *logs_of(*OLDER[:3])])
        run = log.recording(TRACE)
        assert (run.input, [each.result for each in run.steps]) == ("Mine?", ["Mine."])


def test_logs_without_a_span_are_kept_unchanged(tmp_path: Path) -> None:
    """A record of no trace, of a trace alone, of a span that never comes, of another name, and one that is repeated."""
    records = [
        {**log_record(1, "", 0), "body": value("no trace")},
        {**log_record(2, "", 0), "traceId": TRACE, "body": value("trace alone")},
        log_record(3, "gen_ai.user.message", 9, body=members(content=value("Hello?"))),
        log_record(4, "exception", 1, body=value("other")),
        {**log_record(5, "", 0), "traceId": "00" * 16, "spanId": "zz", "body": value("ids that are none")},
    ]
    with refold.open(f"file:{tmp_path / 'log'}") as log:
        sent = logs_of(*records)
        record(log, [*sent, *sent, *decode(request(span(1, CALL)), JSON)[0]])
        view = log.rebuild()
        kept = {name: view[name] for name in view if name.startswith("document/log-")}
        bodies_kept = sorted(str(each.fields["fields"]["log"].get("body")) for each in kept.values())
        assert bodies_kept == sorted(str(each.get("body")) for each in (one.log for one in sent))
        linked = sorted(link["target"] for each in kept.values() for link in each.links)
        assert linked == [f"document/trace-{TRACE}"] * 3
        assert log.state(f"run/{TRACE}").fields["input"] == "Hello?"
        assert [each.number for each in log.recording(TRACE).steps] == [1]


@pytest.mark.parametrize("records", [OLDER, TODAY], ids=["older names", "names of today"])
def test_imported_logs_join_their_spans_as_received_ones(records: list[dict[str, Any]], tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl"
    orphans = [log_record(7, "gen_ai.choice", 8), log_record(8, "gen_ai.choice", 0)]
    path.write_bytes(b"\n".join([log_request(*records, *orphans), request(*TWO_CALLS)]))
    with refold.open(f"file:{tmp_path / 'imported'}") as log:
        file = ImportFile(path)
        for conversation in IMPORTER.read(file):
            import_conversation(conversation, Recorder(TypeCatalog((), {}, shipped_types()), log.append).observe)
        log.flush()
        [row] = log.runs()
        imported = known_by_both(log.recording(row.run))
        assert dict(file.left_out) == {"log record that names no span": 1, "log record whose span is not there": 1}
    with refold.open(f"file:{tmp_path / 'received'}") as log:
        record(log, two_calls(records))
        assert known_by_both(log.recording(TRACE)) == imported


def test_protobuf_and_json_give_the_same_logs() -> None:
    for body in (log_request(*OLDER), log_request(*TODAY, log_record(9, "", 0))):
        assert decode_logs(as_protobuf(body), PROTOBUF) == decode_logs(body, JSON)
