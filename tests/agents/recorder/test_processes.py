"""What remains of a run whose process is killed, forks, exits without ending the run, or loses its log."""

from __future__ import annotations

import contextlib
import multiprocessing
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.agents.journal.chain import broken
from refold.agents.journal.record import Recording
from refold.agents.log import AgentLog
from refold.agents.recorder.context import SCOPE
from refold.agents.recorder.writer import RecordingFailed
from refold.avro.errors import RefoldError, UnknownEntity
from refold_tests.child import Child

HEAD = """
import os, signal, sys, time
import refold
log = refold.open(sys.argv[1])
run = log.run("agent", id="r", state={"n": 0})
run.__enter__()
def steps(count):
    for _ in range(count):
        with run.step("s"):
            run.state["n"] += 1
"""


def recorded(url: str) -> Recording:
    with refold.open(url) as log:
        recording = log.recording("r")
    assert list(broken(recording)) == []
    return recording


def committed(recording: Recording) -> int:
    return sum(step.is_committed for step in recording.steps)


def test_flushed_records_survive_a_kill(tmp_path: Path, child: Callable[..., Child]) -> None:
    url = f"file:{tmp_path / 'log'}"
    code = "steps(7)\nrun._sink.flush()\nos.kill(os.getpid(), signal.SIGKILL)"
    assert child(HEAD + code, url).end() == -9
    recording = recorded(url)
    assert (committed(recording), recording.status) == (7, "running")


def test_records_before_a_write_tool_survive_a_kill_in_it(tmp_path: Path, child: Callable[..., Child]) -> None:
    url = f"file:{tmp_path / 'log'}"
    code = (
        "tool = refold.tool(effect='write')(lambda: os.kill(os.getpid(), signal.SIGKILL))\n"
        "steps(3)\nwith run.step('sends'):\n    run.decide('go')\n    tool()"
    )
    code = code.replace("lambda:", "lambda x=0:")
    assert child(HEAD + code, url).end() == -9
    recording = recorded(url)
    assert committed(recording) == 3
    assert (recording.steps[3].name, recording.steps[3].outcome) == ("sends", "")


def test_kill_without_a_flush_loses_only_the_last_moments(tmp_path: Path, child: Callable[..., Child]) -> None:
    """Records become durable without a flush: another process sees them although the first does nothing more."""
    url = f"file:{tmp_path / 'log'}"
    process = child(HEAD + "steps(5)\nprint('done', flush=True)\nsys.stdin.readline()", url)
    assert process.line() == "done"
    deadline = time.monotonic() + 60
    while True:
        with refold.open(url, read_only=True) as log, contextlib.suppress(UnknownEntity):
            if committed(log.recording("r")) == 5:
                break
        process.look()
        assert time.monotonic() < deadline
    process.kill()
    assert committed(recorded(url)) == 5


@pytest.mark.parametrize(
    ("end", "status"), [("", 0), ("sys.exit(3)", 3), ("raise ValueError('x')", 1)], ids=["end", "exit", "error"]
)
def test_interpreter_exit_with_an_open_run_loses_nothing(
    tmp_path: Path, child: Callable[..., Child], end: str, status: int
) -> None:
    url = f"file:{tmp_path / 'log'}"
    assert child(HEAD + "steps(100)\n" + end, url).end() == status
    recording = recorded(url)
    assert (committed(recording), recording.status) == (100, "running")
    with refold.open(url) as log, log.run("agent", resume="r") as run:
        for _ in range(100):
            with run.step("s"):
                run.state["n"] += 1
        with run.step("last"):
            pass
    assert (recorded(url).status, len(recorded(url).steps)) == ("ended", 101)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forked_process_records_nothing_and_says_so(log: AgentLog) -> None:
    context = multiprocessing.get_context("fork")
    said: Any = context.SimpleQueue()

    def elsewhere() -> None:
        try:
            with run.step("there"):
                pass
        except RecordingFailed as error:
            said.put(str(error))

    with log.run("agent") as run:
        with run.step("here"):
            pass
        process = context.Process(target=elsewhere)
        process.start()
        assert "forked" in said.get()
        process.join()
        with run.step("here again"):
            pass
    assert [step.name for step in log.recording(run.id).steps] == ["here", "here again"]


