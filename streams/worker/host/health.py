"""A worker's health, judged from its status and condition when a page is requested. Pure.

Healthy means all of:
1. No partition has had something to commit for STALLED_S without a commit. This finds a thread, a disk or a broker that
   hangs. A partition that waits for an answer of the Schema Registry is held back on purpose, and a restart would not
   help it: it is shown, and does not count. Neither does one that waits at a damaged record (quarantine.py).
2. A broker has answered within the last OUTAGE_S.
3. The worker was a member of its group within the last OUTAGE_S, from when it first asked to join.
4. Its folder can be written to.
5. Its fold has not failed.
A supervisor may restart an unhealthy worker: it continues from the last commit. Records that were skipped are shown,
and do not make it unhealthy: they hold nothing up.

Ready means: a broker answers, it is a member of its group, its fold has not failed, its folder can be written to, no
topic of the log is missing, and it has partitions, each of which is caught up. An outage shows here as soon as the
worker notices it, within seconds; a missing topic within half a minute. Restarting the worker restores no topic, so
health only shows it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from refold.avro.times import millis_text
from refold.streams.log.kafka.topic_problems import TopicProblem
from refold.streams.worker.condition import Condition, WorkerCondition

Status = Mapping[int, Mapping[str, Any]]
"""The fold service's status by partition (streams/worker/partition_fold.py)."""

STALLED_S = 60.0
OUTAGE_S = 60.0
SHOWN = ("state", "offset", "lag", "last_commit_s", "uncommitted_s", "waits_for", "damage", "deadletters")
_AGAIN = "start the worker again, it goes on where it was"


def health_of(status: Status, condition: WorkerCondition, now_ms: int | None = None) -> dict[str, Any]:
    """Judge a worker's health.

    Args:
        status: What the service last published.
        condition: Whether it has brokers and its group.
        now_ms: The time, in milliseconds since 1970; None for now.

    Returns:
        `healthy`, `why` if it is not, `broker`, `group`, and for each partition what the judgement is based on.
    """
    now_ms = _now_ms() if now_ms is None else now_ms
    wrong = [
        f"partition {number} has had {each.get('lag')} to fold for {each['uncommitted_s']:.0f} s without a commit; "
        f"{_AGAIN}"
        for number, each in sorted(status.items())
        if each.get("uncommitted_s", 0.0) > STALLED_S and not each.get("waits_for") and not each.get("damage")
    ]
    wrong += [
        f"{each.why} for {each.seconds(now_ms):.0f} s; {remedy}"
        for each, remedy in ((condition.broker, "see to the brokers"), (condition.group, _AGAIN))
        if each is not None and not each.holds and each.seconds(now_ms) > OUTAGE_S
    ]
    if not condition.folder.holds:
        wrong.append(condition.folder.why)
    if condition.failure:
        wrong.append(f"the worker is ending: {condition.failure}")
    shown = {number: {name: each[name] for name in SHOWN if name in each} for number, each in sorted(status.items())}
    why = {"why": "; ".join(wrong)} if wrong else {}
    return {"healthy": not wrong, **why, **condition_json(condition), **_passed_over(condition), "partitions": shown}


def readiness_of(status: Status, condition: WorkerCondition) -> dict[str, Any]:
    """`ready`, `why` where it is not, and since when broker and group are as they are."""
    wrong = [f"the worker is ending: {condition.failure}"] if condition.failure else []
    wrong += [
        f"{each.why} since {millis_text(each.since_ms)}"
        for each in (condition.broker, condition.group, condition.folder)
        if each is not None and not each.holds
    ]
    wrong += [f"the topic {each.topic} {each.problem}; {each.remedy}" for each in _missing(condition)]
    wrong += [f"partition {number} waits: {each['damage']}" for number, each in sorted(status.items())
              if each.get("damage")]  # fmt: skip
    behind = [str(number) for number, each in sorted(status.items()) if not each.get("caught_up")]
    if condition.group is None:
        wrong.append("it is about to join its group")
    elif behind:
        wrong.append(f"not caught up: partition {', '.join(behind)}")
    elif not status:
        wrong.append("it has no partitions yet")
    why = {"why": "; ".join(wrong)} if wrong else {}
    return {"ready": not wrong, **why, **condition_json(condition)}


def condition_json(condition: WorkerCondition) -> dict[str, Any]:
    """Return `broker` and `group`, as the pages show them; `since` is the time of each one's last change.
    `missing_topics` if the brokers lack topics of the log."""
    broker: dict[str, Any] = {
        "connected": condition.broker.holds,
        **_fields_of(condition.broker),
        "brokers": condition.brokers,
    }
    group: dict[str, Any] = {"member": False, "why": "it is about to join its group"}
    if condition.group is not None:
        group = {"member": condition.group.holds, **_fields_of(condition.group)}
    missing = [each.topic for each in _missing(condition)]
    return {"broker": broker, "group": group, **({"missing_topics": missing} if missing else {})}


def _passed_over(condition: WorkerCondition) -> dict[str, Any]:
    """Return how many records of each topic the worker skipped; empty if there are none."""
    foreign = {each.topic: each.records for each in condition.foreign}
    damaged = {each.topic: each.records for each in condition.damaged}
    return {name: found for name, found in (("foreign_records", foreign), ("damaged_records", damaged)) if found}


def _missing(condition: WorkerCondition) -> list[TopicProblem]:
    return [each for each in condition.unfit if each.is_missing]


def _fields_of(condition: Condition) -> dict[str, Any]:
    why = {"why": condition.why} if condition.why and not condition.holds else {}
    return {"since": millis_text(condition.since_ms), **why}


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
