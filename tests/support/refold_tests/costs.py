"""The CPU time of a test run by file. It is printed at the end of a run with `--durations=N`, as in CI.

A test's CPU seconds are those of its own process, and of child processes and forked processes that it waited for. CPU
time of the shared servers, and of the children of killed processes, is not attributed to any test.
"""

from __future__ import annotations

import resource
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

import pytest

from refold_tests.forked import ForkServer

SHOWN = 40
_AT = pytest.StashKey[float]()


class Cost(NamedTuple):
    """The cost of all tests of a file. `seconds` is wall-clock time."""

    seconds: float
    cpu_seconds: float
    tests: int
    file: str


def begin(config: pytest.Config) -> None:
    """Start counting. CPU time before this, for collecting the tests, is not attributed to any test."""
    config.stash[_AT] = _computed()


def note(item: pytest.Item, report: pytest.TestReport) -> None:
    """Add the CPU time since the last report to a phase's report."""
    before, now = item.config.stash[_AT], _computed()
    item.config.stash[_AT] = now
    # xdist transfers the report's attributes.
    report.__dict__["cpu_seconds"] = now - before


def _computed() -> float:
    used = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return used + ForkServer.cpu_s


def by_file(reports: Iterable[pytest.TestReport]) -> list[Cost]:
    """Return the cost of each file, the most CPU time first."""
    seconds, cpu, tests = (
        defaultdict[str, float](float),
        defaultdict[str, float](float),
        defaultdict[str, set[str]](set),
    )
    for each in reports:
        file = each.nodeid.partition("::")[0]
        seconds[file] += each.duration
        cpu[file] += each.__dict__.get("cpu_seconds", 0.0)
        tests[file].add(each.nodeid)
    return sorted((Cost(seconds[each], cpu[each], len(tests[each]), each) for each in seconds),
                  key=lambda cost: cost.cpu_seconds, reverse=True)  # fmt: skip


def tell(terminal: pytest.TerminalReporter) -> None:
    """Print the files that used most CPU time, and the total."""
    found = by_file(
        report for reports in terminal.stats.values() for report in reports if isinstance(report, pytest.TestReport)
    )
    terminal.section("costs by file: CPU seconds, seconds, tests")
    everything = Cost(
        sum(each.seconds for each in found), sum(each.cpu_seconds for each in found),
        sum(each.tests for each in found), f"all {len(found)} files",
    )  # fmt: skip
    for each in (everything, *found[:SHOWN]):
        terminal.write_line(f"{each.cpu_seconds:8.1f} {each.seconds:8.1f} {each.tests:5}  {each.file}")
