"""An agent in a workflow of DBOS: the guide works, and wherever its process is killed, both records agree."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from dbos import DBOSClient

import refold
from refold_tests.model_server import model_server
from refold_tests.recipes import Clerk, follow
from refold_tests.tree import ROOT

pytestmark = pytest.mark.outside

GUIDE = ROOT / "docs" / "guides" / "workflow-engines.md"

# Runs the guide's program, and kills it when the function argv[1] of that program returns.
KILLED = """
import os, runpy, signal, sys, threading

name = sys.argv.pop(1)

def watch(frame, event, _):
    code = frame.f_code
    if event == "return" and code.co_name == name and code.co_filename.endswith("desk.py"):
        os.kill(os.getpid(), signal.SIGKILL)

threading.setprofile(watch)
sys.argv[0] = "desk.py"
runpy.run_path("desk.py", run_name="__main__")
"""


def test_guide_commands_work(tmp_path: Path) -> None:
    with model_server() as server:
        asked = follow(GUIDE, tmp_path, server)
    assert [requests for line, requests in asked.items() if line.startswith("python desk.py")] == [2, 2, 1]
    assert [line.split("  ")[0] for line in (tmp_path / "bank.txt").read_text().splitlines()] == [
        "o-7: 42 EUR", "o-8: 42 EUR"
    ]  # fmt: skip


@pytest.mark.faults
def test_killed_workflow_pays_once_and_both_records_agree(tmp_path: Path, fault_rounds: int) -> None:
    """It is killed, again and again, after: an answer that is not recorded; a payment that is not recorded; the probe
    of that payment; the end of the run, which DBOS does not know. CI leaves two of them out."""
    kills = ("chat", "refund", "look_up", "to_its_end") if fault_rounds > 3 else ("refund", "to_its_end")
    code = GUIDE.read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0]
    (tmp_path / "desk.py").write_text(code, encoding="utf-8")
    with model_server() as server:
        server.mind = Clerk()
        environment = {**os.environ, "OPENAI_BASE_URL": f"{server.url}/v1", "OPENAI_API_KEY": "sk-nobody"}
        environment.pop("PYTHONSAFEPATH", None)

        def run(*arguments: str) -> subprocess.CompletedProcess[str]:
            command = [sys.executable, *arguments, "o-9"]
            return subprocess.run(
                command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240, check=False
            )

        for function in kills:
            killed = run("-c", KILLED, function)
            assert killed.returncode == -signal.SIGKILL, (function, killed.stderr[-2000:])
        asked = len(server.requests)
        done = run("desk.py")
    assert (done.returncode, done.stdout) == (0, "Order o-9 was refunded.\n"), done.stderr[-2000:]
    assert asked == len(server.requests) == 2 + ("chat" in kills), "only a lost answer is asked for again"
    (paid,) = (tmp_path / "bank.txt").read_text().splitlines()
    client = DBOSClient(system_database_url=f"sqlite:///{tmp_path}/desk.sqlite")
    try:
        steps = client.list_workflow_steps("refund-o-9")
        (workflow,) = client.list_workflows()
    finally:
        client.destroy()
    with refold.open(f"file:{tmp_path}/.refold") as log:
        (row,) = log.runs()
        recorded = log.recording(row.run)
        (effect,) = log.effects.list()
        assert log.verify().mismatches == []
    assert (workflow.workflow_id, workflow.status) == (row.run, "SUCCESS")
    assert [step["function_name"] for step in steps] == ["DBOS.sleep", "ask_agent"]
    assert steps[1]["output"] == workflow.output == recorded.output
    assert recorded.outcome == "succeeded"
    assert [step.name for step in recorded.steps] == ["look", "decide", "pay", "tell"]
    assert (effect.status, paid.split()[-1]) == ("done", effect.key)