def test_log_is_usable_during_a_run(log: AgentLog) -> None:
    """Observations of the main thread, of other threads and of the recorder's thread are serialized."""
    stop = threading.Event()

    def others() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            log.observe("document/beside", {"fields": {"n": str(number)}}, source=f"thread-{threading.get_ident()}")
        log.flush()

    threads = [threading.Thread(target=others) for _ in range(2)]
    for thread in threads:
        thread.start()
    with log.run("agent", state={"n": 0}) as run:
        for number in range(60):
            with run.step("s"):
                run.state["n"] = number
                run.observe("document/of-the-run", {"fields": {"n": str(number)}})
            log.observe("document/of-main", {"fields": {"n": str(number)}})
            if number % 20 == 0:
                assert run.read("document/of-the-run").version == number + 1
    stop.set()
    for thread in threads:
        thread.join()
    recording = log.recording(run.id)
    assert list(broken(recording)) == []
    assert sum(len(each.delta) for each in recording.steps) == 59
    assert log.state("document/of-main").version == log.state("document/of-the-run").version == 60
    assert log.verify().ok


def test_concurrent_runs_do_not_mix(log: AgentLog) -> None:
    runs = {}

    def agent(name: str) -> None:
        with log.run(name, state={"mine": []}) as run:
            runs[name] = run.id
            for number in range(20):
                with run.step(name):
                    run.state["mine"].append([name, number])

    threads = [threading.Thread(target=agent, args=(f"agent-{each}",)) for each in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, run in runs.items():
        recording = log.recording(run)
        assert list(broken(recording)) == []
        assert [each.name for each in recording.steps] == [name] * 20
        assert [each.delta[0][4] for each in recording.steps] == [[[name, number]] for number in range(20)]


def test_log_closed_during_a_run_fails_it_by_name(tmp_path: Path) -> None:
    log = refold.open(f"file:{tmp_path / 'log'}")
    run = log.run("agent", id="r", state={"n": 0})
    with run.step("s"):
        run.state["n"] = 1
    run._sink.await_written()
    log.close()
    with pytest.raises(RecordingFailed, match="closed"):  # noqa: PT012
        while True:
            with run.step("s"):
                run.state["n"] += 1
    with pytest.raises(RecordingFailed, match="closed"):
        run.step("cannot begin").__enter__()
    assert SCOPE.get().run is None, "what comes behind belongs to no step"
    with pytest.raises(RecordingFailed, match="closed"):
        run.end(None)
    assert committed(recorded(f"file:{tmp_path / 'log'}")) == 1


@pytest.mark.parametrize("given", [{"id": "a\nb"}, {"id": "\ud800"}, {"id": "x" * 2000}, {"agent": "a\nb"}], ids=repr)
def test_run_that_cannot_be_recorded_does_not_start(log: AgentLog, given: dict[str, str]) -> None:
    before = threading.active_count()
    with pytest.raises(RefoldError):
        log.run(**{"agent": "agent", **given})  # type: ignore[arg-type]
    assert threading.active_count() == before, "nobody is left waiting for its work"


def test_observed_at_is_the_time_of_the_event(log: AgentLog) -> None:
    @refold.tool(effect="write")
    def send() -> None:
        """What was recorded before is stored when this is called."""

    with log.run("agent") as run:
        for number in range(20):
            with run.step("s"):
                if number % 2:
                    send()
    for number in range(1, 21):
        rows = {row.field: row for row in log.history(f"step/{run.id}#{number}")}
        begun, ended = rows["started_at"], rows["ended_at"]
        assert ended.observed_at == ended.new
        # A step that ended before its begin was written is one observation, with the time of its end.
        assert begun.observed_at == begun.new or begun.observation == ended.observation
        assert number % 2 or begun.observed_at == begun.new


def test_run_ids_are_unique(log: AgentLog) -> None:
    with log.run("agent", id="twice"):
        pass
    with pytest.raises(RefoldError, match="twice"):
        log.run("agent", id="twice")
