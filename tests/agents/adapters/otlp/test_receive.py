"""`refold receive` as a process: OTLP's answers, real exporters, kills, and logs that are not available."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import json
import os
import random
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from google.rpc.status_pb2 import Status
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from pydantic_ai import Agent, InstrumentationSettings
from pydantic_ai.capabilities.instrumentation import Instrumentation
from pydantic_ai.models.test import TestModel

import refold
from refold.agents.adapters.otlp.intake import OtlpIntake, Unavailable
from refold.agents.adapters.otlp.receiver import BODY_BYTES_MAX, READING_MAX, OtlpReceiver
from refold.agents.adapters.otlp.requests import JSON, PROTOBUF, SentSpan, decode
from refold.agents.adapters.otlp.signals import Recorded
from refold.agents.capture.server import LoopbackServer
from refold.agents.log import AgentLog, open_log
from refold.avro.errors import StorageError
from refold_tests.command import refold_command
from refold_tests.fresh_environment import linked, requirements
from refold_tests.otlp_receiving import OK, START, WAIT_S, Answer, FailingLog, Receiving, post, request, span
from refold_tests.recipes import BLOCK, is_as_shown
from refold_tests.tree import ROOT

pytestmark = pytest.mark.outside


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """The URL of a receiver in this process, into the log at tmp_path/log."""
    intake = OtlpIntake(lambda: open_log(f"file:{tmp_path / 'log'}"), {}, print)
    server = LoopbackServer(lambda: OtlpReceiver(intake, 100_000))
    yield server.url
    server.close()
    intake.close()


# Answers


def test_spans_of_a_real_agent_and_exporter_become_a_run(tmp_path: Path) -> None:
    """pydantic-ai, through OpenTelemetry's SDK, its exporter and the command; once plain, once with gzip."""
    log = f"file:{tmp_path / 'log'}"
    receiving = Receiving(log)
    try:
        for compression in (Compression.NoCompression, Compression.Gzip):
            provider = TracerProvider(resource=Resource.create({"service.name": "desk"}))
            exporter = OTLPSpanExporter(f"{receiving.url}/v1/traces", compression=compression)
            provider.add_span_processor(SimpleSpanProcessor(exporter))
            settings = InstrumentationSettings(tracer_provider=provider)
            agent = Agent(TestModel(), name="helper", capabilities=[Instrumentation(settings)])

            @agent.tool_plain
            def price(item: str) -> str:
                return f"{item} costs 4"

            # `run_sync` would leave an event loop open.
            assert "costs 4" in asyncio.run(agent.run("What does a kettle cost?")).output
            provider.shutdown()
    finally:
        said = receiving.end()
    assert "8 items received" in said
    with refold.open(log) as opened:
        rows = opened.runs()
        assert [(row.agent, row.title, row.steps) for row in rows] == [("helper", "invoke_agent helper", 2)] * 2
        for row in rows:
            run = opened.recording(row.run)
            assert run.input == "What does a kettle cost?"
            [call] = [each for each in run.steps[0].calls if each.asked.kind == "tool"]
            assert (call.asked.name, call.answer) == ("price", "a costs 4")
            assert "costs 4" in (run.steps[1].result or "")
        assert [each.run for each in opened.runs(tool="price")] == [each.run for each in rows]
        assert opened.verify().ok
    shown = refold_command("run", "show", rows[0].run, log=log)
    assert shown.status == 0
    assert "step 2: committed" in shown.out
    searched = refold_command("run", "search", "costs", "--index", tmp_path / "index.sqlite", "--json", log=log)
    assert searched.status == 0, searched.err
    hits = searched.json["hits"]
    steps = {(each["run"], each["entity"].partition("#")[0]) for each in hits if each["entity"].startswith("step/")}
    assert steps == {(row.run, f"step/{row.run}") for row in rows}


