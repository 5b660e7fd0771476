"""A confined replay does what a replay does, in a process that the kernel cuts off from the outside."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import refold
from refold.agents.log import AgentLog
from refold.agents.redaction.redactor import Redactor
from refold.agents.replay.unrecorded import Unrecorded
from refold.agents.replay.watch import NetworkDenied
from refold.avro.errors import InputError
from refold_tests.command import environment, refold_command
from refold_tests.refusing import REFUSING

pytestmark = pytest.mark.outside

CODE = """
import asyncio, os, sys

if os.environ.get("AT_IMPORT"):
    import ctypes
    ctypes.CDLL(None).socket(2, 1, 0)


def chat(prompt):
    return "yes"


def agent(run):
    with run.step("look"):
        run.state["limit"] = run.read("tool_config/acme").fields["rate_limit"]
    with run.step("ask"):
        prompt = os.environ.get("PROMPT", "may I?")
        run.state["answer"] = run.model(chat, prompt=prompt)
    if os.environ.get("DIE"):
        os.kill(os.getpid(), 9)
    return run.state["answer"]


def pooled(run):
    from multiprocessing.pool import ThreadPool
    with run.step("look"):
        with ThreadPool(2) as pool:
            run.state["twice"] = pool.map(lambda each: each * 2, [1, 2, 3])
        pool = ThreadPool(1)
        run.state["found"] = pool.apply(lambda: 5)
        pool.close()
        pool.join()
    return "done"


