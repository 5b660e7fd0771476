"""The fuzzer's short form: the same cases each time. `make fuzz` goes on with others, for as long as one likes."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from refold.explorer.cli.main import run
from refold_tests.fuzz import driver as driving
from refold_tests.fuzz import target
from refold_tests.fuzz.campaign import IN_MEMORY
from refold_tests.fuzz.driver import Driver
from refold_tests.fuzz.entrances import ENTRANCES, Case
from refold_tests.fuzz.world import World, made

SEED = 23
# A case that opens a log takes a hundred times as long as one that does not.
CASES = {"golden": 300, "observation": 300, "definition": 300, "cut": 300, "answer": 300}
CASES_WITH_A_LOG = 12


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with tempfile.TemporaryDirectory(prefix="refold-fuzz-", dir=IN_MEMORY) as folder:
        yield made(Path(folder))


@pytest.mark.fuzz
@pytest.mark.xdist_group("fuzz")
@pytest.mark.parametrize("entrance", ENTRANCES)
def test_no_input_shows_a_defect(entrance: str, world: World) -> None:
    with Driver(world, SEED) as driver:
        for number in range(CASES.get(entrance, CASES_WITH_A_LOG)):
            failure = driver.run(entrance, number)
            assert failure is None, str(failure)


@pytest.mark.fuzz
@pytest.mark.xdist_group("fuzz")
def test_each_promise_that_is_broken_is_found(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fuzzer that finds nothing shows nothing unless it can."""
    answers = {
        "exit 70": {"status": 70, "err": "refold: a defect\n"},
        "a traceback": {"status": 2, "err": "Traceback (most recent call last):\n"},
        "a refusal that is not one line": {"status": 2, "err": "refold: a\nb\n"},
        "of memory": {"status": 0, "err": "", "peak_bytes": 3 << 30},
        "the log is changed": {"status": 2, "err": "refold: no\n"},
    }
    for why, answer in answers.items():
        world.renewed()

        def asked(
            self: Driver, case: Case, log: Path, *, debug: bool, why: str = why, answer: object = answer
        ) -> object:
            if "changed" in why:
                assert run(["mark", "again", "--log", f"file:{log}"]) == 0
            assert isinstance(answer, dict)
            return {"out": "", "peak_bytes": 0, **answer}

        monkeypatch.setattr(Driver, "_asked", asked)
        with Driver(world, SEED) as driver:
            failure = driver.run("observe", 1)
        assert failure is not None, why
        assert why in failure.why
        assert f"--seed {SEED} --case observe/1" in str(failure)


@pytest.mark.fuzz
@pytest.mark.xdist_group("fuzz")
@pytest.mark.parametrize("body", ["while True: pass", "raise SystemExit(3)", "import os; os._exit(9)"])
def test_a_hang_and_an_end_of_the_process_are_found(
    body: str, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driving, "DEADLINE_S", 10)
    agent = tmp_path / "agent.py"
    agent.write_text(f"def answer(run):\n    {body}\n")
    signed = world.folder / "whole.golden.json"
    signed.write_text(json.dumps(world.golden))
    case = Case(["golden", "run", str(signed), "--agent", f"{agent}:answer"], log="none")
    monkeypatch.setitem(ENTRANCES, "golden", lambda chance, world: case)
    with Driver(world, SEED) as driver:
        failure = driver.run("golden", 0)
        assert failure is not None or "raise" in body
        monkeypatch.setitem(
            ENTRANCES, "golden", lambda chance, world: Case(["golden", "list", str(signed)], log="none")
        )
        assert driver.run("golden", 1) is None, "the process was started again"


def test_a_case_is_the_same_each_time(world: World) -> None:
    for entrance, make in ENTRANCES.items():
        one, other = (make(random.Random(f"{SEED}/{entrance}/7"), world) for _ in range(2))
        assert one == other, entrance


def test_the_target_says_how_a_command_ended() -> None:
    assert target.ran(["types", "nope"])[0] == 2
    status, out, _ = target.ran(["types", "--json"])
    assert status == 0
    assert "tool_config" in out
