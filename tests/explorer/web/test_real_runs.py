"""Runs of real models, imported from recorded conversations or received as spans: the pages show every step of each."""

from __future__ import annotations

import gzip
import shutil
from itertools import islice
from pathlib import Path

import pytest

import refold
from refold.agents.adapters.otlp.requests import JSON, decode
from refold.explorer.cli.main import run
from refold_tests.explored import explored
from refold_tests.otlp_requests import record
from refold_tests.tree import ROOT

pytestmark = pytest.mark.outside

CONVERSATIONS = 2


@pytest.fixture
def swe_agent_file(sessions_folder: Path) -> Path:
    return sessions_folder / "swe-agent__test-repo-i1.traj.gz"


@pytest.mark.parametrize("name", ["tau_bench_file", "swe_agent_file"])
def test_every_step_of_a_real_run_is_shown(
    name: str, request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source: Path = request.getfixturevalue(name)
    file = tmp_path / source.name.removesuffix(".gz")
    with gzip.open(source, "rt", encoding="utf-8") as stream, file.open("w", encoding="utf-8") as copy:
        if file.suffix == ".jsonl":
            copy.writelines(islice(stream, CONVERSATIONS))
        else:
            shutil.copyfileobj(stream, copy)
    url = f"file:{tmp_path / 'log'}"
    assert run(["import", str(file), "--format", "auto", "--log", url]) == 0
    capsys.readouterr()
    with refold.open(url, read_only=True) as log:
        recorded = [log.recording(row.run) for row in log.runs()]
    assert sum(len(each.steps) for each in recorded) > 3
    with explored(url) as pages:
        for each in recorded:
            assert pages.get(f"/story/{each.run}").status == 200
            for step in each.steps:
                page = pages.get(f"/run/{each.run}?step={step.number}")
                assert page.status == 200, page.text[:2000]
                for call in step.calls:
                    assert call.asked.name in page.text
                for choice in (call.asked.request["choice"] for call in step.calls if call.asked.kind == "decide"):
                    assert " ".join(str(choice).split())[:80] in page.text


def test_page_of_a_received_run_promises_nothing_that_spans_do_not_say(tmp_path: Path) -> None:
    """Its steps are no entities, and what it read is not known."""
    url = f"file:{tmp_path / 'log'}"
    sample = ROOT / "tests" / "agents" / "samples" / "otlp_gen_ai.jsonl"
    with refold.open(url) as log:
        record(log, [span for line in sample.read_bytes().splitlines() for span in decode(line, JSON)[0]])
        [run_id, *_] = [row.run for row in log.runs() if any(each.calls for each in log.recording(row.run).steps)]
        steps = log.recording(run_id).steps
    with explored(url) as pages:
        for step in steps:
            page = pages.get(f"/run/{run_id}?step={step.number}")
            assert "The spans of the run do not say what it read." in page.text
            for absent in ("⚠", "there is no", "the step as an entity", "refold knew", "served from a recording"):
                assert absent not in page.text, page.text
