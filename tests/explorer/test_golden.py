"""`refold golden`: a recorded run becomes a test, in files and on the command line."""

from __future__ import annotations

import inspect
import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

import refold
from refold.explorer.cli.main import run
from refold_tests.command import Done, environment
from refold_tests.tree import ROOT

EXAMPLE = ROOT / "docs" / "examples" / "golden"
Golden = Callable[..., Done]
BAD = ("--known-bad", "it refunded the first payment too", "--expect", "refund<=3", "--expect", "output.refund=150")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example's folder, with the log that its script creates: a run of its old agent."""
    folder = tmp_path_factory.mktemp("desk")
    for each in EXAMPLE.glob("*.py"):
        shutil.copy(each, folder)
    script = folder / "record.py"
    script.write_text(script.read_text().replace('id="r-17"', 'id="r-17", entry="new_agent:answer"'))
    command = [sys.executable, script.name]
    done = subprocess.run(
        command, cwd=folder, env=environment(more={"PYTHONSAFEPATH": ""}), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def desk(recorded: Path, tmp_path: Path) -> Path:
    """A copy of that folder."""
    return Path(shutil.copytree(recorded, tmp_path / "desk"))


@pytest.fixture
def golden(desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Golden:
    """Run `refold golden ...` in the desk's folder. The agents that it imports are removed after the test."""
    monkeypatch.chdir(desk)
    for name in list(os.environ):
        if name.startswith("REFOLD_"):
            monkeypatch.delenv(name)
    path, loaded = list(sys.path), set(sys.modules)

    def call(*arguments: str) -> Done:
        capsys.readouterr()
        status = run(["golden", *arguments])
        said = capsys.readouterr()
        sys.path[:] = path
        for name in set(sys.modules) - loaded:
            if str(desk) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]
        return Done(status, said.out, said.err)

    return call


def test_run_becomes_a_test_that_needs_no_log(desk: Path, golden: Golden) -> None:
    added = golden("add", "r-1", "--name", "paid", *BAD, "--describe", "Paid four times.", "--json")
    assert added.json["file"] == "golden/paid.golden.json"
    with refold.open(f"file:{desk / '.refold'}", read_only=True) as log:
        kept = log.recording("r-17")
        assert log.state("run/r-17").fields["golden"] == "paid"
        assert json.loads((desk / "golden" / "paid.golden.json").read_text())["recorded"]["hash"] == kept.hash
    shutil.rmtree(desk / ".refold")

    done = golden("run")
    assert done.status == 0, done.out
    assert done.out.splitlines() == ["paid: new_agent:answer does what is expected", "all 1 passed"]

    old = golden("run", "--agent", "old_agent.py:answer")
    assert old.status == 1
    assert "  found     made 4 calls of refund" in old.out.splitlines()
    assert old.out.splitlines()[-1] == "1 golden trace, 1 failed"
    (told,) = golden("run", "golden/paid.golden.json", "--agent", "old_agent:answer", "--json").json
    assert not told["passed"]
    assert [each["expect"] for each in told["unmet"]] == ["refund<=3", "output.refund=150"]
    assert told["hash"] == told["recorded_hash"]

    (listed,) = golden("list", "--json").json
    assert (listed["name"], listed["run"], listed["steps"]) == ("paid", "r-17", 4)
    assert "it refunded the first payment too" in golden("list").out


def test_run_without_expectations_is_expected_exactly(golden: Golden) -> None:
    golden("add", "r-17", "--entry", "old_agent:answer")
    assert golden("run").status == 0
    done = golden("run", "--agent", "new_agent:answer")
    assert done.status == 1
    assert "  parts from the recording at step 1 (look up)" in done.out.splitlines()


def test_edit_is_signed_or_refused(desk: Path, golden: Golden) -> None:
    golden("add", "r-17", "--name", "paid", *BAD)
    path = desk / "golden" / "paid.golden.json"
    path.write_text(path.read_text().replace("refund<=3", "refund<=2"))
    done = golden("run")
    assert done.status == 1
    assert "refold golden sign golden/paid.golden.json" in done.out
    assert golden("sign", str(path)).status == 0
    assert "made 3 calls of refund" in golden("run").out
    assert "was signed already" in golden("sign", str(path)).out
    path.write_text(path.read_text().replace('"refund<=2", ', "").replace("output.refund=150", "output.refund=200"))
    assert "satisfies every expectation" in golden("sign", str(path)).refused()


def test_agents_output_is_not_part_of_the_answer(desk: Path, golden: Golden) -> None:
    golden("add", "r-17", "--name", "paid", *BAD)
    agent = desk / "new_agent.py"
    agent.write_text(agent.read_text().replace("    total", "    print('hello')\n    total") + "\nprint('loaded')\n")
    assert golden("run", "--json").json[0]["passed"]


def test_secrets_are_removed_by_a_function(desk: Path, golden: Golden) -> None:
    (desk / "privacy.py").write_text(
        "import json\n\ndef redact(tree):\n    return json.loads(json.dumps(tree).replace('c-1', '[customer]'))\n"
    )
    golden("add", "r-17", "--name", "paid", "--redact", "privacy:redact", *BAD)
    assert "c-1" not in (desk / "golden" / "paid.golden.json").read_text()
    assert golden("run").status == 0
    golden("add", "r-17", "--name", "exact", "--redact", "privacy:redact", "--entry", "old_agent:answer")
    assert golden("run", "golden/exact.golden.json").status == 0


def test_secrets_are_removed_by_the_standard_rules(desk: Path, golden: Golden) -> None:
    def agent(run: refold.Run) -> None:
        run.state["to"] = run.input["mail"]
        run.decide(f"write to {run.input['mail']}")

    with refold.open(f"file:{desk / '.refold'}") as log:
        log.run("mailer", id="r-18", input={"mail": "ann@example.com"}, entry="writer:agent").drive(agent)
    source = textwrap.dedent(inspect.getsource(agent)).replace(": refold.Run) -> None", ")")
    (desk / "writer.py").write_text(source)
    golden("add", "r-18", "--name", "mailer", "--redact")
    assert "ann@" not in (desk / "golden" / "mailer.golden.json").read_text()
    assert golden("run").status == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["add", "r-99"], "no run r-99 is in this log"),
        (["add", "r-17", "--expect", "refund<=3"], "--known-bad WHY"),
        (["add", "r-17", "--expect", "refund"], "has no comparison"),
        (["add", "r-17", "--name", "../paid"], "letters, digits"),
        (["add", "r-17", "--answer", "refund"], "--answer is NAME=JSON"),
        (["add", "r-17", "--redact", "privacy:redact"], "no module privacy"),
        (["run", "nowhere"], "refold golden add RUN --out nowhere"),
        (["list"], "refold golden add RUN --out golden"),
        (["sign", "nowhere.golden.json"], "No such file"),
    ],
)
def test_unusable_options_are_reported(golden: Golden, arguments: list[str], said: str) -> None:
    assert said in golden(*arguments).refused()


def test_golden_trace_is_not_overwritten_by_accident(golden: Golden) -> None:
    assert golden("add", "r-17", "--name", "paid").status == 0
    assert "--replace" in golden("add", "r-17", "--name", "paid").refused()
    assert golden("add", "r-17", "--name", "paid", *BAD, "--replace").status == 0


def test_agent_that_cannot_be_loaded_fails_only_its_traces(desk: Path, golden: Golden) -> None:
    golden("add", "r-17", "--name", "paid", *BAD)
    golden("add", "r-17", "--name", "exact", "--entry", "old_agent:answer")
    (desk / "new_agent.py").write_text("import shop\n1 / 0\n")
    done = golden("run")
    assert done.status == 1
    assert "ZeroDivisionError: division by zero" in done.out
    assert "new_agent.py:2" in done.out
    assert "exact: old_agent:answer does what is expected" in done.out
