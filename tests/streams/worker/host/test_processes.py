"""Several workers under one supervisor: real processes, real signals."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

from refold_tests.child import Child

SUPERVISOR = """
import logging, sys
from refold.streams.worker.host.processes import run_several
logging.basicConfig(stream=sys.stdout, format="%(message)s")
sys.exit(run_several([[sys.executable, "-c", code] for code in sys.argv[1:]]))
"""
SO_ALL = ", so the others are ended too; start them all again"
WAITS = r"""
import os, signal, sys, time
def drain(*_):
    os.write(1, b"drained\n")  # in one piece: others write to the same pipe
    sys.exit()
signal.signal(signal.SIGTERM, drain)
os.write(1, b"began\n")
while True:
    time.sleep(0.05)
"""
NEVER_STOPS = """
import os, threading
os.dup2(1, 2)
from refold.streams.worker.host.process import run_process
class Stuck:
    def run(self):
        print("began", flush=True)
        threading.Event().wait()
    def drain(self):
        print("asked to stop", flush=True)
run_process(Stuck(), stop_s=1)
"""
ENDS = "import sys; sys.stdin.readline(); sys.exit({})"


def rest(process: Child) -> list[str]:
    lines = []
    while line := process.line():
        lines.append(line)
    return lines


def test_signal_drains_all(child: Callable[..., Child]) -> None:
    process = child(SUPERVISOR, WAITS, WAITS)
    assert [process.line(), process.line()] == ["began", "began"]
    os.kill(process.process.pid, signal.SIGTERM)
    assert (rest(process), process.process.wait(300)) == (["drained", "drained"], 0)


def test_one_failure_ends_all_with_its_status(child: Callable[..., Child]) -> None:
    process = child(SUPERVISOR, WAITS, ENDS.format(7))
    assert process.line() == "began"
    process.say("go")
    assert (rest(process), process.process.wait(300)) == ([f"worker 2 ended with status 7{SO_ALL}", "drained"], 7)


def test_unrequested_exit_is_a_failure(child: Callable[..., Child]) -> None:
    process = child(SUPERVISOR, WAITS, ENDS.format(0))
    assert process.line() == "began"
    process.say("go")
    assert (rest(process), process.process.wait(300)) == ([f"worker 2 ended with status 0{SO_ALL}", "drained"], 1)


def test_several_that_end_at_once_are_all_waited_for(child: Callable[..., Child], tmp_path: Path) -> None:
    """Also one that ends while another is asked to end."""
    at_once = f"import os, time\nwhile not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.001)\nos._exit(7)"
    process = child(SUPERVISOR, *[at_once] * 5, WAITS)
    assert process.line() == "began"
    (tmp_path / "go").touch()
    said = rest(process)
    assert "drained" in said
    assert process.process.wait(300) == 7


def test_killed_process_ends_all(child: Callable[..., Child], tmp_path: Path) -> None:
    says_its_id = f"import os; open({str(tmp_path / 'id')!r}, 'w').write(str(os.getpid()))\n" + WAITS
    process = child(SUPERVISOR, WAITS, says_its_id)
    assert [process.line(), process.line()] == ["began", "began"]
    os.kill(int((tmp_path / "id").read_text()), signal.SIGKILL)
    assert rest(process) == [f"worker 2 was killed by SIGKILL{SO_ALL}", "drained"]
    assert process.process.wait(300) == 128 + signal.SIGKILL


def test_process_that_does_not_stop_shows_its_stacks_and_is_ended(child: Callable[..., Child]) -> None:
    process = child(NEVER_STOPS)
    assert process.line() == "began"
    os.kill(process.process.pid, signal.SIGTERM)
    said = rest(process)
    assert process.process.wait(300) == 1
    assert "asked to stop" in said
    assert any(each.startswith("Timeout (0:00:01)!") for each in said)
    assert any(" in run" in each for each in said)
