"""A confined fork is the fork that its parent's recording allows, made in a process that cannot reach the outside."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import refold
from refold.agents.entry import agent_of
from refold.agents.log import AgentLog
from refold.agents.redaction.redactor import Redactor
from refold.agents.replay.forked import NotAllowed
from refold.agents.replay.watch import NetworkDenied
from refold.avro.errors import InputError, UnknownEntity
from refold_tests.command import environment, refold_command
from refold_tests.refusing import REFUSING

pytestmark = pytest.mark.outside

CODE = """
import asyncio, ctypes, os, sys
import refold

def chat(prompt):
    return "yes"

@refold.tool(effect="write")
def refund(amount):
    return f"refunded {amount}"

def agent(run):
    with run.step("look"):
        run.state["limit"] = run.read("tool_config/acme").fields["rate_limit"]
    with run.step("ask"):
        run.state["answer"] = run.model(chat, prompt="may I?")
    run.step("again", again, run, attempts_max=2)
    if os.environ.get("REACH"):
        ctypes.CDLL(None).socket(2, 1, 0)
    if os.environ.get("DIE"):
        os.kill(os.getpid(), 9)
    if os.environ.get("LEAVE"):
        sys.exit("left")
    with run.step("pay"):
        run.state["paid"] = refund(amount=run.state["limit"])
    if run.state["limit"] == 13:
        raise ValueError("13 is refused, says mia@example.org")
    return run.state["paid"]

def again(run):
    run.state["tried"] = run.random()
    if run.state.get("answer") == "fail":
        raise ConnectionError("no")
    return run.now().isoformat()

