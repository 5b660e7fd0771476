"""Loops are found by what the log holds: with partitions in any order, and with changes delivered twice."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import refold
from refold.agents.examples.loops import REPEATS
from refold.streams.worker.agents import load_agents


def drive(log: refold.Log, order: random.Random) -> None:
    """Do what a worker does, but deliver each change twice, until the agents record nothing new."""
    agents = load_agents("refold.agents.examples.loops")
    done = 0
    while True:
        log.flush()
        changes = list(log.changes())
        if len(changes) == done:
            return
        fresh, done = changes[done:], len(changes)
        for change in order.sample(fresh * 2, len(fresh) * 2):
            for agent in agents:
                agent(change, log)


@pytest.mark.parametrize(("calls", "is_loop"), [(REPEATS - 1, False), (REPEATS, True), (REPEATS + 3, True)])
def test_loop_is_reported_once_from_the_nth_call_on(tmp_path: Path, seed: int, calls: int, is_loop: bool) -> None:
    with refold.open(f"file:{tmp_path / 'log'}") as log:
        for run in ("a", "b"):  # b calls as often, but never twice with the same arguments
            for number in range(calls):
                inputs_hash = "same" if run == "a" else str(number)
                log.observe(f"action/{run}-{number}", {"run": run, "tool": "search", "inputs_hash": inputs_hash})
        drive(log, random.Random(seed))
        view = log.rebuild()
        found = [view[entity] for entity in view if entity.startswith("audit_event/")]
        assert [(each.fields["verb"], each.version) for each in found] == ([("loop", 1)] if is_loop else [])
        for each in found:
            assert log.state(each.fields["object"]).fields["fields"] == {"run": "a", "tool": "search"}
