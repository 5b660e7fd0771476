"""`refold heal`, and `refold demo --heal` on both logs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import refold
from refold.agents.heal.healings import healings
from refold.agents.supervise.listing import agents
from refold.explorer.cli.main import run
from refold_tests.brokers import SharedKafka
from refold_tests.explored import explored
from refold_tests.stuck_agent import failed, paid, placed, stuck
from refold_tests.supervised import now


@pytest.fixture
def folder(log_path: Path, tmp_path: Path) -> Path:
    """The agent's folder; the log has its run `r`, which its loop breaker stopped."""
    placed(tmp_path / "agent")
    with refold.open() as log:
        stuck(log, tmp_path / "agent", "r")
    return tmp_path / "agent"


def heal(folder: Path, *arguments: str) -> int:
    return run(["heal", *arguments, "--remedies", str(folder / "heal.toml"), "--agent", f"{folder / 'agent.py'}:agent"])


def test_plan_names_the_problem_and_the_remedies(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert heal(folder, "r") == 1
    options = f"--remedies {folder}/heal.toml --agent {folder}/agent.py:agent"
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "run r of payer: failed",
        "loop  the calls of look gave the same results 3 times in a row; the loop breaker of policy night denied the "
        "next one in step 8",
        "  last good step  2",
    ]
    assert lines[-4:] == [
        "what could be done, in this order:",
        "  look again (retry): go on after step 2",
        "  tell it to stop (change): go on after step 2",
        f"to do it: refold heal r --apply {options}",
    ]
    assert heal(folder, "r", "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["failure"], [each["remedy"] for each in found["remedies"]]) == (
        "loop look", ["look again", "tell it to stop"],
    )  # fmt: skip
    named = [each for finding in found["findings"] for each in finding["observations"]]
    assert named
    with refold.open(read_only=True) as log:
        assert all(log.port.find(bytes.fromhex(each)) for each in named)
        assert healings(log) == []


