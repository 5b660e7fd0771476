"""A real Prometheus scrapes a real worker, and answers every query of the dashboard and of the alerts."""

from __future__ import annotations

from pathlib import Path

import refold
from refold_tests.brokers import SharedKafka
from refold_tests.prometheus import alert_rules, dashboard_queries, program, serving
from refold_tests.waiting import await_true
from refold_tests.worker_process import starting

ENTITIES = 12
ELSEWHERE = ("standby", "sink", "supervisor", "receive", "== 0")


def test_workers_metrics_can_be_queried_in_prometheus(kafka: SharedKafka, prefix: str, tmp_path: Path) -> None:
    program("prometheus")
    url = f"kafka://{kafka.bootstrap}/{prefix}"
    with refold.open(f"{url}?partitions=2") as log:
        for number in range(ENTITIES):
            log.observe(f"document/d{number}", {"fields": {"a": number}}, source="one")
    with starting(url, tmp_path) as start:
        worker = start("one")
        await_true(lambda: worker.is_ready)
        with serving(tmp_path, [worker.url.removeprefix("http://")]) as prometheus:
            folded = f'sum(refold_observations_total{{log="{prefix}"}})'
            await_true(lambda: bool(prometheus.query(folded)))
            assert float(prometheus.query(folded)[0]["value"][1]) == ENTITIES
            (ready,) = prometheus.query("refold_ready and refold_healthy == 1 and on (instance) up == 1")
            assert (ready["metric"]["job"], ready["metric"]["log"], ready["value"][1]) == ("refold", prefix, "1")

            await_true(lambda: bool(prometheus.query("rate(refold_records_total[1m])")))
            queries = dashboard_queries()
            answered = {query for query in queries if prometheus.query(query)}
            silent = {*queries} - answered
            # There is no standby, sink, supervisor or receiver, and nothing is incomplete.
            assert len(answered) > len(silent)
            assert not [each for each in silent if not any(word in each for word in ELSEWHERE)]

            loaded = [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]
            assert {rule["name"] for rule in loaded} == {rule["alert"] for rule in alert_rules()}
            assert [rule["name"] for rule in loaded if rule.get("lastError")] == []
            worker.kill()
            await_true(lambda: bool(prometheus.query('ALERTS{alertname="RefoldDown",alertstate="pending"}')))
