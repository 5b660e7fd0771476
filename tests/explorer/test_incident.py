"""docs/INCIDENT.md, followed word by word: on a log in a folder, and on Kafka."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

import refold
from refold.agents.journal.chain import broken
from refold.agents.keys.master import MASTER_ENVIRONMENT
from refold.explorer.demo import desk
from refold_tests.brokers import SharedKafka
from refold_tests.pages import run_page
from refold_tests.tree import ROOT

PAGE = ROOT / "docs" / "INCIDENT.md"
MASTER = base64.b64encode(bytes(range(32))).decode()


def test_incident_on_a_file_log(tmp_path: Path) -> None:
    follow(tmp_path, {"REFOLD_LOG": f"file:{tmp_path / 'log'}"})


def test_incident_on_kafka(kafka: SharedKafka, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {
        "REFOLD_LOG": f"kafka://{kafka.bootstrap}/{prefix}?partitions=2",
        MASTER_ENVIRONMENT: MASTER,
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    follow(tmp_path, settings)


def follow(folder: Path, environment: dict[str, str]) -> None:
    """Run the commands of the page, and check their results."""
    assert run_page(PAGE, folder, environment) == 12
    with refold.open(environment["REFOLD_LOG"], read_only=True) as log:
        failed = log.recording(desk.RUN)
        assert (failed.outcome, failed.steps[2].delta) == ("failed", (["set", ["cents"], 1998],))
        for child, at in (("incident-1-what-if", 3), ("incident-1-mended", 2)):
            run = log.recording(child)
            assert (run.parent, run.forked_at, run.outcome, run.output) == (
                desk.RUN,
                at,
                "succeeded",
                {"refunded": 1999},
            )
            assert list(broken(run)) == []
    golden = json.loads((folder / "golden" / "one-cent-short.golden.json").read_text(encoding="utf-8"))
    assert "1998" in json.dumps(golden)