def test_response_uses_the_encoding_of_its_request(served: str) -> None:
    good, bad = span(1, 1), {**span(1, 2), "spanId": ""}
    assert post(served, request(good)) == OK
    partial = json.loads(post(served, request(good, bad)).body)["partialSuccess"]
    assert partial == {"rejectedSpans": "1", "errorMessage": "1 spans have no valid ids"}
    message = ExportTraceServiceRequest()
    sent = message.resource_spans.add().scope_spans.add().spans.add(name="x", trace_id=b"1" * 16, span_id=b"2" * 7)
    answer = post(served, message.SerializeToString(), PROTOBUF)
    assert ExportTraceServiceResponse.FromString(answer.body).partial_success.rejected_spans == 1
    sent.span_id = b"2" * 8
    assert post(served, message.SerializeToString(), PROTOBUF) == Answer(200, b"", None)
    refused = post(served, b"\xff", PROTOBUF)
    assert (refused.status, Status.FromString(refused.body).code) == (400, 3)


def log_record(trace: int, number: int, **more: object) -> dict[str, object]:
    """Return a log record of `span(trace, number)`."""
    return {"traceId": f"{trace:032x}", "spanId": f"{number:016x}", "timeUnixNano": str(START + number),
            "eventName": "gen_ai.user.message", "body": {"stringValue": "Hi"}, **more}  # fmt: skip


def log_request(*records: dict[str, object]) -> bytes:
    return json.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": list(records)}]}]}).encode()


def test_logs_are_recorded_and_what_is_refused_of_them_is_said(served: str, tmp_path: Path) -> None:
    deep = log_record(1, 2, body=_nested(30))
    assert post(served, log_request(log_record(1, 1)), path="/v1/logs") == OK
    answer = json.loads(post(served, log_request(log_record(1, 3), deep), path="/v1/logs").body)["partialSuccess"]
    assert answer["rejectedLogRecords"] == "1"
    assert answer["errorMessage"].startswith("log record: ")
    message = ExportLogsServiceRequest()
    message.resource_logs.add().scope_logs.add().log_records.add(
        time_unix_nano=START, trace_id=b"x"
    ).body.string_value = ""
    assert post(served, message.SerializeToString(), PROTOBUF, "/v1/logs") == Answer(200, b"", None)
    assert post(served, request(span(1, 1)), path="/v1/logs").status == 200  # it holds no logs
    with refold.open(f"file:{tmp_path / 'log'}", read_only=True) as log:
        kept = [name for name in log.rebuild() if name.startswith("document/log-")]
        assert len(kept) == 3


def test_only_a_span_that_cannot_be_observed_is_rejected(served: str, tmp_path: Path) -> None:
    deep = {**span(1, 2), "attributes": [{"key": "gen_ai.request.model", "value": _nested(30)}]}
    answer = json.loads(post(served, request(span(1, 1), deep, span(1, 3))).body)["partialSuccess"]
    assert answer["rejectedSpans"] == "1"
    assert answer["errorMessage"].startswith(f"span {2:016x}: ")
    with refold.open(f"file:{tmp_path / 'log'}", read_only=True) as log:
        [row] = log.runs()
        assert row.steps == 2
        assert not log.states([f"step/{1:032x}#{2:016x}"])


def _nested(depth: int) -> dict[str, object]:
    given: dict[str, object] = {"stringValue": "m"}
    for _ in range(depth):
        given = {"arrayValue": {"values": [given]}}
    return given


WIRE = [
    ("another path", {"path": "/v1/metrics"}, b"{}", 404), ("another method", {"method": "PUT"}, b"{}", 405),
    ("another type", {"content_type": "text/plain"}, b"{}", 415),
    ("another encoding", {"Content_Encoding": "br"}, b"{}", 415),
    ("a page of a browser", {"Origin": "http://example.com"}, b"{}", 403),
    ("a name that leads here", {"Host": "example.com"}, b"{}", 403),
    ("no gzip", {"Content_Encoding": "gzip"}, b"{}", 400),
    ("half a gzip", {"Content_Encoding": "gzip"}, gzip.compress(b"{}")[:-4], 400),
    ("more than gzip", {"Content_Encoding": "gzip"}, gzip.compress(b"{}") + b"x", 400),
    ("too large", {}, b" " * 100_001, 413),
    ("too large inside", {"Content_Encoding": "gzip"}, gzip.compress(b" " * 100_001), 413),
    ("a bomb", {"Content_Encoding": "gzip"}, gzip.compress(bytes(50_000_000)), 413),
    ("no JSON", {}, b"{", 400), ("nothing in it", {}, b"{}", 200),
    ("nothing in its gzip", {"Content_Encoding": "gzip"}, gzip.compress(b"{}"), 200),
]  # fmt: skip