def test_run_is_healed_reported_and_kept(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert heal(folder, "r", "--apply") == 0
    said = capsys.readouterr().out
    assert "refuted   the copy does not satisfy outcome=succeeded" in said
    assert "healed    run r.2.continued succeeded" in said
    assert len(paid(folder)) == 1
    assert heal(folder, "r") == 0
    said = capsys.readouterr().out
    assert said.endswith("\nit was healed by the remedy 'tell it to stop': run r.2.continued succeeded\n")
    assert "could be done" not in said
    assert run(["heal", "--report"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.split(r"  +", lines[1])[:4] == ["loop look", "1", "1", "0"]
    assert lines[1].endswith("look again: 0 of 1, tell it to stop: 1 of 1")
    assert run(["heal", "--report", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["status"] for each in found["healings"]] == ["refuted", "healed"]
    monkeypatch.chdir(tmp_path)
    assert heal(folder, "r", "--keep") == 0
    assert capsys.readouterr().out.startswith("golden/healed-r.golden.json: 4 steps, expects outcome=succeeded; pay=1")
    assert run(["golden", "run", "--agent", f"{folder / 'agent.py'}:agent"]) == 0
    assert heal(folder, "r", "--keep") == 2
    assert len(paid(folder)) == 1


def test_several_healings_are_counted_by_failure_and_each_is_kept(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`r` is healed by another prompt, after it was left to a person; `down` by another try. The continuation of
    `broke` fails, and is healed then."""
    plan = folder / "heal.toml"
    plan.write_text(plan.read_text().replace('do = "retry"', 'do = "retry"\nanswers.pay = "paid"'))
    with refold.open() as log:
        stuck(log, folder, "broke")
        failed(log, folder, "down")
    (folder / "down").unlink()
    assert heal(folder, "down", "--apply") == 0
    (folder / "broke").touch()
    assert heal(folder, "broke", "--apply") == 1
    (folder / "broke").unlink()
    kept = plan.read_text()
    plan.write_text(f"attempts = 1\n{kept}")
    assert heal(folder, "r", "--apply") == 1
    assert "stopped   1 of 1 attempts for a run are used up" in capsys.readouterr().out
    plan.write_text(kept)
    assert [heal(folder, run, "--apply") for run in ("broke", "broke.2.continued", "r")] == [2, 0, 0]
    capsys.readouterr()
    assert run(["heal", "--report"]) == 0
    rows = [re.split(r"  +", line) for line in capsys.readouterr().out.splitlines()[1:]]
    assert [row[:4] + row[6:] for row in rows] == [
        ["loop look", "2", "1", "0", "look again: 0 of 2, tell it to stop: 1 of 2"],
        ["error builtins.ConnectionError", "1", "1", "0", "look again: 1 of 1"],
        ["error builtins.OSError", "1", "1", "0", "look again: 1 of 1"],
    ]
    assert run(["heal", "--report", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    for field in ("input_tokens", "output_tokens", "cost_usd"):
        counted = sum(each[field] or 0 for each in found["failures"])
        assert counted == pytest.approx(sum(each[field] or 0 for each in found["healings"])) != 0
    monkeypatch.chdir(tmp_path)
    assert [heal(folder, run, "--keep") for run in ("r", "down", "broke")] == [0, 0, 0]
    files = sorted(path.name for path in (tmp_path / "golden").iterdir())
    assert files == ["healed-broke.golden.json", "healed-down.golden.json", "healed-r.golden.json"]
    assert run(["golden", "run", "--agent", f"{folder / 'agent.py'}:agent"]) == 0
    assert sorted(key.split(":")[0] for key in paid(folder)) == ["broke", "down", "r"]


def test_run_that_only_a_person_approved_is_kept_without_its_failure(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is resumed without a copy, so its own recording begins with the failure."""
    (folder / "heal.toml").write_text("[[remedy]]\nname = 'hand it over'\ndo = 'ask'\n")
    with refold.open() as log:
        failed(log, folder, "down")
    (folder / "down").unlink()
    assert heal(folder, "down", "--apply") == 1
    with refold.open(read_only=True) as log:
        [question] = log.questions()
    assert run(["approve", question.id]) == 0
    assert heal(folder, "down", "--apply") == 0
    monkeypatch.chdir(tmp_path)
    assert heal(folder, "down", "--keep") == 0
    capsys.readouterr()
    code = f"{folder / 'agent.py'}:agent"
    assert run(["golden", "run", "--agent", code]) == 0, capsys.readouterr().out
    (folder / "agent.py").write_text((folder / "agent.py").read_text().replace('or "look"', 'and "look"'))
    assert run(["golden", "run", "--agent", code]) == 1, "it does not pay"
    assert len(paid(folder)) == 1


@pytest.mark.parametrize(("arguments", "said"), [
    pytest.param(["heal"], "name the run", id="no run"),
    pytest.param(["heal", "nobody"], "no run nobody is in this log", id="no such run"),
    pytest.param(["heal", "r", "--keep"], "run r was not healed", id="nothing to keep"),
    pytest.param(["heal", "r", "--remedies", "nowhere.toml"], "cannot be read", id="no plan"),
    pytest.param(["heal", "r", "--apply"], "was begun under the policy night", id="no policy"),
])  # fmt: skip
def test_impossible_request_reports_the_reason(
    folder: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    assert said in capsys.readouterr().err


def test_agents_file_holds_the_remedies(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = folder / "refold.toml"
    agents = '[agents.NAME]\ncommand = ["true"]\npolicy = "policy.toml"\n'
    remedies = "\n[[agents.NAME.heal.remedy]]\nname = 'a'\ndo = 'retry'\n"
    file.write_text((agents + remedies).replace("NAME", "payer") + agents.replace("NAME", "other"))
    assert run(["heal", "r", "--file", str(file)]) == 1
    assert "  a (retry): go on after step 2" in capsys.readouterr().out
    for text, said in (
        (agents.replace("NAME", "payer"), "agents.payer.heal: it declares no remedies"),
        (agents.replace("NAME", "x") + agents.replace("NAME", "y"), "it declares no agent payer, but x, y"),
        (agents.replace("NAME", "x") + "heal.attempts = 0", "agents.x.heal: attempts and attempts_per_hour"),
    ):
        file.write_text(text)
        assert run(["heal", "r", "--file", str(file)]) == 2
        assert said in capsys.readouterr().err
    assert run(["heal", "r", "--file", str(file), "--remedies", "heal.toml"]) == 2


def test_answered_question_names_the_next_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = folder / "heal.toml"
    plan.write_text(plan.read_text().replace("answers.pay", "approve = true\nanswers.pay"))
    assert heal(folder, "r", "--apply") == 1
    with refold.open(read_only=True) as log:
        [question] = log.questions()
    capsys.readouterr()
    assert run(["approve", question.id]) == 0
    assert "to go on: refold heal r --apply" in capsys.readouterr().out
    assert heal(folder, "r", "--apply") == 0
    assert len(paid(folder)) == 1


def test_page_of_healings_shows_each_attempt(folder: Path, log_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"file:{log_path}"
    with explored(url) as pages:
        assert "No run was healed yet" in pages.get("/healings").text
    plan = folder / "heal.toml"
    plan.write_text(plan.read_text().replace("answers.pay", "approve = true\nanswers.pay"))
    assert heal(folder, "r", "--apply") == 1
    with explored(url) as pages, explored(url, can_write=True) as writable:
        page = pages.get("/healings")
        assert "loop look 1 0 0" in page.text
        assert "refuted the copy does not satisfy outcome=succeeded" in page.text
        assert "waiting refold approve r#2.heal.2" in page.text
        assert page.body.count("/do/approve") == 0
        assert writable.get("/healings").body.count("/do/approve") == 1
        assert "of r Failures" in pages.get("/healings?run=r").text
        assert "No run was healed yet" in pages.get("/healings?run=other").text
        [command] = page.commands
        capsys.readouterr()
        assert run([*command, "--json"]) == 0
        assert [each["status"] for each in json.loads(capsys.readouterr().out)["healings"]] == ["refuted", "waiting"]


def demonstrated(folder: Path, url: str, capsys: pytest.CaptureFixture[str], agent: str = "price-watch") -> None:
    assert run(["demo", "--heal", "--folder", str(folder), *(["--log", url] if url else [])]) == 0
    said = capsys.readouterr().out
    assert "stopped: policy night, rule 'loop': tool fetch is denied" in said
    assert f"{agent}: ended: its run was healed by the remedy 'say what to do with a page that was read'" in said
    assert "The list was published once: " in said
    assert (folder / "published.jsonl").read_text() == '{"kettle": 20, "toaster": 35, "mixer": 60}\n'
    with refold.open(url or f"file:{folder / 'log'}", read_only=True) as log:
        [row] = [each for each in agents(log, now()) if each.name == agent]
        statuses = [change["after"] for change in row.transitions if change["after"] != "running"]
        assert statuses == ["starting", "failed", "healing", "ended"]
        refuted, healed = (each for each in healings(log) if row.run.startswith(each.run))
        assert (refuted.status, healed.status, healed.healed_by) == ("refuted", "healed", row.run)
        assert log.recording(healed.run).outcome == "failed"
        assert log.recording(row.run).output == {"published": 3}


@pytest.mark.outside
def test_demo_heals(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "published.jsonl").write_text("of an earlier demo\n")
    demonstrated(tmp_path / "demo", "", capsys)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").touch()
    assert run(["demo", "--heal", "--folder", str(tmp_path / "other")]) == 2


@pytest.mark.outside
def test_demo_heals_on_kafka(
    kafka: SharedKafka, prefix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    demonstrated(tmp_path / "demo", f"kafka://{kafka.bootstrap}/{prefix}", capsys)
