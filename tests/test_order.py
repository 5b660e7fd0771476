"""The order in which xdist's workers get tests (refold_tests/order.py, schedule.py), and the sums at a run's end
(costs.py).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold_tests.costs import Cost, by_file
from refold_tests.order import WAITING, Order
from refold_tests.tree import ROOT

WAITS = "tests/streams/worker/test_a.py"


def _scopes(**tests: int) -> list[tuple[str, str]]:
    return [(f"tests/{name}.py::{number}",) * 2 for name, count in tests.items() for number in range(count)]


def test_worker_finishes_its_module_before_it_helps_where_most_is_left() -> None:
    order = Order(_scopes(a=2, b=5))
    given_out = [order.next_for(worker) for worker in ("x", "y", "y", "y", "x", "y", "x")]
    assert given_out == [
        "tests/b.py::0", "tests/a.py::0", "tests/a.py::1", "tests/b.py::1", "tests/b.py::2", "tests/b.py::3",
        "tests/b.py::4",
    ]  # fmt: skip
    assert not order


def test_half_of_the_workers_start_with_waiting_tests() -> None:
    waiting = [(f"{WAITS}::{number}",) * 2 for number in range(2)]
    order = Order([*waiting, *_scopes(a=2, b=2)])
    assert [order.next_for(worker) for worker in "wxyw"] == [
        f"{WAITS}::0", "tests/b.py::0", "tests/a.py::0", f"{WAITS}::1",
    ]  # fmt: skip


def test_groups_come_first() -> None:
    order = Order([*_scopes(a=1), ("heavy", "tests/b.py::0@heavy"), *_scopes(c=1)])
    assert [order.next_for("x") for _ in range(3)] == ["heavy", "tests/c.py::0", "tests/a.py::0"]


FILES = st.sampled_from(["tests/a.py", "tests/b.py", WAITS])
GROUPS = st.sampled_from(["", "g", "h"])


@given(st.lists(st.tuples(FILES, GROUPS), max_size=30), st.lists(st.sampled_from("wxyz"), min_size=30, max_size=30))
def test_each_scope_is_assigned_once(tests: list[tuple[str, str]], workers: list[str]) -> None:
    nodes = [f"{path}::{number}" for number, (path, _) in enumerate(tests)]
    scopes = {group or node: node + f"@{group}" * bool(group) for node, (_, group) in zip(nodes, tests, strict=True)}
    order = Order(scopes.items())
    assert sorted(order.next_for(worker) for worker, _ in zip(workers, scopes, strict=False)) == sorted(scopes)
    assert not order


CONFTEST = """
from refold_tests import worker_deaths
from refold_tests.schedule import OrderedScheduling

def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        worker_deaths.begin(config)

def pytest_runtest_setup(item):
    worker_deaths.begin_test(item.config)

def pytest_terminal_summary(terminalreporter):
    worker_deaths.tell(terminalreporter)

def pytest_xdist_make_scheduler(config, log):
    return OrderedScheduling(config, log)
"""
DYING = """
import ctypes, os, signal, threading
from pathlib import Path
import pytest

def fault():
    ctypes.string_at(0)

def fault_of_a_client():
    def fault_silently():
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        fault()

    thread = threading.Thread(target=fault_silently)
    thread.start()
    thread.join()

@pytest.mark.parametrize("number", range(40))
def test_one(number):
    once = Path("once")
    if number == 3:
        os._exit(1)
    if number == 11 and not once.exists():
        once.touch()
        fault_of_a_client()
    if number == 20:
        fault_of_a_client()
    if number in (38, 39):
        fault()
"""


@pytest.mark.outside
def test_dying_worker_fails_one_test(tmp_path: Path) -> None:
    """All other tests run once, and the run ends. A silent memory fault, as of Kafka's client, is no failure once."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_dying.py").write_text(DYING)
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadgroup", "."],
        cwd=tmp_path, env={**own, "PYTHONPATH": str(ROOT / "tests" / "support"), "TMPDIR": str(tmp_path)},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert "4 failed, 36 passed" in done.stdout, done.stdout
    died = re.findall(r"ended with status (\S+) in test_dying\.py::test_one\[(\d+)\]", done.stdout)
    assert sorted(died) == [("-11", "11"), ("-11", "20"), ("-11", "20"), ("-11", "38"), ("-11", "39"), ("1", "3")]
    assert done.stdout.count("Fatal Python error: Segmentation fault") == 2
    assert sorted(re.findall(r"test_one\[(\d+)\] ran again", done.stdout)) == ["11", "20"]
    assert [*tmp_path.glob("refold-test-faults-*")] == []


def test_tests_listed_as_waiting_exist() -> None:
    assert [each for each in WAITING if not [*ROOT.glob(f"{each}*")]] == []


def test_costs_are_summed_by_file() -> None:
    def report(node: str, seconds: float, cpu_seconds: float | None) -> pytest.TestReport:
        made = pytest.TestReport(node, (node, 0, ""), {}, "passed", None, "call", duration=seconds)
        made.__dict__.update({} if cpu_seconds is None else {"cpu_seconds": cpu_seconds})
        return made

    reports = [report("a.py::x", 1.0, 0.5), report("a.py::x", 2.0, 0.25), report("a.py::y", 4.0, None),
               report("b.py::z", 1.0, 2.0)]  # fmt: skip
    assert by_file(reports) == [Cost(1.0, 2.0, 1, "b.py"), Cost(7.0, 0.75, 2, "a.py")]
