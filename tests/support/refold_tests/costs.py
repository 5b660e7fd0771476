"""Where a run's time goes, by file: the last lines of a run with `--durations=N`, as CI's is.

A test's CPU seconds are those of its own process and of the processes that it waited for. What the run's servers
compute for it, and what a killed process's children did, is in no test's.
"""

from __future__ import annotations

import resource
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

import pytest

SHOWN = 40
_AT = pytest.StashKey[float]()


class Cost(NamedTuple):
    """Of all tests of a file; `seconds` as the clock on the wall has it."""

    seconds: float
    cpu_seconds: float
    tests: int
    file: str


def begin(config: pytest.Config) -> None:
    """What was computed until now, to collect the tests, is no test's."""
    config.stash[_AT] = _computed()


def note(item: pytest.Item, report: pytest.TestReport) -> None:
    """Write into a phase's report what has been computed since the last one."""
    before, now = item.config.stash[_AT], _computed()
    item.config.stash[_AT] = now
    # xdist sends the attributes of a report along.
    report.__dict__["cpu_seconds"] = now - before


def _computed() -> float:
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def by_file(reports: Iterable[pytest.TestReport]) -> list[Cost]:
    """The files of the reported phases, the most computing first."""
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
    """Print the files that computed most, and the sum of all."""
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
