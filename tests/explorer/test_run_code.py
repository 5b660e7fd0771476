"""`refold run replay`, `resume` and `fork`: an agent's code on its recorded runs."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.agents.redaction.redactor import Redactor
from refold.explorer.demo import desk
from refold_tests.recorded_runs import random_run, write

Ask = Callable[..., Any]
FIXED = "refold.explorer.demo.desk_fixed:agent"
HELPERS = """
import asyncio
import refold

@refold.tool(effect="read")
def look(n):
    if n == 2 and not OPEN.exists():
        raise OSError("closed")
    return n * 10

def works(run):
    print("noise of the agent")
    for n in (1, 2, 3):
        run.state[str(n)] = run.step("look", look, n)
    return run.state

@refold.tool(effect="read")
def partner(to):
    return {"of": to, "mail": "eve@example.org"}

def greets(run):
    with run.step("ask"):
        run.state["partner"] = partner(run.input["to"])

async def waits(run):
    async with run.step("sleep"):
        await asyncio.sleep(0)
        run.state["slept"] = True
    return "rested"
"""


@pytest.fixture
def incident(ask: Ask) -> str:
    """The demo's failing run."""
    assert f"failed in run {desk.RUN}" in ask("demo", "--incident")
    return desk.RUN


@pytest.fixture
def agents(tmp_path: Path) -> Path:
    """A file of agents. Its tool `look` fails until a file named `open` exists next to it."""
    path = tmp_path / "agents_here.py"
    path.write_text(
        HELPERS.replace("OPEN", f"__import__('pathlib').Path({str(tmp_path / 'open')!r})"), encoding="utf-8"
    )
    return path


def test_replay_does_the_same_again(incident: str, ask: Ask) -> None:
    found = ask("run", "replay", incident, "--times", 3, "--json")
    assert (found["same"], found["times"], found["steps"]) == (True, 3, 4)
    assert found["hash"] == found["recorded_hash"] == ask("run", "show", incident, "--json")["hash"]
    assert found["edges"] == {"deterministic": 5, "recorded": 3, "unknown": 0}
    text = ask("run", "replay", incident)
    assert f"  replayed  {found['hash']}  equal: the code did the same" in text.splitlines()


def test_changed_code_is_reported_as_a_departure(incident: str, ask: Ask) -> None:
    text = ask("run", "replay", incident, "--agent", FIXED, status=1)
    assert "step 4 (pay) asked for what the recording of run incident-1 does not hold" in text
    assert "differs   kwargs.cents: 1999 asked, 1998 recorded" in text
    found = ask("run", "replay", incident, "--agent", FIXED, "--json", status=1)
    assert (found["same"], found["hash"]) == (False, None)
    assert "1999 asked, 1998 recorded" in found["departure"]


def test_code_with_another_state_is_named(agents: Path, ask: Ask) -> None:
    other = agents.with_name("other.py")
    other.write_text(agents.read_text().replace("n * 10", "n").replace("run.state\n", "{}\n"), encoding="utf-8")
    (agents.parent / "open").touch()
    record(agents, "r")
    text = ask("run", "replay", "r", "--agent", f"{other}:works", status=1)
    assert "differs: the code did something else" in text
    assert "first differs at the end" in text
    found = ask("run", "replay", "r", "--agent", f"{other}:works", "--json", status=1)
    assert (found["parting"]["step"], found["times"]) == (None, 1)


def test_failure_before_the_first_call_is_reported(agents: Path, ask: Ask) -> None:
    other = agents.with_name("other.py")
    other.write_text("def works(run):\n    raise KeyError('no credentials')\n", encoding="utf-8")
    (agents.parent / "open").touch()
    record(agents, "r")
    text = ask("run", "replay", "r", "--agent", f"{other}:works", status=1)
    assert "  failed    KeyError: 'no credentials'" in text


def test_recording_without_code_is_stepped_through(incident: str, ask: Ask) -> None:
    text = ask("run", "replay", incident, "--alone")
    assert "step 3 price: committed, succeeded\n  state     cents = 1998" in text
    assert "every hash matches its content" in text
    assert ask("run", "replay", incident, "--alone", "--json")["same"] is True


def test_run_without_an_agent_names_the_remedy(ask: Ask, seed: int) -> None:
    with refold.open() as log:
        write(log, random_run(random.Random(seed), "nameless", 1))
    assert "run nameless names no agent: give its function with --agent" in ask("run", "replay", "nameless", status=2)
    assert "names no agent" in ask("run", "resume", "nameless", status=2)


def test_fork_continues_with_the_patch(incident: str, ask: Ask) -> None:
    before = ask("run", "show", incident, "--json")
    allowed = ("--allow", "payments.refund", "--allow", "mail.send")
    found = ask("run", "fork", incident, "--at", 3, "--set", "cents=1999", *allowed, "--id", "child", "--json")
    assert (found["run"], found["parent"], found["forked_at"], found["outcome"]) == ("child", incident, 3, "succeeded")
    assert found["output"] == {"refunded": 1999}
    assert ask("run", "show", incident, "--json") == before
    assert "the chain holds: 5 steps" in ask("run", "show", "child", "--verify")
    assert ask("run", "replay", "child", "--json")["same"] is True
    fixed = ask("run", "fork", incident, "--at", 2, "--agent", FIXED, *allowed, "--json")
    assert fixed["output"] == {"refunded": 1999}
    rows = {each["run"]: each for each in ask("runs", "--parent", incident, "--json")}
    assert sorted(rows) == sorted(["child", fixed["run"]])


