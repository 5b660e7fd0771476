"""A run whose process was killed, and a run whose step was retried, equal a run that was not interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import refold
from refold_tests.command import SOURCE, refold_command

AGENT = """
import os, signal, sys
import refold

url, mode, where = sys.argv[1:4]


@refold.tool(effect="write")
def pay(amount, *, idempotency_key=""):
    return {"paid": amount}


def chat(prompt):
    return prompt.upper()


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def plan(run):
    run.observe("document/note", {"fields": {"by": run.uuid()}})
    answer = run.model(chat, prompt="pay?")
    if where == "after a call":
        die()
    if where == "in a try" and run.step_number not in tried:
        tried.append(run.step_number)
        raise TimeoutError("once")
    run.state["plan"] = answer
    return answer


def agent(run):
    run.step("plan", plan, run, attempts_max=3)
    with run.step("pay"):
        run.state["at"] = run.now().isoformat()
        run.state["paid"] = pay(50)
        if where == "in a block":
            die()
    if where == "between steps":
        log.flush()
        die()
    run.decide("done")
    return run.state["paid"]


tried = []
with refold.open(url) as log:
    run = log.run("payer", resume="killed-run") if mode == "resume" else log.run("payer", id=mode)
    run.drive(agent)
"""
WHERE = ("after a call", "in a try", "in a block", "between steps")


@pytest.mark.faults
@pytest.mark.parametrize("where", WHERE)
def test_resumed_run_equals_an_uninterrupted_one(tmp_path: Path, where: str) -> None:
    url, code = f"file:{tmp_path / 'log'}", tmp_path / "agent.py"
    code.write_text(AGENT)

    def runs(mode: str, where: str) -> int:
        environment = {**os.environ, "PYTHONPATH": SOURCE}
        return subprocess.run([sys.executable, str(code), url, mode, where], env=environment, check=False).returncode

    assert runs("whole-run", "nowhere") == 0
    if where == "in a try":
        assert runs("killed-run", where) == 0
    else:
        assert runs("killed-run", where) == -signal.SIGKILL
        assert runs("resume", "nowhere") == 0
    with refold.open(url) as log:
        assert log.compare("whole-run", "killed-run") is None
        assert log.compare("killed-run", "whole-run") is None
        assert log.compare("whole-run", "killed-run", exact=True) is not None
    done = refold_command("run", "compare", "whole-run", "killed-run", log=url)
    assert (done.status, done.out.splitlines()[0]) == (0, "no difference")
