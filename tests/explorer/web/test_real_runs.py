"""Runs of real models, imported from recorded conversations: the pages show every step of each."""

from __future__ import annotations

import gzip
import shutil
from itertools import islice
from pathlib import Path

import pytest

import refold
from refold.explorer.cli.main import run
from refold_tests.explored import explored

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