def test_unsupported_requests_get_the_status_that_otlp_specifies(served: str) -> None:
    found = {name: post(served, body, **how).status for name, how, body, _ in WIRE}
    assert found == {name: status for name, _, _, status in WIRE}
    assert post(served, request(span(1, 1))).status == 200  # still there


def test_body_without_a_length_is_bounded(served: str) -> None:
    parts = urlsplit(served)
    with closing(http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=WAIT_S)) as connection:
        body = (b" " * 1000 for _ in range(101))
        connection.request("POST", "/v1/traces", body, {"Content-Type": JSON}, encode_chunked=True)
        assert connection.getresponse().status == 413
    assert BODY_BYTES_MAX >= 1 << 22  # exporters of SDKs send batches of 512 spans


def test_endless_bodies_do_not_block_other_clients(tmp_path: Path) -> None:
    intake = OtlpIntake(lambda: open_log(f"file:{tmp_path / 'log'}"), {}, print)
    server = LoopbackServer(lambda: OtlpReceiver(intake, body_s=0.5))
    parts = urlsplit(server.url)
    with ExitStack() as stack:
        stack.callback(intake.close)
        stack.callback(server.close)
        slow = [http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=WAIT_S)
                for _ in range(READING_MAX)]  # fmt: skip
        for each in slow:
            stack.callback(each.close)
            each.putrequest("POST", "/v1/traces")
            each.putheader("Content-Type", JSON)
            each.putheader("Content-Length", "9")
            each.endheaders(b"{")
        assert post(server.url, request(span(1, 1))).status == 200
        assert {each.getresponse().status for each in slow} == {408}


# Metrics


def test_answers_are_counted(tmp_path: Path) -> None:
    log = FailingLog(tmp_path)
    intake = OtlpIntake(log, {}, lambda line: None)
    server = LoopbackServer(lambda: OtlpReceiver(intake, 100_000))
    try:
        deep = {**span(1, 2), "attributes": [{"key": "gen_ai.request.model", "value": _nested(30)}]}
        post(server.url, request(span(1, 1), deep, {**span(1, 3), "spanId": ""}, span(1, 4)))
        post(server.url, log_request(log_record(1, 1)), path="/v1/logs")
        for _, how, body, status in WIRE:
            assert post(server.url, body, **how).status == status
        good = intake.counts.now()
        log.fails = True
        intake._close_log()
        assert post(server.url, request(span(1, 1))).status == 503
        failed = intake.counts.now()
        log.fails = False
        assert post(server.url, request(span(1, 1))).status == 200
    finally:
        server.close()
        intake.close()
    assert (good.recorded, good.rejected) == ({"spans": 2, "log_records": 1}, {"spans": 2, "log_records": 0})
    by_status = Counter(status for _, _, _, status in WIRE)
    assert {reason: count for reason, count in good.refused.items() if count} == {
        "malformed": by_status[400], "large": by_status[413], "foreign": by_status[403],
        "unsupported": by_status[404] + by_status[405] + by_status[415],
    }  # fmt: skip
    assert (good.taken, good.queued_bytes, good.is_log_available) == (2 + by_status[200], 0, True)
    assert 0 < good.commits <= good.taken
    assert 0 < good.commit_s < WAIT_S
    assert (failed.refused["log"], failed.is_log_available) == (1, False)
    assert intake.counts.now().is_log_available


# Back-pressure


def spans_of(*numbers: int) -> list[SentSpan]:
    return decode(request(*(span(1, each) for each in numbers)), JSON)[0]


