"""`refold up` and `refold agents`: what they show, what they record, and what they refuse."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import refold
from refold.agents.policy.rules import RunBudget
from refold.agents.state_home import state_folder
from refold.agents.supervise.entries import AgentEntries, OwnedEntries
from refold.agents.supervise.lease import ObservedState
from refold.agents.supervise.listing import agents
from refold.agents.supervise.output_files import OutputFile
from refold.agents.supervise.settings import AgentSettings
from refold_tests.command import Done, refold_command
from refold_tests.supervised import now

AGENT = AgentSettings(command=("python", "desk.py"), name="desk", budget=RunBudget(tokens=500))


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A log in which a supervisor recorded that its agent runs, and then nothing more."""
    url = f"file:{tmp_path}/log"
    with refold.open(url) as log:
        entries = AgentEntries(log, now)
        entries.request("desk", "running", "ann", "it is needed")
        mine = OwnedEntries(log, now, "desk", "token", "ann@host/7", 3_600_000)
        mine.claim(entries.read("desk"))
        mine.granted(entries.read("desk"), AGENT)
        observed = ObservedState("running", "its process runs", "desk-1", 1, handled=1, pid=99, host="host")
        mine.status(entries.read("desk"), observed)
    return url


def command(url: str, *arguments: object) -> Done:
    return refold_command(
        "agents", *arguments, log=url, more={"XDG_STATE_HOME": url.removeprefix("file:") + "/../state"}
    )


def test_agents_are_listed_from_any_process(url: str) -> None:
    said = command(url, "list").out
    assert said.startswith("desk: running: its process runs\n  since ")
    assert said.endswith("run desk-1, attempt 1, process 99 on host, budget tokens 500, owner ann@host/7\n")
    [row] = command(url, "list", "--json").json
    assert (row["status"], row["desired"], row["desired_why"], row["has_owner"]) == (
        "running", "running", "it is needed", True
    )  # fmt: skip
    assert [(each["before"], each["after"]) for each in row["transitions"]] == [("", "running")]
    assert (row["command"], row["budget"]) == (["python", "desk.py"], {"tokens": 500})


def test_agent_of_a_dead_owner_is_unknown(url: str) -> None:
    with refold.open(url) as log:
        entries = AgentEntries(log, now)
        mine = OwnedEntries(log, now, "desk", "another", "bob@host/8", 1)
        mine.claim(entries.read("desk"))
        mine.granted(entries.read("desk"), AGENT)
    time.sleep(0.002)
    said = command(url, "list").out
    assert said.startswith(
        "desk: unknown, should be running: its owner bob@host/8 renewed nothing since; it was running\n"
    )
    assert said.endswith("no owner\n")


def test_request_is_recorded_with_author_and_reason(url: str) -> None:
    done = command(url, "pause", "desk", "--why", "prices change", "--by", "bob")
    assert (done.status, done.out) == (0, "desk should be paused; it is running\n")
    [row] = command(url, "list", "--json").json
    assert (row["desired"], row["desired_by"], row["desired_why"]) == ("paused", "bob", "prices change")
    for name, desired in (("resume", "running"), ("stop", "stopped"), ("start", "running")):
        assert command(url, name, "desk").status == 0
        [row] = command(url, "list", "--json").json
        assert (row["desired"], row["desired_why"]) == (desired, None)


def test_answer_to_a_request_that_was_followed_is_what_the_agent_does(url: str) -> None:
    with refold.open(url) as log:
        entries = AgentEntries(log, now)
        paused = entries.read("desk").observed._replace(status="paused", why="it waits at a boundary", handled=2)
        OwnedEntries(log, now, "desk", "token", "ann@host/7", 3_600_000).status(entries.read("desk"), paused)
    assert command(url, "pause", "desk").out == "desk: paused: it waits at a boundary\n"


def test_agent_that_ended_well_is_only_ended(url: str) -> None:
    with refold.open(url) as log:
        entries = AgentEntries(log, now)
        mine = OwnedEntries(log, now, "desk", "token", "ann@host/7", 3_600_000)
        ended = entries.read("desk").observed._replace(status="ended", why="it exited with 0", pid=0)
        mine.status(entries.read("desk"), ended)
    assert command(url, "list").out.startswith("desk: ended: it exited with 0\n")
    with refold.open(url) as log:
        AgentEntries(log, now).request("desk", "running", "ann", "")
        [row] = agents(log, now())
        assert not row.is_over, "somebody started it again since"
    assert command(url, "list").out.startswith("desk: ended, to be started again: it exited with 0\n")


def test_unanswered_request_times_out_with_exit_status_1(url: str) -> None:
    assert command(url, "stop", "desk", "--wait", "0.01").status == 1


def test_unknown_agent(url: str, tmp_path: Path) -> None:
    said = "there is no agent till in this log; there are desk; `refold up` starts those of refold.toml"
    assert command(url, "pause", "till").refused() == said
    assert command(url, "logs", "till").refused() == said
    assert "there is no log here" in command(f"file:{tmp_path}/none", "pause", "desk").refused()


def test_output_is_shown_from_its_last_lines(url: str, tmp_path: Path) -> None:
    assert command(url, "logs", "desk").err == "refold: no output of desk is kept on this machine; it ran on host\n"
    state = {"XDG_STATE_HOME": url.removeprefix("file:") + "/../state"}
    folder = state_folder("agents", url, state) / "desk"
    folder.mkdir(parents=True)
    output = OutputFile(folder, 10)
    output.write(b"one\ntwo\nthree\n")
    output.close()
    assert command(url, "logs", "desk").out == "one\ntwo\nthree\n"
    assert command(url, "logs", "desk", "--lines", 2).out == "two\nthree\n"


def test_missing_file(tmp_path: Path) -> None:
    done = refold_command("up", log=f"file:{tmp_path}/log", folder=tmp_path)
    assert done.refused() == (
        "refold.toml: cannot be read: No such file or directory; docs/guides/supervise.md shows one"
    )
    assert not (tmp_path / "log").exists()
