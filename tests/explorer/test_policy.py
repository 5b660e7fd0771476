"""`refold policy test`, and a guarded run that is resumed and forked by commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import refold
from refold.explorer.cli.main import run
from refold.policy import Policy, PolicyDenied

DESK = "name = 'desk'\n[[rule]]\nname = 'large'\ntool = 'refund'\nargs.eur.over = 100\nwhy = 'too much'"


@refold.tool(effect="write")
def refund(eur: int) -> int:
    return eur


@pytest.fixture
def recorded(log_path: Path) -> str:
    """A run that refunded 50, and was denied 500."""
    with refold.open() as log, log.run("desk", id="r-1", guard=Policy.parse(DESK)):
        refund(eur=50)
        with pytest.raises(PolicyDenied):
            refund(eur=500)
    return "r-1"


def test_a_policy_is_tested_on_recorded_runs(recorded: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    same, strict = tmp_path / "desk.toml", tmp_path / "strict.toml"
    same.write_text(DESK)
    strict.write_text("name = 'strict'\n[budget]\nwrite_calls = 0")
    assert run(["policy", "test", str(same), recorded]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "run r-1: 2 tool and model calls; policy desk would deny 0 that were made; 1 was denied when it ran",
        "  step 2  tool refund  rule large: too much (denied when it ran)",
    ]
    assert run(["policy", "test", str(strict), recorded]) == 1
    assert capsys.readouterr().out.splitlines()[1:] == [
        "  step 1  tool refund  rule budget.write_calls: 0 of 0 are used",
        "  step 2  tool refund  rule budget.write_calls: 1 of 0 are used (denied when it ran)",
    ]
    assert run(["policy", "test", str(strict), recorded, "--json"]) == 1
    [found] = json.loads(capsys.readouterr().out)
    assert [(each["step"], each["rule"], each["was_denied"]) for each in found["decisions"]] == [
        ("r-1#1", "budget.write_calls", False), ("r-1#2", "budget.write_calls", True),
    ]  # fmt: skip
    lenient = tmp_path / "lenient.toml"
    lenient.write_text("name = 'lenient'")
    assert run(["policy", "test", str(lenient), recorded]) == 0
    assert "allowed now (denied when it ran)" in capsys.readouterr().out


def test_a_file_that_is_no_policy_says_what_to_do(
    recorded: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "desk.toml"
    file.write_text("name = 'desk'\n[budget]\ntoken = 7")
    assert run(["policy", "test", str(file), recorded]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "desk.toml" in line
    assert "token" in line
    assert "docs/guides/policy.md" in line
