"""`refold policy test`, and a guarded run that commands resume and fork."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import refold
from refold.explorer.cli.main import run
from refold.policy import ApprovalNeeded, Policy, PolicyDenied

DESK = "name = 'desk'\n[[rule]]\nname = 'large'\ntool = 'refund'\nargs.eur.over = 100\nwhy = 'too much'"


@refold.tool(effect="write")
def refund(eur: int) -> int:
    return eur


@pytest.fixture
def recorded(log_path: Path) -> str:
    """A run that refunded 50, and whose refund of 500 was denied."""
    with refold.open() as log, log.run("desk", id="r-1", guard=Policy.parse(DESK)):
        refund(eur=50)
        with pytest.raises(PolicyDenied):
            refund(eur=500)
    return "r-1"


def test_policy_is_tested_on_recorded_runs(recorded: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


ASKING = DESK.replace("why =", "action = 'ask'\nwhy =")


def test_call_is_approved_and_denied_by_commands(log_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    questions = []
    with refold.open() as log:
        for number in (1, 2):
            with pytest.raises(ApprovalNeeded) as needed, log.run("desk", id=f"w-{number}", guard=Policy.parse(ASKING)):
                refund(eur=500 + number)
            questions.append(needed.value.question)
    assert run(["approvals"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [lines[0], lines[4]] == questions
    assert lines[3].startswith("  waits until 2")
    assert lines[1] == '  refund with {"eur": 501}'
    assert lines[2].startswith("  requested by policy desk, rule large at ")
    assert lines[2].endswith(": too much")
    assert run(["approve", questions[0], "--by", "ann", "--reason", "checked"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{questions[0]} is approved, says ann", "to go on: refold run resume w-1 --guard FILE"
    ]  # fmt: skip
    assert run(["deny", questions[1], "--by", "bob", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["decision"] == "rejected"
    assert run(["deny", questions[0]]) == 2
    assert "approved by ann: a question can be answered only once" in capsys.readouterr().err
    assert run(["approvals"]) == 0
    assert capsys.readouterr().out == "no call waits for an approval\n"
    assert run(["approvals", "--all", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["approval"]["decision"] for each in found] == ["approved", "rejected"]


def test_policy_that_asks_for_approval_is_no_denial(
    recorded: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "ask.toml"
    file.write_text(ASKING.replace("over = 100", "over = 10"))
    assert run(["policy", "test", str(file), recorded]) == 0
    assert "  step 1  tool refund  rule large asks a person: too much" in capsys.readouterr().out


def test_invalid_policy_file_names_the_remedy(
    recorded: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "desk.toml"
    file.write_text("name = 'desk'\n[budget]\ntoken = 7")
    assert run(["policy", "test", str(file), recorded]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "desk.toml" in line
    assert "token" in line
    assert "docs/guides/policy.md" in line