async def waiting(run):
    async with run.step("ask"):
        run.state["answer"] = await asyncio.to_thread(run.model, chat, prompt="may I?")
    with run.step("end"):
        return run.state["answer"]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with the agent's file."""
    (tmp_path / "agent.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def log(folder: Path) -> Iterator[AgentLog]:
    with refold.open(f"file:{folder / '.refold'}") as log:
        log.observe("tool_config/acme", {"rate_limit": 50})
        log.flush()
        log.run("a", id="r", entry="agent.py:agent").drive(agent_of("agent.py:agent", folder))
        yield log


RESULTS = {"4/refund": "refunded by hand"}


@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_confined_fork_equals_the_unconfined_fork(log: AgentLog, folder: Path, at: int) -> None:
    state = {"limit": 20} if at else {"more": [1]}
    log.fork_confined("r", id="confined", at=at, state=state, results=RESULTS)
    log.fork("r", id="plain", at=at, state=state, results=RESULTS, policy="recorded").drive(log.agent_of("r"))
    confined, plain = log.recording("confined"), log.recording("plain")
    assert (confined.outcome, confined.output) == ("succeeded", "refunded by hand")
    assert (confined.parent, confined.forked_at, confined.patch) == ("r", at, plain.patch)
    if at in (2, 3):  # before these steps random numbers and times are the code's own
        assert [each.hash for each in confined.steps] == [each.hash for each in plain.steps]
        assert confined.hash == plain.hash
    assert log.replay("confined").is_same
    assert log.replay("confined", confined=True).is_same
    assert log.compare("confined", "plain") is None
    assert log.recording("r").outcome == "succeeded"


def test_denial_suggests_no_option_that_is_closed(log: AgentLog) -> None:
    with pytest.raises(NotAllowed) as refused:
        log.fork_confined("r", id="c", at=1, state={"limit": 20})
    assert "--allow" not in str(refused.value)
    assert "allow=" not in str(refused.value)
    assert "--result 4/refund=JSON" in str(refused.value)
    assert "a confined fork writes nothing" in str(refused.value)
    child = log.recording("c")
    assert child.outcome == "failed"
    assert [each.name for each in child.steps] == ["look", "ask", "again"]
    with pytest.raises(NotAllowed, match=r"--allow refund"):
        log.fork("r", id="d", at=1, state={"limit": 20}).drive(log.agent_of("r"))


def test_escape_ends_the_fork_and_its_steps_are_recorded(log: AgentLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REACH", "1")
    with pytest.raises(NetworkDenied, match="past Python") as denied:
        log.fork_confined("r", id="c", at=1, results=RESULTS)
    assert "agent.py:" in denied.value.source_line
    child = log.recording("c")
    assert child.outcome == "failed"
    assert [each.name for each in child.steps] == ["look", "ask", "again"]
    assert child.failure is not None
    assert "past Python" in child.failure.message


def test_died_process_leaves_its_recorded_steps(log: AgentLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIE", "1")
    with pytest.raises(InputError, match="ended by signal 9"):
        log.fork_confined("r", id="c", at=1, results=RESULTS)
    child = log.recording("c")
    assert (child.outcome, len(child.steps)) == ("failed", 3)


def test_exception_of_the_code_is_the_childs_outcome(log: AgentLog, monkeypatch: pytest.MonkeyPatch) -> None:
    log.fork_confined("r", id="c", at=1, state={"limit": 13}, results=RESULTS, redact=Redactor())
    child = log.recording("c")
    assert (child.outcome, len(child.steps)) == ("failed", 4)
    assert child.failure is not None
    assert child.failure.exception == "builtins.ValueError"
    assert "13 is refused, says [email:" in child.failure.message
    log.fork_confined("r", id="failing", at=1, results={**RESULTS, "2/chat": "fail"})
    failing = log.recording("failing")
    assert failing.outcome == "failed"
    assert [len(each.attempts) for each in failing.steps] == [1, 1, 2]
    monkeypatch.setenv("LEAVE", "1")
    log.fork_confined("r", id="left", at=1, results=RESULTS)
    assert log.recording("left").outcome == "cancelled"  # as without confinement


def test_async_agent_forks_confined(log: AgentLog, folder: Path) -> None:
    waiting = agent_of("agent.py:waiting", folder)
    asyncio.run(log.run("a", id="w", entry="agent.py:waiting").drive_async(waiting))
    log.fork_confined("w", id="c", at=1, state={"answer": "no"})
    assert log.recording("c").output == "no"


def test_code_that_cannot_run_records_nothing(log: AgentLog) -> None:
    with pytest.raises(InputError, match="has no function nobody"):
        log.fork_confined("r", "agent.py:nobody", id="c", at=1)
    with pytest.raises(InputError, match="no state after step 9"):
        log.fork_confined("r", id="c", at=9)
    with pytest.raises(UnknownEntity):
        log.recording("c")


def test_command_line(log: AgentLog, folder: Path) -> None:
    log.close()
    fork = ["run", "fork", "r", "--at", 1, "--set", "limit=20", "--confined"]
    refused = refold_command(*fork, folder=folder)
    assert (refused.status, "a confined fork writes nothing" in refused.out) == (1, True), refused.out + refused.err
    assert "--allow" not in refused.out
    made = refold_command(*fork, "--tool-result", "4/refund=done", "--id", "kid", "--json", folder=folder)
    assert (made.status, made.json["run"], made.json["output"], made.json["departure"]) == (0, "kid", "done", None)
    assert "a run of that id is in this log" in refold_command(*fork, "--id", "kid", folder=folder).refused()
    for more in (["--allow", "refund"], ["--policy", "live"], ["--policy", "ask"]):
        assert "give one of them" in refold_command(*fork, *more, folder=folder).refused()
    denied = refold_command(*fork, folder=folder, more={"REACH": "1"})
    assert (denied.status, "past Python" in denied.out) == (1, True), denied.out + denied.err
    assert refold_command("verify", folder=folder).status == 0


def test_nothing_runs_or_is_recorded_where_the_kernel_cannot_confine(log: AgentLog, folder: Path) -> None:
    log.close()
    words = ["run", "fork", "r", "--at", "1", "--confined", "--id", "kid"]
    done = subprocess.run(
        [sys.executable, "-P", "-c", REFUSING, *words],
        cwd=folder, env=environment(more={"DIE": "1"}), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, ""), done.stdout + done.stderr
    assert "cannot be confined here: seccomp failed" in done.stderr
    assert "no run kid" in refold_command("run", "show", "kid", folder=folder).refused()
