"""Agents below the capture proxy: paused in a model call, and contained by bubblewrap."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from refold.agents.state_home import state_folder
from refold_tests.absent import without
from refold_tests.brokers import SharedKafka
from refold_tests.child import children
from refold_tests.model_server import ModelServer, Reply, model_server
from refold_tests.supervised import Desk, Starting
from refold_tests.supervising import supervisor
from refold_tests.waiting import await_true

pytestmark = pytest.mark.outside

ASK = """
import json, os, sys, time, urllib.request

def ask(text, *before):
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": "m", "messages": [*before, {"role": "user", "content": text}]}).encode(),
        {"Content-Type": "application/json", "Authorization": "Bearer sk-of-the-agent"},
    )
    with urllib.request.urlopen(request) as response:
        return json.load(response)["choices"][0]["message"]["content"]
"""


@pytest.fixture
def start() -> Iterator[Starting]:
    with children() as starting:
        yield starting


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    (tmp_path / "work").mkdir()
    with Desk(tmp_path) as found:
        yield found


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with model_server() as server:
        yield server


def declare(desk: Desk, server: ModelServer, code: str, more: str = "", restart: str = "never") -> None:
    (desk.folder / "work" / "agent.py").write_text(ASK + code)
    (desk.folder / "refold.toml").write_text(f"""
[agents.desk]
command = [{sys.executable!r}, "-S", "agent.py"]
work = "work"
mode = "capture"
restart = {restart!r}
upstream = {server.url!r}
{more}
""")


def test_captured_agent_is_paused_in_its_next_call(desk: Desk, start: Starting, server: ModelServer) -> None:
    asked, go_on = threading.Event(), threading.Event()

    def mind(body: dict[str, object]) -> Reply:
        asked.set()
        go_on.wait(60)
        return Reply(["done"])

    server.mind = mind
    declare(desk, server, "ask('one')\nask('two')\n")
    supervisor(start, desk.url, desk.folder)
    assert asked.wait(60)
    desk.wish("paused")
    desk.awaits_gate()
    go_on.set()  # the first call is answered; the second is held
    desk.await_status("paused")
    assert len(server.requests) == 1
    desk.wish("running")
    desk.await_status("ended")
    assert len(server.requests) == 2
    assert {run.agent for run in desk.log.runs()} == {"desk"}


CRASHES = """
one = ask("one")
if not os.path.exists("crashed"):
    open("crashed", "w").close()
    os._exit(3)
while not os.path.exists("go"):
    time.sleep(0.02)
ask("two", {"role": "user", "content": "one"}, {"role": "assistant", "content": one})
"""


def test_captured_agent_goes_on_from_the_log_after_a_crash_and_under_another_supervisor(
    desk: Desk, start: Starting, server: ModelServer
) -> None:
    declare(desk, server, CRASHES, "backoff_s = 0.01\n[agents.desk.budget]\nmodel_calls = 2", restart="on-failure")
    one = supervisor(start, desk.url, desk.folder)
    await_true(lambda: desk.row.attempt == 2 and desk.row.status == "running")
    desk.wish("paused")
    desk.awaits_gate()
    (desk.folder / "work" / "go").touch()
    row = desk.await_status("paused")
    assert len(server.requests) == 1, "the first answer was given again, and the second call is held"
    one.signal(signal.SIGTERM)
    assert one.end() == 0
    supervisor(start, desk.url, desk.folder)
    desk.wish("running")
    assert desk.await_status("ended", "failed").status == "ended", desk.output()
    assert (desk.row.run, desk.row.attempt, len(server.requests)) == (row.run, 3, 2)
    second, first = desk.log.runs()
    assert (first.run, second.parent, second.steps) == (row.run, row.run, 2)


WAITS = """
one = ask("one")
while not os.path.exists("go"):
    time.sleep(0.02)
