"""`refold up` as a command: until all is done, with its metrics."""

from __future__ import annotations

import errno
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from refold.agents.supervise import owner
from refold.agents.supervise.keeper import KeeperOrder
from refold.agents.supervise.kept_process import KeptProcess
from refold.agents.supervise.lease import AgentRecord
from refold.agents.supervise.listing import agents
from refold.agents.supervise.machine import NextMove, ProcessView, next_move
from refold.agents.supervise.settings import AgentSettings, load_agents
from refold.agents.supervise.supervisor import Supervisor
from refold_tests.command import environment, refold_command, started
from refold_tests.supervised import Desk, now
from refold_tests.supervising import lives, lone_agent, supervisor_settings

pytestmark = pytest.mark.outside


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with Desk(tmp_path) as found:
        yield found


def test_it_ends_when_all_is_done_and_says_whether_an_agent_failed(desk: Desk) -> None:
    (desk.folder / "refold.toml").write_text("""
[agents.good]
command = ["true"]
restart = "on-failure"
[agents.bad]
command = ["false"]
restart = "never"
""")
    more = {"XDG_STATE_HOME": f"{desk.folder}/state"}
    done = refold_command("up", "good", "--until-done", log=desk.url, folder=desk.folder, more=more)
    assert (done.status, done.err) == (0, "")
    assert "good: ended: it exited with 0\n" in done.out
    assert "bad" not in done.out
    done = refold_command("up", "--until-done", log=desk.url, folder=desk.folder, more=more)
    assert done.status == 1
    assert "bad: failed: it exited with 1\n" in done.out
    assert "good: starting" not in done.out, "it had ended"


def test_its_metrics_count_agents_and_name_none(desk: Desk) -> None:
    lone_agent(desk.folder)
    up = started(
        "up", "--metrics-port", "0", cwd=desk.folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        env=environment(desk.url, {"XDG_STATE_HOME": f"{desk.folder}/state"}),
    )  # fmt: skip
    with up:
        try:
            assert up.stderr is not None
            found = re.search(r"http://\S+/metrics", up.stderr.readline())
            assert found is not None
            desk.await_status("running")
            with urllib.request.urlopen(found[0]) as answer:
                text = answer.read().decode()
        finally:
            up.send_signal(signal.SIGTERM)
            assert up.wait() == 0
    assert 'refold_supervisor_starts_total{log="log"} 1.0' in text
    assert 'refold_supervisor_failures_total{log="log"} 0.0' in text
    assert "desk" not in text
    assert desk.row.status == "stopped"


def test_a_defect_and_a_failed_start_of_one_agent_leave_the_others_alone(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    (desk.folder / "refold.toml").write_text("""
[agents.defect]
command = ["defect"]
[agents.bad]
command = ["bad"]
backoff_s = 0.01
retries = 1
[agents.good]
command = ["true"]
""")

    class Process(KeptProcess):
        def __init__(self, order: KeeperOrder) -> None:
            if order.command[0] == "bad":
                raise BlockingIOError(errno.EAGAIN, "no more processes")
            super().__init__(order)

    def move(record: AgentRecord, process: ProcessView, settings: AgentSettings, *more: Any) -> NextMove:
        return NextMove(observed=1 / 0) if settings.name == "defect" else next_move(record, process, settings, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(owner, "KeptProcess", Process)
    monkeypatch.setattr(owner, "next_move", move)
    said: list[str] = []
    by = supervisor_settings(desk.url, desk.folder, 60, said.append)
    done = {
        "good: ended: it exited with 0",
        "bad: failed: no process can be started: no more processes, 2 times in a row",
    }
    supervisor = Supervisor(desk.log, load_agents(desk.folder / "refold.toml"), by)

    def is_stopped(wait_s: float) -> bool:
        time.sleep(0.01)
        return done <= {*said}

    assert not supervisor.run(is_stopped)
    assert said.count("defect: a defect: ZeroDivisionError: division by zero") == 1
    assert supervisor.counts()[2:] == (1, 2, 0, {})


BAD_POLICY = "import refold\nwith refold.open() as log:\n    log.run('bad').drive(print)\n"


def test_agents_that_fail_in_each_way_leave_another_alone(desk: Desk) -> None:
    lone_agent(desk.folder)
    (desk.folder / "policy.toml").write_text("name = 'p'\n")
    (desk.folder / "bad.py").write_text(BAD_POLICY)
    with (desk.folder / "refold.toml").open("a") as file:
        file.write(f"""
[agents.crash]
command = ["false"]
backoff_s = 0.01
retries = 3
[agents.missing]
command = ["no-such-program"]
[agents.noisy]
command = ["yes"]
output_mb = 1
[agents.policy]
command = [{sys.executable!r}, "-P", "bad.py"]
policy = "policy.toml"
retries = 0
""")
    declared = load_agents(desk.folder / "refold.toml")
    (desk.folder / "policy.toml").write_text("name =")
    by = supervisor_settings(desk.url, desk.folder, 60, print)

    def is_stopped(wait_s: float) -> bool:
        time.sleep(0.05)
        found = {each.name: each.status for each in agents(desk.log, now())}
        has_filled = any((desk.folder / "state").rglob("noisy/output.log.1"))
        failed = dict.fromkeys(("crash", "missing", "policy"), "failed")
        return has_filled and found == {**failed, "desk": "running", "noisy": "running"}

    Supervisor(desk.log, declared, by).run(is_stopped)
    rows = {each.name: each for each in agents(desk.log, now())}
    assert rows["crash"].attempt == 4
    assert len(lives(desk.folder)) == 1
    assert [each["after"] for each in rows["desk"].transitions] == ["starting", "running", "stopping", "stopped"]
    assert "policy.toml is no TOML" in next((desk.folder / "state").rglob("policy/output.log")).read_text()