def test_full_queue_and_failing_log_refuse_requests_without_loss(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'log'}"
    opening, may_open, fails = threading.Event(), threading.Event(), [False]

    def opened() -> AgentLog:
        if fails[0]:
            opening.set()
            assert may_open.wait(WAIT_S)
            raise StorageError("the disk is gone")
        return open_log(url)

    lines: list[str] = []
    intake = OtlpIntake(opened, {}, lines.append, queued_bytes=100)
    assert intake.put(spans_of(1), 1_000).result(WAIT_S) == Recorded(1, 0, "")  # alone, any size
    fails[0] = True
    intake._close_log()
    held = intake.put(spans_of(2), 10)
    assert opening.wait(WAIT_S)
    waiting = intake.put(spans_of(3), 60)
    with pytest.raises(Unavailable, match="too many requests wait"):
        intake.put(spans_of(4), 60)
    may_open.set()
    for each in (held, waiting):
        with pytest.raises(Unavailable, match="not available"):
            each.result(WAIT_S)
    assert "the disk is gone" in lines[0]
    fails[0] = False
    assert intake.put(spans_of(2, 3, 4), 10).result(WAIT_S) == Recorded(3, 0, "")
    intake.close()
    with pytest.raises(Unavailable, match="ending"):
        intake.put(spans_of(5), 10)
    with refold.open(url, read_only=True) as log:
        assert len(log.recording(f"{1:032x}").steps) == 4


def test_request_is_answered_only_when_the_log_is_flushed(tmp_path: Path) -> None:
    flushing, may_flush = threading.Event(), threading.Event()

    def opened() -> AgentLog:
        log = open_log(f"file:{tmp_path / 'log'}")
        flush = log.flush

        def held() -> None:
            flushing.set()
            assert may_flush.wait(WAIT_S)
            flush()

        log.flush = held  # type: ignore[method-assign]
        return log

    intake = OtlpIntake(opened, {}, print)
    try:
        answer = intake.put(spans_of(1), 10)
        assert flushing.wait(WAIT_S)
        assert not answer.done()
        may_flush.set()
        assert answer.result(WAIT_S) == Recorded(1, 0, "")
    finally:
        may_flush.set()
        intake.close()


def test_unavailable_log_answers_503_with_retry_after(tmp_path: Path) -> None:
    log = FailingLog(tmp_path)
    intake = OtlpIntake(log, {}, lambda line: None)
    server = LoopbackServer(lambda: OtlpReceiver(intake))
    try:
        log.fails = True
        intake._close_log()
        answer = post(server.url, request(span(1, 1)))
        assert (answer.status, answer.retry_after) == (503, "1")
        assert json.loads(answer.body)["code"] == 14
        log.fails = False
        assert post(server.url, request(span(1, 1))).status == 200
    finally:
        server.close()
        intake.close()


def test_sender_that_disconnects_leaves_its_spans_and_the_receiver_running(tmp_path: Path) -> None:
    opening, may_open = threading.Event(), threading.Event()

    def opened() -> AgentLog:
        if intake_is_made:
            opening.set()
            assert may_open.wait(WAIT_S)
        return open_log(f"file:{tmp_path / 'log'}")

    intake_is_made = False
    intake = OtlpIntake(opened, {}, lambda line: None)
    intake_is_made = True
    intake._close_log()
    server = LoopbackServer(lambda: OtlpReceiver(intake))
    try:
        parts = urlsplit(server.url)
        with closing(http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=WAIT_S)) as connection:
            connection.request("POST", "/v1/traces", request(span(1, 1)), {"Content-Type": JSON})
            assert opening.wait(WAIT_S)
        may_open.set()
        assert post(server.url, request(span(1, 2))).status == 200
    finally:
        may_open.set()
        intake.close()
        server.close()
    with refold.open(f"file:{tmp_path / 'log'}", read_only=True) as log:
        assert len(log.recording(f"{1:032x}").steps) == 2


# Kills


