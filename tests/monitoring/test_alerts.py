"""The alert rules: read by promtool, tried on series by promtool (alerts_test.yml), and leading to what to do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from refold_tests.prometheus import ALERTS, METRICS, alert_rules, metrics_in, promtool
from refold_tests.tree import ROOT

TRIED = ROOT / "tests" / "monitoring" / "alerts_test.yml"
OF_PROMETHEUS = {"up"}
RULES = {rule["alert"]: rule for rule in alert_rules()}


def test_promtool_reads_the_rules() -> None:
    done = promtool("check", "rules", ALERTS)
    assert done.returncode == 0, done.stderr
    assert f"{len(RULES)} rules found" in done.stdout


@pytest.mark.outside
def test_each_alert_fires_when_it_should_and_only_then() -> None:
    done = promtool("test", "rules", TRIED)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.outside
def test_alerts_that_never_fire_fail_the_tests_by_name(tmp_path: Path) -> None:
    mute = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))
    for group in mute["groups"]:
        for rule in group["rules"]:
            rule["expr"] = "vector(0) > 1"
    (tmp_path / "alerts.yml").write_text(yaml.safe_dump(mute), encoding="utf-8")
    tests = yaml.safe_load(TRIED.read_text(encoding="utf-8")) | {"rule_files": ["alerts.yml"]}
    (tmp_path / "tests.yml").write_text(yaml.safe_dump(tests), encoding="utf-8")
    done = promtool("test", "rules", tmp_path / "tests.yml")
    assert done.returncode != 0
    assert [name for name in RULES if f'alertname="{name}"' not in done.stdout + done.stderr] == []


@pytest.mark.parametrize("name", RULES)
def test_alert_names_existing_metrics_and_a_remedy(name: str) -> None:
    rule = RULES[name]
    assert metrics_in(rule["expr"]) <= {*METRICS, *OF_PROMETHEUS}
    assert rule["labels"]["severity"] in {"warning", "critical"}
    assert {*rule["annotations"]} == {"summary", "description", "runbook_url"}
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    headings = re.findall(r"^### (.+)$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    assert (anchor, name) in [(each.lower(), each) for each in headings]


def test_only_existing_alerts_are_documented() -> None:
    page = (ROOT / "docs" / "OPERATIONS.md").read_text(encoding="utf-8")
    assert {*re.findall(r"\bRefold[A-Z]\w+", page)} == {*RULES}


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ('sum by (log, instance) (rate(a_total{log=~"x|y",b="c_total"}[5m]))', {"a_total"}),
        ("a / on (job, log) group_left (version) b_info offset 5m > 1e3", {"a", "b_info"}),
        ('absent(up{job="a"}) or (a unless b) and 0.5 * c', {"up", "a", "b", "c"}),
        ('{__name__=~"a|b",log="c"} == bool inf', {"a", "b"}),
    ],
)
def test_names_are_found_in_queries(query: str, names: set[str]) -> None:
    assert metrics_in(query) == names
