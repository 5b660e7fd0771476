"""The alerts on real faults, as they were recorded (`make record-outage`): which one fires, from when to when."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from refold_tests.outage import OUTAGE, TOPIC_GONE, Recording, in_notation, used_metrics
from refold_tests.prometheus import ALERTS, METRICS, promtool

EVERY_S = 15
# Each alert is for a minute, and a scrape comes up to an interval after the fact.
FOR_S, SCRAPED_S = 60, 15
# What a worker of one log that folds everything has no series of.
OTHERS = {name for name in METRICS if name.startswith(("refold_sink_", "refold_standby_"))}
Rules = dict[str, dict[str, Any]]


class Fault(NamedTuple):
    """A recorded fault. firing: the one alert that fires. noticed_s: within which the worker notices it."""

    recording: Recording
    firing: str
    noticed_s: int

    def expected(self) -> list[dict[str, Any]]:
        """What fires at times from the first scrape to the last: not where it may be either way."""
        cases: list[dict[str, Any]] = []
        begun_s, over_s = self.recording.begun_s, self.recording.over_s
        for at_s in range(0, int(self.recording.end_s), EVERY_S):
            if at_s < begun_s + FOR_S or at_s > over_s + 2 * SCRAPED_S:
                firing: list[dict[str, Any]] = []
            elif begun_s + self.noticed_s + FOR_S + SCRAPED_S < at_s < over_s:
                firing = [{"labels": self.firing, "value": 1}]
            else:
                continue
            cases.append({"expr": 'ALERTS{alertstate="firing"}', "eval_time": f"{at_s}s", "exp_samples": firing})
        return cases


OUTAGE_FAULT = Fault(
    Recording.read(OUTAGE),
    'ALERTS{alertname="RefoldBrokerLost",alertstate="firing",severity="critical",log="shop",'
    'instance="worker:6066",job="refold"}',
    noticed_s=4,
)
GONE_FAULT = Fault(
    Recording.read(TOPIC_GONE),
    'ALERTS{alertname="RefoldLogAbsent",alertstate="firing",severity="critical",log="shop",topic="shop.changes"}',
    noticed_s=65,
)
FAULTS = [pytest.param(OUTAGE_FAULT, id="outage"), pytest.param(GONE_FAULT, id="topic_gone")]


def tried(
    folder: Path, fault: Fault, change: Callable[[Rules], object] = lambda _: None, series: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """promtool's judgement of the rules, changed as given, on a fault's series or on others."""
    rules = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))
    change({rule["alert"]: rule for group in rules["groups"] for rule in group["rules"]})
    (folder / "alerts.yml").write_text(yaml.safe_dump(rules), encoding="utf-8")
    test = {
        "interval": f"{fault.recording.interval_s:.0f}s",
        "input_series": [
            {"series": name, "values": values} for name, values in (series or fault.recording.values).items()
        ],
        "promql_expr_test": fault.expected(),
    }
    given = {"rule_files": ["alerts.yml"], "evaluation_interval": "5s", "tests": [test]}
    (folder / "tests.yml").write_text(yaml.safe_dump(given), encoding="utf-8")
    return promtool("test", "rules", folder / "tests.yml")


@pytest.mark.parametrize("fault", FAULTS)
def test_one_alert_fires_during_the_fault_and_none_before_or_after(fault: Fault, tmp_path: Path) -> None:
    firing = [each["eval_time"] for each in fault.expected() if each["exp_samples"]]
    assert len(firing) > 1
    done = tried(tmp_path, fault)
    assert done.returncode == 0, done.stdout + done.stderr


def mute(rules: Rules) -> None:
    rules["RefoldBrokerLost"]["expr"] = "vector(0) > 1"


def hasty(rules: Rules) -> None:
    rules["RefoldBrokerLost"]["for"] = "5s"


def late(rules: Rules) -> None:
    rules["RefoldBrokerLost"]["for"] = "3m"


def group_too(rules: Rules) -> None:
    rules["RefoldGroupLost"]["expr"] = "refold_group_out_seconds > 60"


def drift_too(rules: Rules) -> None:
    rules["RefoldTopicSettingsDrifted"]["expr"] = "max by (log, topic) (refold_topic_missing) > 0"


def forgetful(rules: Rules) -> None:
    rules["RefoldLogAbsent"]["expr"] = "max by (log, topic) (refold_topic_settings_drifted) == 1"


@pytest.mark.parametrize(
    ("fault", "change", "named"),
    [
        (OUTAGE_FAULT, mute, "RefoldBrokerLost"),
        (OUTAGE_FAULT, hasty, "RefoldBrokerLost"),
        (OUTAGE_FAULT, late, "RefoldBrokerLost"),
        (OUTAGE_FAULT, group_too, "RefoldGroupLost"),
        (GONE_FAULT, drift_too, "RefoldTopicSettingsDrifted"),
        (GONE_FAULT, forgetful, "RefoldLogAbsent"),
    ],
)
def test_other_rules_fail_it(fault: Fault, change: Callable[[Rules], None], named: str, tmp_path: Path) -> None:
    """A rule that does not fire, or fires at another time, or pages twice for the one fault."""
    done = tried(tmp_path, fault, change)
    assert done.returncode != 0
    assert named in done.stdout + done.stderr


def test_a_worker_that_says_nothing_of_the_outage_fails_it(tmp_path: Path) -> None:
    recording = OUTAGE_FAULT.recording
    scrapes = round(recording.end_s / recording.interval_s)
    said = {name: in_notation([1.0] * scrapes) if name.startswith("refold_broker_connected") else values
            for name, values in recording.values.items()}  # fmt: skip
    assert tried(tmp_path, OUTAGE_FAULT, series=said).returncode != 0
    killed = int(recording.begun_s / recording.interval_s)
    silent = {name: f"1x{killed} stale" if name.startswith("refold_") else values
              for name, values in recording.values.items()}  # fmt: skip
    assert tried(tmp_path, OUTAGE_FAULT, series=silent).returncode != 0


@pytest.mark.parametrize("fault", FAULTS)
def test_no_series_ended(fault: Fault) -> None:
    for name, values in fault.recording.values.items():
        assert "stale" not in values.split(), name
    assert re.fullmatch(r"1x\d+", fault.recording.values['up{instance="worker:6066",job="refold"}'])


def test_what_alerts_are_about_is_recorded() -> None:
    """Where it is not: an alert is about a metric that is newer than the recordings, so `make record-outage`."""
    recorded = {name.partition("{")[0] for each in (OUTAGE_FAULT, GONE_FAULT) for name in each.recording.values}
    assert used_metrics() - OTHERS <= recorded


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([1.0, 1.0, 1.0, 0.0], "1x2 0"),
        ([None, None, 2.5, 2.5], "_ _ 2.5x1"),
        ([1.0, None, None, 1.0], "1 stale _ 1"),
        ([12_345_678_901.0], "1.2e+10"),
    ],
)
def test_values_in_promtools_notation(values: list[float | None], text: str) -> None:
    assert in_notation(values) == text
