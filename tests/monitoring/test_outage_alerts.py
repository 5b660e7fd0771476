"""The alerts on a real outage, as it was recorded (`make record-outage`): which one fires, from when to when."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from refold_tests.outage import Recording, in_notation, used_metrics
from refold_tests.prometheus import ALERTS, METRICS, promtool

RECORDING = Recording.read()
EVERY_S = 15
# It is for a minute; the worker notices within 4 s, and the next scrape is up to an interval later.
FOR_S, NOTICED_S = 60, 15
BROKER_LOST = {
    "labels": 'ALERTS{alertname="RefoldBrokerLost",alertstate="firing",severity="critical",log="shop",'
    'instance="worker:6066",job="refold"}',
    "value": 1,
}
# What a worker of one log that folds everything has no series of.
OTHERS = {name for name in METRICS if name.startswith(("refold_sink_", "refold_standby_"))}
# And what an outage has no part in; the recording is older.
OTHERS |= {"refold_reducer_failures_total"}
Rules = dict[str, dict[str, Any]]


def expected() -> list[dict[str, Any]]:
    """What fires at times from the first scrape to the last: not where it may be either way."""
    cases: list[dict[str, Any]] = []
    for at_s in range(0, int(RECORDING.end_s), EVERY_S):
        if at_s < RECORDING.killed_s + FOR_S or at_s > RECORDING.back_s + 2 * NOTICED_S:
            firing: list[dict[str, Any]] = []
        elif RECORDING.killed_s + FOR_S + NOTICED_S < at_s < RECORDING.back_s:
            firing = [BROKER_LOST]
        else:
            continue
        cases.append({"expr": 'ALERTS{alertstate="firing"}', "eval_time": f"{at_s}s", "exp_samples": firing})
    return cases


def tried(
    folder: Path, series: dict[str, str], change: Callable[[Rules], object] = lambda _: None
) -> subprocess.CompletedProcess[str]:
    """promtool's judgement of the rules, changed as given, on series."""
    rules = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))
    change({rule["alert"]: rule for group in rules["groups"] for rule in group["rules"]})
    (folder / "alerts.yml").write_text(yaml.safe_dump(rules), encoding="utf-8")
    test = {
        "interval": f"{RECORDING.interval_s:.0f}s",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": expected(),
    }
    given = {"rule_files": ["alerts.yml"], "evaluation_interval": "5s", "tests": [test]}
    (folder / "tests.yml").write_text(yaml.safe_dump(given), encoding="utf-8")
    return promtool("test", "rules", folder / "tests.yml")


def test_one_alert_fires_during_the_outage_and_none_before_or_after(tmp_path: Path) -> None:
    firing = [each["eval_time"] for each in expected() if each["exp_samples"]]
    assert len(firing) > 5
    done = tried(tmp_path, RECORDING.values)
    assert done.returncode == 0, done.stdout + done.stderr


def mute(rules: Rules) -> None:
    rules["RefoldBrokerLost"]["expr"] = "vector(0) > 1"


def hasty(rules: Rules) -> None:
    rules["RefoldBrokerLost"]["for"] = "5s"


def late(rules: Rules) -> None:
    rules["RefoldBrokerLost"]["for"] = "3m"


def group_too(rules: Rules) -> None:
    rules["RefoldGroupLost"]["expr"] = "refold_group_out_seconds > 60"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (mute, "RefoldBrokerLost"),
        (hasty, "RefoldBrokerLost"),
        (late, "RefoldBrokerLost"),
        (group_too, "RefoldGroupLost"),
    ],
)
def test_other_rules_fail_it(change: Callable[[Rules], None], named: str, tmp_path: Path) -> None:
    """A rule that does not fire, or fires at another time, or pages twice for the one fault."""
    done = tried(tmp_path, RECORDING.values, change)
    assert done.returncode != 0
    assert named in done.stdout + done.stderr


def test_a_worker_that_says_nothing_of_the_outage_fails_it(tmp_path: Path) -> None:
    scrapes = round(RECORDING.end_s / RECORDING.interval_s)
    said = {name: in_notation([1.0] * scrapes) if name.startswith("refold_broker_connected") else values
            for name, values in RECORDING.values.items()}  # fmt: skip
    assert tried(tmp_path, said).returncode != 0
    killed = int(RECORDING.killed_s / RECORDING.interval_s)
    silent = {name: f"1x{killed} stale" if name.startswith("refold_") else values
              for name, values in RECORDING.values.items()}  # fmt: skip
    assert tried(tmp_path, silent).returncode != 0


def test_no_series_ended() -> None:
    for name, values in RECORDING.values.items():
        assert "stale" not in values.split(), name
    assert re.fullmatch(r"1x\d+", RECORDING.values['up{instance="worker:6066",job="refold"}'])


def test_what_alerts_are_about_is_recorded() -> None:
    """Where it is not: an alert is about another metric now, so `make record-outage`."""
    assert used_metrics() - OTHERS <= {name.partition("{")[0] for name in RECORDING.values}


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