def test_kill_after_the_response_loses_nothing(tmp_path: Path, fault_rounds: int) -> None:
    """Several senders at once; the receiver is killed at any moment. What was answered is in the log, as a whole."""
    url, chance = f"file:{tmp_path / 'log'}", random.Random(seed := 4318)
    acknowledged: set[tuple[int, int]] = set()
    count = iter(range(1, 1 << 30))
    for number in range(1, min(fault_rounds, 3) + 1):
        receiving, wanted = Receiving(url), 20 * number
        enough = threading.Event()

        def send(target: str = receiving.url, enough: threading.Event = enough, wanted: int = wanted) -> None:
            while True:
                numbers = [next(count) for _ in range(3)]
                try:
                    answer = post(target, request(*(span(each % 5 + 1, each) for each in numbers)))
                    logged = post(
                        target, log_request(*(log_record(each % 5 + 1, each) for each in numbers)), path="/v1/logs"
                    )
                except (OSError, http.client.HTTPException):
                    return
                if answer == logged == OK:
                    acknowledged.update((each % 5 + 1, each) for each in numbers)
                    if len(acknowledged) >= wanted:
                        enough.set()

        with ThreadPoolExecutor(4) as pool:
            senders = [pool.submit(send) for _ in range(4)]
            assert enough.wait(WAIT_S)
            time.sleep(chance.random() * 0.05)
            receiving.kill()
            for each in senders:
                each.result(WAIT_S)
    with refold.open(url) as log:
        view = log.rebuild()
        missing = [each for each in acknowledged if f"step/{each[0]:032x}#{each[1]:016x}" not in view]
        assert not missing, f"seed {seed}"
        listed = {trace: view[f"run/{trace:032x}"].fields["spans"] for trace in range(1, 6)}
        assert all(f"{number:016x}" in listed[trace] for trace, number in acknowledged), f"seed {seed}"
        assert log.verify().ok
        known = sum(len(log.recording(each.run).steps) for each in log.runs())
        assert known >= len(acknowledged)


def test_guide_commands_work(tmp_path: Path) -> None:
    """The page's commands in its order, in an environment with what it installs and nothing else. But for a free port:
    exporters read it from the environment.
    """
    page = ROOT / "docs" / "guides" / "opentelemetry.md"
    python = linked(tmp_path / "reader", requirements(page))
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    assert [language for language, _ in blocks] == ["sh", "text", "python", "sh", "text"]
    assert blocks[0][1].splitlines()[1:] == ["refold receive"]
    (tmp_path / "agent.py").write_text(blocks[2][1])
    log = f"file:{tmp_path / '.refold'}"
    refold_there = [str(python), "-P", "-m", "refold.explorer.cli.main"]
    receiving = Receiving(log, "--metrics-port", "0", command=refold_there)
    try:
        said = receiving.said.replace(log, "file:.refold").replace(receiving.url, "http://127.0.0.1:4318")
        assert said == blocks[1][1]
        [first, *commands] = blocks[3][1].splitlines()
        assert first == "python agent.py"
        done = subprocess.run(
            [str(python), "-P", "agent.py"], cwd=tmp_path, capture_output=True, text=True, check=False,
            env={**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": receiving.url},
        )  # fmt: skip
        printed = [done.stdout]
        for command in commands:
            found = subprocess.run(
                [*refold_there, *command.split()[1:]], cwd=tmp_path, capture_output=True, text=True, check=False,
                env={**os.environ, "COLUMNS": "120"},
            )  # fmt: skip
            assert found.returncode == 0, found.stderr
            printed.append(found.stdout)
    finally:
        receiving.end()
    assert is_as_shown(blocks[4][1], "".join(printed), receiving.url), printed
    assert all("desk-agent" in each for each in printed[1:])
    [run] = [line.split()[0] for line in printed[-1].splitlines() if "desk-agent" in line]
    assert "tokens read" in refold_command("run", "show", run, log=log).out
    assert refold_command("run", "show", run, "--json", log=log).json["usage"]["models"][0]["model"] == "test"


def test_unusable_options_are_refused_at_start(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'log'}"
    assert "only addresses on loopback" in refold_command("receive", "--listen", "0.0.0.0:0", log=url).refused()
    assert "write it HOST:PORT" in refold_command("receive", "--listen", "here", log=url).refused()
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        in_use = refold_command("receive", "--listen", address, log=url).refused()
        assert f"{address}: Address already in use; name another address with --listen" in in_use