ask("two", {"role": "user", "content": "one"}, {"role": "assistant", "content": one})
"""


def test_captured_agent_of_a_killed_supervisor_goes_on_from_kafka(
    kafka: SharedKafka, prefix: str, tmp_path: Path, start: Starting, server: ModelServer
) -> None:
    (tmp_path / "work").mkdir()
    with Desk(tmp_path, f"kafka://{kafka.bootstrap}/{prefix}?partitions=2") as desk:
        declare(desk, server, WAITS)
        one = supervisor(start, desk.url, desk.folder, lease_s=4)
        await_true(lambda: [run.steps for run in desk.log.runs()] == [1], "its first answer is not in the log")
        first = desk.await_status("running")
        one.kill()
        supervisor(start, desk.url, desk.folder, lease_s=4)
        await_true(lambda: desk.row.term == 2, "nobody took it over")
        (desk.folder / "work" / "go").touch()
        assert desk.await_status("ended", "failed").status == "ended", desk.output()
        assert (desk.row.run, desk.row.attempt, len(server.requests)) == (first.run, 2, 2)
        assert desk.story == ["starting", "running", "unknown", "starting", "running", "ended"]
        fork, begun = desk.log.runs()
        assert (begun.run, fork.parent, fork.steps) == (first.run, first.run, 2)


def contains() -> bool:
    return shutil.which("bwrap") is not None


@pytest.fixture
def bwrap() -> None:
    if not contains():
        without("needs the program bwrap")


TRIES = """
import errno, socket
said = {}

def tried(name, function):
    try:
        said[name] = function() or "did"
    except OSError as error:
        said[name] = errno.errorcode.get(error.errno, str(error.errno))

def connected(address, family=socket.AF_INET):
    with socket.socket(family) as it:
        it.settimeout(20)
        it.connect(address)

def forked():
    pids = []
    try:
        while len(pids) < 60:  # a fork bomb that is bounded on its own side too
            pid = os.fork()
            if pid == 0:
                time.sleep(60)
                os._exit(0)
            pids.append(pid)
    finally:
        said["forks"] = len(pids)
        for pid in pids:
            os.kill(pid, 9)
            os.waitpid(pid, 0)

paths = json.loads(sys.argv[1])
tried("write work", lambda: open("result", "w").close())
tried("write beside", lambda: open(paths["beside"], "w").close())
tried("write etc", lambda: open("/etc/refold-was-here", "w").close())
tried("write tmp", lambda: open("/tmp/refold-was-here", "w").close())
tried("read log", lambda: str(len(os.listdir(paths["log"]))))
tried("read state", lambda: str(len(os.listdir(paths["state"]))))
tried("read hidden", lambda: open(paths["hidden"]).read() or "empty")
tried("provider", lambda: connected(("127.0.0.1", paths["provider"])))
tried("internet", lambda: connected(("192.0.2.1", 80)))
tried("processes", lambda: str(len([each for each in os.listdir("/proc") if each.isdigit()])))
tried("variables", lambda: ",".join(sorted(each for each in os.environ if each.startswith("REFOLD_"))) or "none")
tried("mount", lambda: os.mkdir("/sys/fs/refold"))
tried("bomb", forked)
said["model"] = ask("hello") if "OPENAI_BASE_URL" in os.environ else "no proxy"
print(json.dumps(said))
"""
RECORDS = """
import refold

with refold.open() as log:
    log.run("desk").drive(lambda run: run.step("attempts", lambda: said))
