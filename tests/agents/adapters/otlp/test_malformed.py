"""Damaged requests of OTLP: each is refused as one, or each of its items is observed or rejected as a whole."""

from __future__ import annotations

import gzip
import http.client
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import pytest

import refold
from refold.agents.adapters.otlp.grpc_receiver import GrpcReceiver
from refold.agents.adapters.otlp.intake import OtlpIntake
from refold.agents.adapters.otlp.receiver import OtlpReceiver
from refold.agents.adapters.otlp.requests import PROTOBUF
from refold.agents.adapters.otlp.signals import observe_sent
from refold.agents.capture.server import LoopbackServer
from refold.agents.log import open_log
from refold.avro.errors import InputError
from refold.avro.shipped import shipped_types
from refold.streams.exchange.import_types import TypeCatalog
from refold.streams.exchange.intake import Recorder
from refold_tests.damaged_otlp import SEED, damaged_bodies

pytestmark = pytest.mark.outside

DECODED, SENT, SOAK = 2_500, 300, 10_000
WAIT_S = 120
WAYS = (200, 400, grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT)
"""What a request may be answered, over HTTP and over gRPC."""


def test_damaged_bodies_are_refused_or_become_observations(is_soak: bool) -> None:
    vocabulary = TypeCatalog((), {}, shipped_types())
    outcomes: Counter[str] = Counter()
    for number, body in enumerate(damaged_bodies(SOAK if is_soak else DECODED)):
        recorder = Recorder(vocabulary, lambda *_: None)
        try:
            items, _ = body.signal.decode(body.data, body.content_type)
        except InputError:
            outcomes["refused"] += 1
            continue
        for each in items:
            try:
                observe_sent(each, recorder.observe)
                outcomes["observed"] += 1
            except InputError:
                outcomes["rejected"] += 1
            except Exception as error:
                raise AssertionError(f"seed {SEED}, body {number}: {body.data!r:.3000}") from error
    assert outcomes["refused"] > 50
    assert outcomes["observed"] > 50


def test_damaged_requests_are_answered_and_nothing_but_whole_items_is_recorded(tmp_path: Path, is_soak: bool) -> None:
    """Over HTTP, plain and gzip, and over gRPC: each is answered by 200 or 400, and the receiver goes on."""
    lines: list[str] = []
    intake = OtlpIntake(lambda: open_log(f"file:{tmp_path / 'log'}"), {}, lines.append)
    server, over_grpc = LoopbackServer(lambda: OtlpReceiver(intake)), GrpcReceiver(intake, "127.0.0.1", 0)
    statuses: Counter[Any] = Counter()
    parts = urlsplit(server.url)
    try:
        with (
            closing(http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=WAIT_S)) as connection,
            grpc.insecure_channel(over_grpc.address) as channel,
        ):
            for number, body in enumerate(damaged_bodies(SOAK if is_soak else SENT)):
                if body.content_type == PROTOBUF and number % 2:
                    call: Any = channel.unary_unary(f"/{body.signal.service}/Export")
                    try:
                        call(body.data, timeout=WAIT_S)
                        status: Any = grpc.StatusCode.OK
                    except grpc.RpcError as error:
                        status = error.code()
                else:
                    headers = {"Content-Type": body.content_type}
                    is_packed = number % 5 == 0
                    headers |= {"Content-Encoding": "gzip"} if is_packed else {}
                    data = gzip.compress(body.data) if is_packed else body.data
                    connection.request("POST", body.signal.path, data, headers)
                    response = connection.getresponse()
                    response.read()
                    status = response.status
                statuses[status] += 1
                assert status in WAYS, f"seed {SEED}, body {number}: {status}: {body.data!r:.3000}"
    finally:
        over_grpc.close()
        server.close()
        intake.close()
    assert lines == []  # the log never failed
    assert min(statuses[each] for each in WAYS) > 0
    counts = intake.counts.now()
    assert counts.taken == statuses[200] + statuses[grpc.StatusCode.OK]
    assert counts.refused["malformed"] == statuses[400] + statuses[grpc.StatusCode.INVALID_ARGUMENT]
    with refold.open(f"file:{tmp_path / 'log'}", read_only=True) as log:
        kinds = ("document/span-", "document/log-", "step/", "action/")
        items = [name for name in log.rebuild() if name.startswith(kinds)]
        assert 0 < len(items) <= sum(counts.recorded.values())
        assert log.verify().ok
