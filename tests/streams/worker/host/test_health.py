"""Health, readiness and metrics of brokers, group and folder: pure functions, with the test's clock."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from refold.streams.log.kafka.topic_problems import TopicProblem
from refold.streams.log.port import Foreign, Position, SetAside
from refold.streams.worker.condition import Condition, CurrentCondition, WorkerCondition, healthy
from refold.streams.worker.data_folder import NAME, FolderCondition
from refold.streams.worker.host.health import OUTAGE_S, health_of, readiness_of
from refold.streams.worker.host.metrics import COUNTERS, GAUGES, SETTLING_S, About, metrics_of

SINCE_MS = 1_795_000_000_000
SINCE = "2026-11-18T11:06:40.000Z"
FOLDING: dict[int, Any] = {0: {"state": "folding", "caught_up": True, "lag": 0}}
NO_BROKER = Condition(False, SINCE_MS, "no broker answers")
NO_GROUP = Condition(False, SINCE_MS, "it is not a member of its group")
OUTAGES = [
    pytest.param(healthy()._replace(broker=NO_BROKER), "no broker answers", id="broker"),
    pytest.param(healthy()._replace(group=NO_GROUP), "not a member", id="group"),
]


@pytest.mark.parametrize(("condition", "why"), OUTAGES)
def test_outage_is_not_ready_at_once_and_unhealthy_after_a_bound(condition: WorkerCondition, why: str) -> None:
    ready = readiness_of(FOLDING, condition)
    assert not ready["ready"]
    assert why in ready["why"]
    assert SINCE in ready["why"]
    within, after = (health_of(FOLDING, condition, SINCE_MS + int(1000 * (OUTAGE_S + each))) for each in (-1, 1))
    assert within["healthy"]
    assert not after["healthy"]
    assert why in after["why"]
    for said in (ready, within, after):
        assert {said["broker"]["connected"], said["group"]["member"]} == {True, False}
        assert SINCE in {said["broker"]["since"], said["group"]["since"]}


def test_worker_before_joining_is_not_ready_but_healthy() -> None:
    condition = healthy()._replace(group=None)
    assert not readiness_of(FOLDING, condition)["ready"]
    assert health_of(FOLDING, condition, SINCE_MS)["healthy"]


def test_failure_is_reported_at_once() -> None:
    condition = healthy()._replace(failure="no space left")
    for said in (readiness_of(FOLDING, condition), health_of(FOLDING, condition)):
        assert "no space left" in said["why"]
    assert not readiness_of(FOLDING, condition)["ready"]
    assert not health_of(FOLDING, condition)["healthy"]


def test_unwritable_folder_is_neither_ready_nor_healthy() -> None:
    condition = healthy()._replace(folder=Condition(False, SINCE_MS, "/data: no space left"))
    for said, name in ((readiness_of(FOLDING, condition), "ready"), (health_of(FOLDING, condition), "healthy")):
        assert not said[name]
        assert "/data: no space left" in said["why"]


def test_missing_topic_is_not_ready_but_healthy() -> None:
    missing, drifted = (
        TopicProblem("shop.changes", "is missing", "restore it", is_missing=True),
        TopicProblem("shop.x", "has", "set"),
    )
    condition = healthy()._replace(unfit=(drifted, missing))
    ready, health = readiness_of(FOLDING, condition), health_of(FOLDING, condition, SINCE_MS)
    assert (ready["ready"], ready["why"]) == (False, "the topic shop.changes is missing; restore it")
    assert health["healthy"]
    assert ready["missing_topics"] == health["missing_topics"] == ["shop.changes"]
    assert "missing_topics" not in readiness_of(FOLDING, healthy()._replace(unfit=(drifted,)))
    assert readiness_of(FOLDING, healthy()._replace(unfit=(drifted,)))["ready"]


def test_unusable_folder_is_logged_once_and_so_is_its_return(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = FolderCondition(tmp_path, lambda: 7)
    caplog.set_level("INFO")
    (tmp_path / NAME).touch()
    assert found.now().holds
    assert caplog.messages == []
    (tmp_path / NAME).unlink()
    assert not found.now().holds
    assert not found.now().holds
    (tmp_path / NAME).touch()
    assert found.now().holds
    assert [each.split()[0] for each in caplog.messages] == ["folder_unusable", "folder_usable"]


def test_skipped_records_are_shown_and_healthy() -> None:
    letters = {0: {**FOLDING[0], "deadletters": 3}}
    condition = healthy()._replace(
        foreign=[Foreign("shop.schemas", 7, Position(0, 2))], damaged=[SetAside("shop.snapshots", 2, Position(1, 0))]
    )
    health = health_of(letters, condition, SINCE_MS)
    assert health["healthy"]
    assert health["foreign_records"] == {"shop.schemas": 7}
    assert health["damaged_records"] == {"shop.snapshots": 2}
    assert health["partitions"][0]["deadletters"] == 3
    assert not {"foreign_records", "damaged_records"} & health_of(FOLDING, healthy(), SINCE_MS).keys()


def test_condition_keeps_its_start_time() -> None:
    now_ms = 5
    kept = CurrentCondition(lambda: now_ms, "not yet")
    assert kept.now == Condition(False, 5, "not yet")
    now_ms = 7
    assert kept.note(False, "still not") is None
    assert kept.now == Condition(False, 5, "still not")
    before = kept.note(True)
    assert before is not None
    assert before.seconds(now_ms) == 0.002
    now_ms = 9
    assert kept.note(True) is None
    assert kept.now == Condition(True, 7, "")


def test_series_stay_while_out_of_the_group_and_counters_forever() -> None:
    status: dict[int, Any] = {0: {"state": "folding", **dict.fromkeys([*GAUGES, *COUNTERS], 1)}}
    condition = healthy()._replace(group_lag={0: 4, 1: 0}, unfit=(TopicProblem("shop.changes", "has x=1", "set it"),))
    now_ms = SINCE_MS
    page = metrics_of(lambda: status, lambda: condition, About("shop", 2, Path("/"), "1"), clock_ms=lambda: now_ms)

    def series() -> dict[str, float]:
        families = text_string_to_metric_families(page().decode())
        return {f"{one.name}{sorted(one.labels.items())}": one.value for each in families for one in each.samples}

    before = series()
    status, condition = {}, condition._replace(broker=NO_BROKER, group=NO_GROUP, brokers=0)
    during = series()
    assert before.keys() == during.keys()
    gauges = {name for name, _ in GAUGES.values()}
    changed = {name.partition("[")[0] for name in before if before[name] != during[name]}
    assert changed.isdisjoint(gauges)
    assert {"refold_broker_connected", "refold_group_member", "refold_partition_owned"} <= changed
    # A member again, with or without the partition: the folded offset is still reported for a while.
    condition = healthy()._replace(group=Condition(True, SINCE_MS))
    lag = {name for name in before if name.startswith("refold_group_lag_records")}
    assert before.keys() - series().keys() == lag
    now_ms += int(SETTLING_S * 1000)
    status = {0: {"state": "starting"}}
    assert before.keys() - series().keys() == lag
    status = {}
    gone = before.keys() - series().keys()
    assert {name.partition("[")[0] for name in gone} == gauges | {"refold_group_lag_records"}


def test_reassigned_partition_keeps_its_age() -> None:
    status: dict[int, Any] = {0: {"state": "folding", "last_commit_s": 3.0}}
    now_ms = SINCE_MS
    page = metrics_of(lambda: status, healthy, About("shop", 1, Path("/"), "1"), clock_ms=lambda: now_ms)
    ages = []
    for taken in (status, {}, {0: {"state": "folding", "last_commit_s": None}}):
        status = taken
        ages += re.findall(r"^refold_last_commit_age_seconds.* (\S+)$", page().decode(), re.MULTILINE)
        now_ms += 2_000
    assert ages == ["3.0", "5.0", "7.0"]


def test_gauges_of_a_moved_partition_end_after_a_while() -> None:
    status: dict[int, Any] = {0: {"state": "folding", **dict.fromkeys([*GAUGES, *COUNTERS], 1)}}
    now_ms = SINCE_MS
    page = metrics_of(lambda: status, healthy, About("shop", 1, Path("/"), "1"), clock_ms=lambda: now_ms)

    def has_gauges() -> bool:
        return "\nrefold_folded_offset{" in page().decode()

    assert has_gauges()
    status = {}
    assert has_gauges(), "the group may not be known to be lost yet"
    now_ms += int(SETTLING_S * 1000)
    assert not has_gauges()
    status = {0: {"state": "folding", "offset": 2}}
    assert has_gauges()
    status = {}
    assert has_gauges()


def test_deleted_topic_is_missing_and_not_drifted() -> None:
    unfit = (
        TopicProblem("shop.changes", "is missing", "restore it", is_missing=True),
        TopicProblem("shop.schemas", "has x=1", "set it"),
    )
    condition = healthy()._replace(unfit=unfit)
    page = metrics_of(lambda: {}, lambda: condition, About("shop", 1, Path("/"), "1"))().decode()
    told = re.findall(r'^(refold_topic_\w+){log="shop",topic="shop\.(\w+)"} 1\.0$', page, re.MULTILINE)
    assert told == [("refold_topic_settings_drifted", "schemas"), ("refold_topic_missing", "changes")]
