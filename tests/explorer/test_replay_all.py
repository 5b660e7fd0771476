"""`refold run replay --all`: compare every run of a log with its own replay."""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.agents.vault import Vault, run_key
from refold_tests.recorded_runs import random_run, write

Ask = Callable[..., Any]
CODE = """
def agent(run):
    run.state["answer"] = run.model(len, "four")
    return run.state["answer"]
"""


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An agent's module, which can be imported from the test's working folder."""
    path = tmp_path / "agent_of_all.py"
    path.write_text(CODE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield path
    sys.modules.pop("agent_of_all", None)


def record(code: Path, *runs: str) -> None:
    agent = importlib.import_module(code.stem).agent
    with refold.open() as log:
        for name in runs:
            log.run("of-all", id=name, entry=f"{code.stem}:agent").drive(agent)


def test_each_run_is_replayed_by_its_recorded_code(code: Path, ask: Ask) -> None:
    record(code, "a", "b")
    with refold.open() as log:
        log.observe("run/plain", {"agent": "elsewhere"})
    text = ask("run", "replay", "--all", "--times", 2)
    assert "replayed 3 runs of 2 steps: 2 with their code, 1 stepped through without" in text
    assert [each["times"] for each in ask("run", "replay", "--all", "--times", 2, "--json")] == [2, 2, 1]
    assert "0 with their code, 3 stepped through" in ask("run", "replay", "--all", "--alone")


def test_diverging_runs_are_listed(code: Path, ask: Ask) -> None:
    record(code, "a", "b")
    code.write_text(CODE.replace("return run", "return -run"), encoding="utf-8")
    del sys.modules[code.stem]
    importlib.invalidate_caches()
    text = ask("run", "replay", "--all", status=1)
    assert "  0 equal to what was recorded" in text
    assert "  2 not: `refold run replay RUN` says more about a run" in text
    assert text.count("first differs at the end") == 2
    assert [each["same"] for each in ask("run", "replay", "--all", "--json", status=1)] == [False, False]


def test_missing_code_is_not_a_replay(code: Path, ask: Ask) -> None:
    record(code, "a")
    code.unlink()
    del sys.modules[code.stem]
    importlib.invalidate_caches()
    text = ask("run", "replay", "--all", status=1)
    assert "agent_of_all" in text
    assert "  1 not replayed: --alone steps through recordings without code" in text
    (found,) = ask("run", "replay", "--all", "--json", status=1)
    assert (found["run"], found["same"], found["expired"]) == ("a", None, False)
    assert "1 equal to what was recorded" in ask("run", "replay", "--all", "--alone")


def test_hash_that_does_not_match_its_content_is_found(ask: Ask, seed: int) -> None:
    with refold.open() as log:
        write(log, random_run(random.Random(seed), "forged", 3), log.vault)
        write(log, random_run(random.Random(seed + 1), "sound", 3), log.vault)
    assert "2 equal to what was recorded" in ask("run", "replay", "--all", "--alone")
    with refold.open() as log:
        log.observe("step/forged#2", {"turn_hash": "0" * 64})
    text = ask("run", "replay", "--all", "--alone", status=1)
    assert "some recorded hashes do not match their steps" in text
    found = ask("run", "replay", "--all", "--alone", "--json", status=1)
    assert {each["run"]: each["same"] for each in found} == {"forged": False, "sound": True}


def test_observed_run_without_a_hash_cannot_mismatch(ask: Ask) -> None:
    with refold.open() as log:
        log.observe("run/plain", {"agent": "elsewhere"})
        log.observe("step/plain#1", {"run": "plain", "name": "load", "status": "committed", "outcome": "succeeded"})
    text = ask("run", "replay", "--all")
    assert "replayed 1 run of 1 step: 0 with their code, 1 stepped through without" in text
    assert "  1 equal to what was recorded" in text


def test_expired_runs_are_counted_separately(ask: Ask, seed: int) -> None:
    with refold.open() as log:
        write(log, random_run(random.Random(seed), "gone", 2), log.vault)
        assert isinstance(log.vault, Vault)
        log.vault.ring.destroy(run_key("gone"))
    text = ask("run", "replay", "--all", "--alone")
    assert "1 not replayed: the content has expired" in text


def test_one_run_or_all_of_them(ask: Ask) -> None:
    ask("init")
    assert "no run is recorded in this log yet" in ask("run", "replay", "--all")
    assert "name one run, or give --all" in ask("run", "replay", status=2)
    assert "name one run, or give --all" in ask("run", "replay", "a", "--all", status=2)
    assert "--agent is for one run" in ask("run", "replay", "--all", "--agent", "a:b", status=2)