def test_forks_write_tools_do_not_run_by_default(incident: str, ask: Ask) -> None:
    text = ask("run", "fork", incident, "--at", 3, "--set", "cents=1999", status=1)
    assert "allow it by name (--allow payments.refund" in text
    found = ask("run", "fork", incident, "--at", 3, "--set", "cents=1999", "--tool-result",
                '4/payments.refund={"refund": "r-9"}', "--result", "5/mail.send=null", "--json")  # fmt: skip
    assert (found["outcome"], found["output"]) == ("succeeded", {"refunded": 1999})


def test_unused_patched_result_is_reported(incident: str, ask: Ask) -> None:
    text = ask("run", "fork", incident, "--at", 3, "--tool-result", "4/payments.refnd=null", status=1)
    assert "--tool-result 4/payments.refnd changed nothing: that step made no such call" in text


def test_path_that_a_fork_adds_to_the_state_is_reported(incident: str, ask: Ask) -> None:
    text = ask(
        "run", "fork", incident, "--at", 3, "--set", "note={}", "--set", "note.by=ann", "--set", "cents=1999", status=1
    )
    assert "--set note added a value: the state had none at this path" in text
    assert text.count("added a value") == 1


def test_fork_may_prompt(incident: str, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(['{"refund": "r-9"}', "null"])
    monkeypatch.setattr("click.prompt", lambda *given, **named: next(answers))
    found = ask("run", "fork", incident, "--at", 3, "--set", "cents=1999", "--policy", "ask", "--json")
    assert (found["outcome"], list(answers)) == ("succeeded", [])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--at", "9"], "its committed steps end at 4"),
        (["--at", "3", "--set", "cents"], "--set cents: write it NAME=VALUE"),
        (["--at", "3", "--set", "a=1", "--set", "a=2"], "--set a: given twice"),
        (["--at", "3", "--set", "none.there=1"], "the state has no none.there"),
        (["--at", "3", "--argument", "temperature=0"], "--argument temperature: write it NAME.KEY=VALUE"),
        (["--at", "3", "--id", "incident-1"], "--id incident-1: a run of that id is in this log already"),
        (["--at", "3", "--tool-result", "2/model={}"], "a result replaces that of STEP/NAME"),
    ],
    ids=str,
)
def test_impossible_fork_is_refused(incident: str, ask: Ask, options: list[str], said: str) -> None:
    assert said in ask("run", "fork", incident, *options, status=2)
    assert len(ask("runs", "--json")) == 1


def test_failed_run_resumes_where_it_stopped(agents: Path, ask: Ask) -> None:
    record(agents, "r")
    entry = ("--agent", f"{agents}:works")
    again = ask("run", "resume", "r", *entry, status=1)
    assert "run r failed, after 1 step of its own" in again
    assert "OSError: closed" in again
    (agents.parent / "open").touch()
    found = ask("run", "resume", "r", *entry, "--json")
    assert (found["outcome"], found["output"], found["steps"]) == ("succeeded", {"1": 10, "2": 20, "3": 30}, 3)
    steps = ask("run", "steps", "r", "--json")
    assert [len(each["attempts"]) for each in steps] == [1, 3, 1]
    assert "succeeded; fork it" in ask("run", "resume", "r", *entry, status=2)


def test_interrupted_resume_has_not_ended(agents: Path, ask: Ask) -> None:
    record(agents, "r")
    with refold.open() as log:
        run = log.run("works", resume="r")  # the run takes another step, and its process dies
        with suppress(OSError), run.step("look"):
            raise OSError("still closed")
        log.observe("step/r#3", {"run": "r", "position": 3, "name": "look", "status": "pending", "attempts": 1})
    [row] = ask("runs", "--outcome", "running", "--json")
    assert (row["run"], row["ended"], row["steps"]) == ("r", None, 3)
    found = ask("run", "show", "r", "--json")
    assert (found["outcome"], found["hash"], found["failure"]) == (None, None, None)
    assert found["position"] == {"step": 3, "name": "look", "status": "pending", "attempt": 1}
    with refold.open() as log:
        log.observe("step/r#2", {"status": "pending", "attempts": 3})  # another history: step 2 was begun again
    second = ask("run", "steps", "r", "--json")[1]
    assert (second["status"], second["outcome"], second["hash"]) == ("pending", None, None)


def test_agent_may_be_a_coroutine(agents: Path, ask: Ask) -> None:
    record(agents, "r")
    found = ask("run", "fork", "r", "--at", 0, "--agent", f"{agents}:waits", "--id", "w", "--json")
    assert (found["outcome"], found["output"]) == ("succeeded", "rested")
    assert ask("run", "replay", "w", "--agent", f"{agents}:waits", "--json")["same"] is True


def record(agents: Path, name: str) -> None:
    """Record a run of the agent `works`. It fails if `look` does."""
    space: dict[str, Any] = {}
    exec(compile(agents.read_text(), str(agents), "exec"), space)  # a file that this test wrote
    tools: Mapping[str, Any] = space
    with refold.open() as log, redirect_stdout(io.StringIO()), suppress(OSError):
        log.run("works", id=name).drive(tools["works"])


def test_new_steps_of_a_redacted_run_are_redacted(agents: Path, ask: Ask) -> None:
    space: dict[str, Any] = {}
    exec(compile(agents.read_text(), str(agents), "exec"), space)  # a file that this test wrote
    with refold.open() as log:
        log.run("greets", id="r", input={"to": "bob@example.org"}, redact=Redactor()).drive(space["greets"])
    entry = ("--agent", f"{agents}:greets", "--redact")
    assert ask("run", "replay", "r", "--json", *entry)["same"] is True
    ask("run", "fork", "r", "--at", 0, "--id", "child", *entry)
    for each in ("r", "child"):
        said = json.dumps(ask("run", "show", each, "--json"))
        assert "example.org" not in said
        assert "[email:" in said