"""


def forbidden_places(desk: Desk, server: ModelServer) -> dict[str, str | int]:
    """Write a secret file, and return by name the paths and the port that a contained agent tries to reach."""
    (desk.folder / "secret").write_text("a secret")
    state = state_folder("agents", desk.url, {"XDG_STATE_HOME": f"{desk.folder}/state"})
    return {
        "beside": f"{desk.folder}/beside", "log": f"{desk.folder}/log", "state": str(state),
        "hidden": f"{desk.folder}/secret", "provider": int(server.url.rpartition(":")[2]),
    }  # fmt: skip


def test_contained_agent_reaches_only_its_work_folder_and_the_proxy(
    desk: Desk, start: Starting, server: ModelServer, bwrap: None
) -> None:
    server.mind = lambda body: Reply(["an answer"])
    paths = forbidden_places(desk, server)
    declare(
        desk, server, TRIES,
        "isolation = 'bubblewrap'\nhide = ['secret']\n[agents.desk.limits]\nprocesses = 20\nmemory_mb = 2048\n",
    )  # fmt: skip
    toml = desk.folder / "refold.toml"
    toml.write_text(toml.read_text().replace('"agent.py"]', f'"agent.py", {json.dumps(paths)!r}]'))
    supervisor(start, desk.url, desk.folder)
    row = desk.await_status("ended", "failed")
    output = desk.output()
    assert row.status == "ended", (row.why, output)
    said = json.loads(next(line for line in output.splitlines() if line.startswith("{")))
    forks = said.pop("forks")
    assert 5 < forks < 20, "the bomb was bounded from outside"
    assert int(said.pop("processes")) < 5, "it sees its own processes only"
    assert said.pop("read hidden") in ("EACCES", "empty")
    assert said == {
        "write work": "did", "write beside": "did", "write etc": "EROFS", "write tmp": "did",
        "read log": "0", "read state": "0",
        "provider": "ECONNREFUSED", "internet": "ENETUNREACH", "variables": "none", "mount": said["mount"],
        "bomb": "EAGAIN", "model": "an answer",
    }  # fmt: skip
    assert said["mount"] != "did"
    assert not Path("/etc/refold-was-here").exists()
    assert not Path("/tmp/refold-was-here").exists()
    assert not (desk.folder / "beside").exists(), "/tmp, in which this folder is, is its own"
    assert (desk.folder / "work" / "result").exists()
    assert row.contained["network"] == "the capture proxy only"
    assert row.contained["limits"] == {"processes": 20, "memory_mb": 2048}
    [run] = desk.log.runs()
    assert run.agent == "desk"


def test_agent_does_not_start_without_bubblewrap(
    desk: Desk, start: Starting, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = desk.folder / "programs"
    programs.mkdir()
    fake = programs / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    declare(desk, server, "open('ran', 'w')\n", "isolation = 'bubblewrap'")
    supervisor(start, desk.url, desk.folder)
    row = desk.await_status("failed")
    assert row.why == (
        'isolation = "bubblewrap": the kernel refuses it here: bwrap: No permissions to create new namespace'
    )
    assert row.attempt == 0
    assert not (desk.folder / "work" / "ran").exists()


@pytest.mark.parametrize("is_proxied", [False, True])
def test_contained_agent_that_records_itself_reaches_its_log_and_no_network(
    desk: Desk, start: Starting, server: ModelServer, bwrap: None, is_proxied: bool
) -> None:
    server.mind = lambda body: Reply(["an answer"])
    paths = forbidden_places(desk, server)
    (desk.folder / "work" / "agent.py").write_text(ASK + TRIES + RECORDS)
    (desk.folder / "refold.toml").write_text(f"""
[agents.desk]
command = [{sys.executable!r}, "-P", "agent.py", {json.dumps(paths)!r}]
work = "work"
restart = "never"
isolation = "bubblewrap"
hide = ["secret"]
{f"upstream = {server.url!r}" if is_proxied else ""}
limits = {{ processes = 40 }}
""")
    supervisor(start, desk.url, desk.folder)
    row = desk.await_status("ended", "failed")
    assert row.status == "ended", (row.why, desk.output())
    recording = desk.log.recording(row.run)
    said = dict(recording.steps[0].result)
    assert 5 < said["forks"] < 40
    assert (said["write beside"], said["write etc"], said["bomb"]) == ("did", "EROFS", "EAGAIN")
    assert not (desk.folder / "beside").exists()
    assert (said["internet"], said["provider"]) == ("ENETUNREACH", "ECONNREFUSED")
    assert said["read hidden"] in ("EACCES", "empty")
    assert (int(said["read log"]) > 0, said["read state"]) == (True, "1"), "of refold's state it sees its gate"
    assert said["model"] == ("an answer" if is_proxied else "no proxy")
    assert row.contained["network"] == ("the capture proxy only" if is_proxied else "none")
    assert f"{desk.folder}/log" in row.contained["file_system"]
    assert len(server.requests) == is_proxied