async def waiting(run):
    with run.step("ask"):
        await asyncio.sleep(0)
        return await asyncio.to_thread(run.model, chat, prompt="a?")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with the agent's file."""
    (tmp_path / "agent.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def log(folder: Path) -> Iterator[AgentLog]:
    from refold.agents.entry import agent_of

    with refold.open(f"file:{folder / '.refold'}") as log:
        log.observe("tool_config/acme", {"rate_limit": 50})
        log.flush()
        log.run("a", id="r", entry="agent.py:agent").drive(agent_of("agent.py:agent", folder))
        yield log


def test_confined_replay_is_the_same_and_reads_come_from_the_log(log: AgentLog) -> None:
    found = log.replay("r", confined=True)
    assert found.is_same
    assert found.hash == found.recorded_hash == log.replay("r").hash
    assert list(found.escapes) == []
    assert found.unused == ()
    assert asyncio.run(log.replay_async("r", confined=True)).is_same


def test_async_agent_and_its_threads_replay_confined(log: AgentLog, folder: Path) -> None:
    from refold.agents.entry import agent_of

    waiting = agent_of("agent.py:waiting", folder)
    asyncio.run(log.run("a", id="w", entry="agent.py:waiting").drive_async(waiting))
    assert log.replay("w", confined=True).is_same
    assert log.replay("w", waiting, confined=True).is_same


def test_thread_pool_replays_confined(log: AgentLog, folder: Path) -> None:
    """The pool makes a semaphore, and wakes its own threads by a pipe."""
    from refold.agents.entry import agent_of

    pooled = agent_of("agent.py:pooled", folder)
    log.run("a", id="p", entry="agent.py:pooled").drive(pooled)
    assert log.replay("p", pooled).is_same
    assert log.replay("p", confined=True).is_same


def test_redactor_is_passed_to_the_confined_process(log: AgentLog, folder: Path) -> None:
    from refold.agents.entry import agent_of

    redact = Redactor(secrets=["may I"])
    log.run("a", id="red", entry="agent.py:agent", redact=redact).drive(agent_of("agent.py:agent", folder))
    assert log.replay("red", redact=redact, confined=True).is_same
    with pytest.raises(InputError, match="the redactor cannot be passed"):
        log.replay("red", redact=Redactor(rules={"x": lambda text: []}), confined=True)


def test_unrecorded_request_is_reported_as_without_confinement(log: AgentLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMPT", "may I not?")
    with pytest.raises(Unrecorded) as confined:
        log.replay("r", confined=True)
    with pytest.raises(Unrecorded) as plain:
        log.replay("r")
    assert str(confined.value) == str(plain.value)
    assert confined.value.so_far is not None
    assert confined.value.left_in == plain.value.left_in


def test_code_run_at_import_is_confined(log: AgentLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AT_IMPORT", "1")
    with pytest.raises(NetworkDenied) as denied:
        log.replay("r", confined=True)
    assert "agent.py:6 in <module>" in denied.value.source_line


def test_died_process_gives_no_answer(log: AgentLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIE", "1")
    with pytest.raises(InputError, match="ended by signal 9"):
        log.replay("r", confined=True)


def test_function_needs_an_importable_name(log: AgentLog) -> None:
    with pytest.raises(InputError, match="at the top of a module or of a file"):
        log.replay("r", lambda run: None, confined=True)
    with pytest.raises(InputError, match="has no function nobody"):
        log.replay("r", "agent.py:nobody", confined=True)


def test_handler_of_the_kernels_signal_cannot_be_replaced(folder: Path) -> None:
    code = (
        "import os, signal, sys; from refold.agents.confined.kernel import confine\n"
        "confine(os.memfd_create('x'), '.')\n"
        "print('confined', flush=True)\nsignal.signal(signal.SIGSYS, signal.SIG_IGN)\nprint('taken', flush=True)"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], env=environment(), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (-signal.SIGSYS, "confined\n"), done.stderr


def test_command_line(log: AgentLog, folder: Path) -> None:
    log.close()
    done = refold_command("run", "replay", "r", "--confined", "--times", 2, "--json", folder=folder)
    assert done.json["same"] is True
    assert (done.status, done.json["times"], done.json["escapes"]) == (0, 2, [])
    done = refold_command("run", "replay", "--all", "--confined", folder=folder)
    assert (done.status, "1 with their code" in done.out) == (0, True), done.out + done.err
    left = refold_command("run", "replay", "r", "--confined", folder=folder, more={"PROMPT": "else?"})
    assert (left.status, "it left the recording" in left.out) == (1, True)
    held = refold_command("run", "replay", "r", "--confined", folder=folder, more={"AT_IMPORT": "1"})
    assert (held.status, "agent.py:6" in held.out) == (1, True), held.out + held.err
    assert "give one of them" in refold_command("run", "replay", "r", "--confined", "--alone", folder=folder).refused()
    added = refold_command("golden", "add", "r", "--expect", "exact", folder=folder)
    assert added.status == 0, added.err
    passed = refold_command("golden", "run", "--confined", folder=folder)
    assert (passed.status, "all 1 passed" in passed.out) == (0, True), passed.out + passed.err
    failed = refold_command("golden", "run", "--confined", folder=folder, more={"AT_IMPORT": "1"})
    assert (failed.status, "past Python" in failed.out) == (1, True), failed.out + failed.err


def test_nothing_runs_where_the_kernel_cannot_confine(log: AgentLog, folder: Path) -> None:
    added = refold_command(
        "golden", "add", "r", "--expect", "exact", "--log", f"file:{folder / '.refold'}", folder=folder
    )
    assert added.status == 0, added.err
    log.close()
    for words in (["run", "replay", "r"], ["run", "replay", "--all"], ["golden", "run"]):
        done = subprocess.run(
            [sys.executable, "-P", "-c", REFUSING, *words, "--confined"],
            cwd=folder, env=environment(more={"DIE": "1"}), capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (2, ""), done.stdout + done.stderr
        assert "cannot be confined here: seccomp failed" in done.stderr
        assert "Nothing was run" in done.stderr


def test_no_descriptor_leaks(log: AgentLog) -> None:
    before = handed_over()
    log.replay("r", confined=True)
    assert handed_over() == before


def handed_over() -> list[str]:
    """Return the open files that exist to pass something to a child; threads of this process open and close others."""
    found = []
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # it was closed in the meantime
            target = str(each.readlink())
            if target.startswith("/memfd:refold-"):
                found.append(target)
    return sorted(found)
