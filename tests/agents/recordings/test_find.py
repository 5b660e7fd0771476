"""Runs are found by fields in clear and by their content; those that cannot be read are counted."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

import refold
from refold.agents.journal.record import Attempt, Failure, Step
from refold.agents.keys.ring import MemoryKeyRing
from refold.agents.recordings.find import READ_AT_ONCE, RunConditions, RunList, find
from refold.agents.vault import ClearVault, Vault, run_key
from refold.avro.errors import InputError
from refold.streams.client import Log
from refold_tests.command import refold_command
from refold_tests.recorded_runs import BEGIN, SECOND, call, chained, forked, random_run, write

NAMES = ("r-1", "r-2", "r-3", "r-4", "r-5")


@dataclass(frozen=True)
class Filled:
    """A log with runs in it."""

    log: Log
    vault: Vault

    def find(
        self, limit: int | None = None, search_steps: int | None = None, runs_at_once: int = READ_AT_ONCE, **wanted: Any
    ) -> RunList:  # fmt: skip
        """Find the matching runs."""
        conditions = RunConditions(**wanted)
        return find(self.log, self.vault, conditions, limit, search_steps=search_steps, runs_at_once=runs_at_once)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Iterator[Filled]:
    """Yield five runs that begin a second apart, the last of them still running, and a child of the first."""
    with refold.open(f"file:{tmp_path_factory.mktemp('find') / 'log'}") as log:
        vault = Vault(log, MemoryKeyRing())
        fill(log, vault, random.Random(seed))
        yield Filled(log, vault)


def test_log_runs_filters_as_the_command_does(tmp_path: Path) -> None:
    with refold.open(f"file:{tmp_path / 'log'}") as log:
        for name, agent, tags in (("a", "desk", ("x",)), ("b", "desk", ()), ("c", "other", ("x",))):
            with log.run(agent, id=name, tags=tags, input={"order": name * 9}) as run:
                run.step("shout", str.upper, "it")
        with pytest.raises(ValueError, match="broken"), log.run("desk", id="d"):
            raise ValueError("broken")
        going = log.run("desk", id="e")
        found = log.runs(agent="desk")
        assert (sorted(each.run for each in found), len(found), found.unread, found.damaged) == (
            ["a", "b", "d", "e"], 4, [], {},
        )  # fmt: skip
        asked: list[tuple[dict[str, Any], set[str]]] = [
            ({}, {"a", "b", "c", "d", "e"}), ({"tag": "x"}, {"a", "c"}), ({"text": "BBBBBBBBB"}, {"b"}),
            ({"outcome": "running"}, {"e"}), ({"outcome": "failed", "error": "valueerror"}, {"d"}),
            ({"agent": "nobody"}, set()), ({"flagged": True}, set()), ({"user": "u"}, set()), ({"tool": "t"}, set()),
            ({"since": "2100-01-01T00:00:00Z"}, set()), ({"until": dt.datetime(2001, 1, 1, tzinfo=dt.UTC)}, set()),
        ]  # fmt: skip
        for given, names in asked:
            assert {each.run for each in log.runs(**given)} == names, given
            words = [word for name, value in given.items()
                     for word in ([f"--{name}"] if value is True else [f"--{name}", time_word(value)])]  # fmt: skip
            printed = refold_command("runs", "--json", *words, log=f"file:{tmp_path / 'log'}").json
            assert {each["run"] for each in printed} == names, given
        (newest,) = log.runs(limit=1)
        assert log.runs(limit=1).older == 4
        (first,) = log.runs(agent="desk", tag="x")
        assert first.started is not None
        assert first.ended is not None
        assert dt.timedelta(0) <= first.ended - first.started
        assert log.runs(agent="desk", tag="x", since=first.started, until=first.started)[0] == first
        assert newest.outcome in ("running", "failed")
        with pytest.raises(InputError, match="time zone"):
            log.runs(since=dt.datetime(2001, 1, 1))  # noqa: DTZ001  # what is refused
        with pytest.raises(InputError, match="outcome: one of succeeded"):
            log.runs(outcome="well")
        with pytest.raises(InputError, match="limit: 0 or more"):
            log.runs(limit=-1)
        going.end(None)


def time_word(value: Any) -> str:
    return value.isoformat() if isinstance(value, dt.datetime) else str(value)


def fill(log: Log, vault: Vault, rng: random.Random) -> None:
    base = random_run(rng, "base", 2)
    runs = []
    for number, name in enumerate(NAMES, 1):
        calls = (call(f"tool-{number}", {"said": f"Answer {number}"}, f"argument {number}"),)
        failure = Failure(exception="acme.RateLimited", message=f"too fast {number}") if number == 2 else None
        step = Step(number=1, name="act", attempts=(Attempt(calls=calls, failure=failure),), outcome="succeeded")
        runs.append(chained(msgspec.structs.replace(
            base, run=name, agent=f"agent-{number % 2}", user=f"u-{number}", started_at=BEGIN + number * SECOND,
            steps=(step,), outcome="failed" if number == 2 else "succeeded", title=f"Title {number}",
            input={"order": 4710 + number}, output=f"Output {number}", tags=("odd",) if number % 2 else (),
            flagged=number == 3, failure=failure, ended_at=0 if number == 5 else BEGIN + (10 + number) * SECOND,
        )))  # fmt: skip
    runs[4] = msgspec.structs.replace(runs[4], outcome="", hash="", status="running", failure=None)
    own = msgspec.structs.replace(runs[0].steps[0], number=2, attempts=(Attempt(calls=(call("tool-9"),)),))
    runs.append(msgspec.structs.replace(forked(runs[0], "child", 1, own), started_at=BEGIN + 6 * SECOND))
    for each in runs:
        write(log, each, vault)


def ids(found: RunList) -> list[str]:
    return [each.run for each in found.rows]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({}, ["child", "r-5", "r-4", "r-3", "r-2", "r-1"]),
        ({"since": BEGIN + 2 * SECOND, "until": BEGIN + 4 * SECOND}, ["r-4", "r-3", "r-2"]),
        ({"agent": "agent-0"}, ["r-4", "r-2"]),
        ({"outcome": "failed"}, ["r-2"]),
        ({"outcome": "running"}, ["r-5"]),
        ({"user": "u-3"}, ["r-3"]),
        ({"tag": "odd"}, ["r-5", "r-3", "r-1"]),
        ({"parent": "r-1"}, ["child"]),
        ({"flagged": True}, ["r-3"]),
        ({"tool": "tool-1"}, ["r-1"]),
        ({"tool": "tool"}, []),
        ({"tool": "tool-9"}, ["child"]),
        ({"error": "ratelimited"}, ["r-2"]),
        ({"error": "TOO FAST 2"}, ["r-2"]),
        ({"text": "answer 4"}, ["r-4"]),
        ({"text": "argument 3"}, ["r-3"]),
        ({"text": "title 5"}, ["r-5"]),
        ({"text": "output 2"}, ["r-2"]),
        ({"text": "4711"}, ["child", "r-1"]),
        ({"text": "answer", "outcome": "succeeded", "agent": "agent-1"}, ["r-3", "r-1"]),
        ({"text": "nothing like it"}, []),
    ],
    ids=str,
)
def test_run_filters(filled: Filled, wanted: dict[str, Any], expected: list[str]) -> None:
    found = filled.find(**wanted)
    assert ids(found) == expected
    assert found.unread == []


def test_row_has_the_columns_of_a_list(filled: Filled) -> None:
    rows = {each.run: each for each in filled.find().rows}
    first, child, running = rows["r-1"], rows["child"], rows["r-5"]
    assert (first.agent, first.started_at, first.ended_at) == ("agent-1", BEGIN + SECOND, BEGIN + 11 * SECOND)
    assert (first.outcome, first.steps, first.parent, first.title) == ("succeeded", 1, "", "Title 1")
    assert (child.steps, child.parent) == (2, "r-1")
    assert (running.outcome, running.ended_at, running.steps) == ("running", None, 1)


def test_limit_keeps_the_newest(filled: Filled) -> None:
    assert ids(filled.find(limit=2)) == ["child", "r-5"]
    assert ids(filled.find(limit=2, text="answer")) == ["r-5", "r-4"]
    assert ids(filled.find(limit=0)) == []


def test_search_reads_at_most_so_many_steps(filled: Filled) -> None:
    every = ids(filled.find())
    counts = [each.steps for each in filled.find().rows]
    assert (every[0], counts[0], counts[1]) == ("child", 2, 1)  # r-5 has not ended: its steps are not counted
    for begins in (2, 32):  # runs are read by parts, or all at once
        found = filled.find(text="answer", search_steps=3, runs_at_once=begins)
        assert (ids(found), found.older) == (["r-5", "r-4"], len(every) - 3)
        found = filled.find(text="answer", search_steps=1, runs_at_once=begins)
        assert (ids(found), found.older) == (["r-5", "r-4"], len(every) - 2)  # without the child, which has two
        found = filled.find(text="answer", search_steps=1_000, runs_at_once=begins)
        assert (ids(found), found.older) == (ids(filled.find(text="answer")), 0)
    assert ids(filled.find(search_steps=0)) == every  # nothing is searched in steps
    with pytest.raises(InputError, match="search_steps: 0 or more"):
        filled.find(search_steps=-1)


def test_unreadable_runs_are_counted(tmp_path: Path, seed: int) -> None:
    with refold.open(f"file:{tmp_path / 'log'}") as log:
        filled = Filled(log, Vault(log, MemoryKeyRing()))
        fill(log, filled.vault, random.Random(seed))
        filled.vault.ring.destroy(run_key("r-4"))
        found = filled.find(text="answer")
        assert (ids(found), found.unread) == (["r-5", "r-3", "r-2", "r-1"], ["r-4"])
        [row] = filled.find(user="u-4").rows
        assert (row.title, row.outcome, row.steps) == (None, "succeeded", 1)
        assert ids(filled.find(tool="tool-4")) == ["r-4"]
        sealed = find(log, ClearVault(log), RunConditions(text="answer"))
        assert (sealed.rows, len(sealed.unread)) == ([], 6)


def test_log_without_runs_has_none(tmp_path: Path) -> None:
    with refold.open(f"file:{tmp_path / 'log'}") as log:
        assert find(log, ClearVault(log), RunConditions()).rows == []
        log.observe("document/a", {"kind": "x"})
        assert find(log, ClearVault(log), RunConditions(text="x")).rows == []
