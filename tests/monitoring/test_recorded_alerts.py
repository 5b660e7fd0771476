"""The alerts on real faults, as they were recorded (`make record-faults`): which one fires, from when to when."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from refold_tests.prometheus import ALERTS, METRICS, promtool
from refold_tests.scraped_metrics import RECORDED, Recording, in_notation, used_metrics

pytestmark = pytest.mark.outside
EVERY_S = 15
# A scrape comes up to an interval after the fact, and rules are evaluated as often.
SCRAPED_S = 15
WINDOW_S = 600
"""How long an alert fires on something that happened once."""
# What a worker of one log that folds everything has no series of, and what all recordings but one are older than.
ELSEWHERE = ("refold_sink_", "refold_standby_", "refold_supervisor_", "refold_receive_")
OTHERS = {name for name in METRICS if name.startswith(ELSEWHERE)} | {"refold_damaged_records"}
LASTING = ("topic_gone", "damaged_batches")
"""Faults that are not over when the recording ends."""
Rules = dict[str, dict[str, Any]]
WORKER = 'instance="worker:6066",job="refold"'


class Fault(NamedTuple):
    """A recorded fault. firing: the labels of the one alert that fires, once a series of it. for_s: how long it waits.
    noticed_s: within which the worker notices the beginning. until_s: when the fault is over for it, after the first
    scrape. unnoticed_s: within which the worker notices that."""

    recording: Recording
    firing: list[str]
    for_s: int
    noticed_s: int
    until_s: float
    unnoticed_s: int

    def expected(self) -> list[dict[str, Any]]:
        """What fires at times from the first scrape to the last: not where it may be either way."""
        cases: list[dict[str, Any]] = []
        begun_s = self.recording.begun_s
        for at_s in range(0, int(self.recording.end_s), EVERY_S):
            if at_s < begun_s + self.for_s or at_s > self.until_s + self.unnoticed_s + 2 * SCRAPED_S:
                firing: list[dict[str, Any]] = []
            elif begun_s + self.noticed_s + self.for_s + SCRAPED_S < at_s < self.until_s:
                firing = [{"labels": each, "value": 1} for each in self.firing]
            else:
                continue
            cases.append({"expr": 'ALERTS{alertstate="firing"}', "eval_time": f"{at_s}s", "exp_samples": firing})
        return cases


def fault(
    name: str, alert: str, severity: str, *more: str,
    for_s: int = 0, noticed_s: int = 30, once: bool = False, unnoticed_s: int = 30,
) -> Fault:  # fmt: skip
    """The fault in a file of that name. more: further labels of each series that fires. once: it happened, and was over
    at once; the alert looks back."""
    recording = Recording.read(RECORDED / f"{name}.yml")
    firing = [f'ALERTS{{alertname="{alert}",alertstate="firing",severity="{severity}",log="{name}"{each}}}'
              for each in more or ("",)]  # fmt: skip
    until_s = recording.begun_s + WINDOW_S if once else recording.over_s
    return Fault(recording, firing, for_s, noticed_s, until_s, unnoticed_s)


FAULTS = {
    "outage": fault("outage", "RefoldBrokerLost", "critical", f",{WORKER}", for_s=60, noticed_s=4, unnoticed_s=0),
    "topic_gone": fault(
        "topic_gone", "RefoldLogAbsent", "critical", ',topic="topic_gone.changes"', for_s=60, noticed_s=65
    ),
    "drifted": fault(
        "drifted", "RefoldTopicSettingsDrifted", "critical", ',topic="drifted.observations"',
        for_s=120, noticed_s=65, unnoticed_s=65,
    ),
    "foreign": fault("foreign", "RefoldForeignRecords", "warning", ',topic="schemas"', once=True),
    "dead_letter": fault("dead_letter", "RefoldDeadLetters", "warning", f',{WORKER},partition="0"', once=True),
    "held": fault("held", "RefoldTypesHeld", "warning", once=True),
    "pending": fault("pending", "RefoldTypeVersionsPending", "warning", once=True),
    "reducer_fails": fault("reducer_fails", "RefoldReducerFails", "warning", f",{WORKER}", once=True),
    "damaged": fault("damaged", "RefoldDamagedRecord", "critical", ',partition="1"', for_s=60),
    "damaged_batches": fault("damaged_batches", "RefoldDamagedBatches", "warning", ',topic="snapshots"', for_s=60),
    "lagging": fault(
        "lagging", "RefoldGroupLagging", "warning", ',partition="0"', ',partition="1"', for_s=900, unnoticed_s=70
    ),
}  # fmt: skip


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


@pytest.mark.parametrize("name", FAULTS)
def test_exactly_one_alert_fires_only_during_the_fault(name: str, tmp_path: Path) -> None:
    firing = [bool(each["exp_samples"]) for each in FAULTS[name].expected()]
    assert firing[0] is False
    assert firing.count(True) > 1
    assert name in LASTING or firing[-1] is False
    done = tried(tmp_path, FAULTS[name])
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", FAULTS)
def test_muted_rule_fails_it(name: str, tmp_path: Path) -> None:
    (alert,) = {each.split('"')[1] for each in FAULTS[name].firing}
    done = tried(tmp_path, FAULTS[name], lambda rules: rules[alert].update(expr="vector(0) > 1"))
    assert done.returncode != 0
    assert alert in done.stdout + done.stderr


def hasty(rules: Rules) -> None:
    rules["RefoldBrokerLost"]["for"] = "5s"


def late(rules: Rules) -> None:
    rules["RefoldBrokerLost"]["for"] = "3m"


def group_too(rules: Rules) -> None:
    rules["RefoldGroupLost"]["expr"] = "refold_group_out_seconds > 60"


def drift_too(rules: Rules) -> None:
    rules["RefoldTopicSettingsDrifted"]["expr"] = "max by (log, topic) (refold_topic_missing) > 0"


def lag_too(rules: Rules) -> None:
    rules["RefoldGroupLagging"] |= {"expr": "max by (log, partition) (refold_group_lag_records) > 10", "for": "1m"}


def forgetful(rules: Rules) -> None:
    rules["RefoldLogAbsent"]["expr"] = "max by (log, topic) (refold_topic_settings_drifted) == 1"


@pytest.mark.parametrize(
    ("name", "change", "named"),
    [
        pytest.param("outage", hasty, "RefoldBrokerLost", id="hasty"),
        pytest.param("outage", late, "RefoldBrokerLost", id="late"),
        pytest.param("outage", group_too, "RefoldGroupLost", id="group_too"),
        pytest.param("topic_gone", drift_too, "RefoldTopicSettingsDrifted", id="drift_too"),
        pytest.param("topic_gone", forgetful, "RefoldLogAbsent", id="forgetful"),
        pytest.param("damaged", lag_too, "RefoldGroupLagging", id="lag_too"),
    ],
)
def test_other_rules_fail_it(name: str, change: Callable[[Rules], None], named: str, tmp_path: Path) -> None:
    """A rule that fires at another time, or pages twice for the one fault."""
    done = tried(tmp_path, FAULTS[name], change)
    assert done.returncode != 0
    assert named in done.stdout + done.stderr


def test_worker_silent_about_the_outage_fails_it(tmp_path: Path) -> None:
    recording = FAULTS["outage"].recording
    scrapes = round(recording.end_s / recording.interval_s)
    said = {name: in_notation([1.0] * scrapes) if name.startswith("refold_broker_connected") else values
            for name, values in recording.values.items()}  # fmt: skip
    assert tried(tmp_path, FAULTS["outage"], series=said).returncode != 0
    killed = int(recording.begun_s / recording.interval_s)
    silent = {name: f"1x{killed} stale" if name.startswith("refold_") else values
              for name, values in recording.values.items()}  # fmt: skip
    assert tried(tmp_path, FAULTS["outage"], series=silent).returncode != 0


@pytest.mark.parametrize("name", FAULTS)
def test_no_series_ended(name: str) -> None:
    values = FAULTS[name].recording.values
    assert [series for series, each in values.items() if "stale" in each.split()] == []
    assert re.fullmatch(r"1x\d+", values[f"up{{{WORKER}}}"])


def test_series_used_by_alerts_are_recorded() -> None:
    """Where it is not: an alert is about a metric that is newer than the recordings, so `make record-faults`."""
    for each in FAULTS.values():
        assert used_metrics() - OTHERS <= {name.partition("{")[0] for name in each.recording.values}


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
