"""The Grafana dashboard asks for metrics that there are, for all of them, and in queries that Prometheus reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from refold_tests.prometheus import DASHBOARD, METRICS, dashboard_queries, metrics_in, promtool

BOARD: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
PANELS = [each for each in BOARD["panels"] if each["type"] != "row"]


def test_queries_use_existing_metrics_and_every_metric_is_shown() -> None:
    named = [metrics_in(query) for query in dashboard_queries()]
    assert all(named)
    assert {name for names in named for name in names} == {*METRICS}


def test_prometheus_reads_every_query(tmp_path: Path) -> None:
    def read(queries: list[str]) -> int:
        rules = [{"record": f"q:{number}", "expr": query} for number, query in enumerate(queries)]
        (tmp_path / "queries.yml").write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
        return promtool("check", "rules", tmp_path / "queries.yml").returncode

    assert read(dashboard_queries()) == 0
    assert read([f"{dashboard_queries()[0]})"]) != 0


def test_every_panel_queries_the_chosen_log_and_instance() -> None:
    variables = {each["name"]: each for each in BOARD["templating"]["list"]}
    assert [*variables] == ["datasource", "log", "instance"]
    for name in ("log", "instance"):
        query = variables[name]["query"]["query"]
        assert metrics_in(query.removeprefix("label_values(").rpartition(",")[0]) <= METRICS.keys()
        assert query.endswith(f", {name})")
    for panel in PANELS:
        for target in panel["targets"]:
            assert target["datasource"] == panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            assert '$log"' in target["expr"], panel["title"]
    assert len({each["id"] for each in BOARD["panels"]}) == len(BOARD["panels"])


def test_panels_do_not_overlap() -> None:
    cells: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        at = panel["gridPos"]
        own = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert cells.isdisjoint(own), panel["title"]
        assert max(x for x, _ in own) < 24
        cells |= own
