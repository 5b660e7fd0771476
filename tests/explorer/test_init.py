"""`refold init`: a log exists before anything is recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.explorer.cli.main import run
from refold.streams.log.kafka.log import KafkaLog
from refold_tests.brokers import SharedKafka


def init_json(capsys: pytest.CaptureFixture[str], place: str) -> dict[str, Any]:
    assert run(["init", "--json", "--log", place]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_log_is_created_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = f"file:{tmp_path / 'log'}?partitions=4"
    first, again = init_json(capsys, place), init_json(capsys, place)
    assert (first["made"], first["partitions"], first["activations"]) == (True, 4, None)
    assert again == {**first, "made": False}
    assert run(["init", "--log", place]) == 0
    assert capsys.readouterr().out == f"{place}: already exists; 4 partitions, log id {first['log_id']}\n"


def test_kafka_log_is_created_with_its_final_partitions(
    kafka: SharedKafka, prefix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = f"kafka://{kafka.bootstrap}/{prefix}"
    first = init_json(capsys, f"{place}?partitions=2")
    assert (first["made"], first["partitions"]) == (True, 2)
    assert init_json(capsys, place)["log_id"] == first["log_id"]
    assert run(["init", "--log", f"{place}?partitions=4"]) == 2
    assert "this log has 2 partitions, fixed when it was created" in capsys.readouterr().err


def test_creating_a_kafka_log_starts_activations_once(
    kafka: SharedKafka, prefix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = f"kafka://{kafka.bootstrap}/{prefix}"
    refold.open(place).close()
    with refold.open(place, read_only=True) as log:
        assert isinstance(log.port, KafkaLog)
        assert not log.port.schemas.has_begun
    found = init_json(capsys, place)
    assert (found["made"], found["activations"]) == (False, True)
    with refold.open(place, read_only=True) as log:
        assert isinstance(log.port, KafkaLog)
        assert log.port.schemas.has_begun
        length = len(log.port.registry)
    assert init_json(capsys, place)["activations"] is True
    with refold.open(place, read_only=True) as log:
        assert len(log.port.registry) == length
