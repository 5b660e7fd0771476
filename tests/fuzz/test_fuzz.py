"""The fuzzer's short form: the same cases each time. `make fuzz` continues with others, for as long as one likes."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import ClassVar

import cbor2
import pytest

from refold.avro.errors import InputError
from refold.explorer.cli.main import run
from refold.streams.log.file import framing
from refold.streams.log.file.owner import Owner
from refold.streams.web.page import PageResponse, Request, Route, json_answer
from refold.streams.web.server import WebServer
from refold_tests.fuzz import served, target
from refold_tests.fuzz.campaign import IN_MEMORY, keep, kept
from refold_tests.fuzz.case import Case, read_by
from refold_tests.fuzz.driver import Driver
from refold_tests.fuzz.entrances import ENTRANCES, golden_members
from refold_tests.fuzz.records import RECORDS
from refold_tests.fuzz.shrink import shrunk
from refold_tests.fuzz.world import World, made

SEED = 23
# A case that opens a log takes a hundred times as long as one that does not; a conversation waits for deadlines.
CASES = {
    "golden": 300, "cut": 300, **{each.__name__: 300 for each in RECORDS}, "owner": 30, "pages": 30,
    **dict.fromkeys(("prices", "kafka_settings", "key_file", "master_key", "spool", "checkpoint"), 60),
    **dict.fromkeys(("policy_file", "plan", "agents_file"), 60),
    **dict.fromkeys(("policy", "mapped", "search_index", "edits", "explorer"), 5),
}  # fmt: skip
CASES_WITH_A_LOG = 12


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with tempfile.TemporaryDirectory(prefix="refold-fuzz-", dir=IN_MEMORY) as folder:
        yield made(Path(folder))


@pytest.mark.fuzz
@pytest.mark.xdist_group("fuzz")
@pytest.mark.parametrize("entrance", ENTRANCES)
def test_no_input_exposes_a_defect(entrance: str, world: World) -> None:
    with Driver(world, SEED) as driver:
        for number in range(CASES.get(entrance, CASES_WITH_A_LOG)):
            failure = driver.run(entrance, number)
            assert failure is None, str(failure)


@pytest.mark.fuzz
@pytest.mark.xdist_group("fuzz")
def test_no_member_of_a_golden_trace_exposes_a_defect(world: World, is_soak: bool) -> None:
    """Every member as every odd value: all of them in a soak, else every 23rd case."""
    stride = 1 if is_soak else 23
    with Driver(world, SEED) as driver:
        for number, case in enumerate(golden_members(world)):
            if number % stride == 0:
                failure = driver.run_case(f"golden/{number}", case)
                assert failure is None, f"{case.files}\n{failure}"


@pytest.mark.fuzz
@pytest.mark.xdist_group("fuzz")
def test_each_broken_promise_is_found(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
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

        monkeypatch.setattr(Driver, "_request", asked)
        with Driver(world, SEED) as driver:
            failure = driver.run("observe", 1)
        assert failure is not None, why
        assert why in failure.why
        assert f"--seed {SEED} --case observe/1" in str(failure)


@pytest.mark.fuzz
@pytest.mark.xdist_group("fuzz")
@pytest.mark.parametrize("body", ["while True: pass", "raise SystemExit(3)", "import os; os._exit(9)"])
def test_hang_and_process_exit_are_found(
    body: str, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = tmp_path / "agent.py"
    agent.write_text(f"def answer(run):\n    {body}\n")
    signed = world.folder / "whole.golden.json"
    signed.write_text(json.dumps(world.golden))
    case = Case(["golden", "run", str(signed), "--agent", f"{agent}:answer"], log="none")
    monkeypatch.setitem(ENTRANCES, "golden", lambda chance, world: case)
    with Driver(world, SEED, cpu_max_s=3) as driver:
        failure = driver.run("golden", 0)
        assert failure is not None or "raise" in body
        monkeypatch.setitem(
            ENTRANCES, "golden", lambda chance, world: Case(["golden", "list", str(signed)], log="none")
        )
        assert driver.run("golden", 1) is None, "the process was started again"


def test_process_that_waits_forever_is_found(world: World, tmp_path: Path) -> None:
    agent = tmp_path / "agent.py"
    agent.write_text("import time\n\ndef answer(run):\n    time.sleep(600)\n")
    signed = world.folder / "whole.golden.json"
    signed.write_text(json.dumps(world.golden))
    with Driver(world, SEED, wall_max_s=3) as driver:
        case = Case(["golden", "run", str(signed), "--agent", f"{agent}:answer"], log="none")
        failure = driver.run_case("golden/0", case)
    assert failure is not None
    assert "deadline" in failure.why


def test_failing_case_is_minimized() -> None:
    tree = {"a": [1, {"b": "needle", "c": 2}], "d": {"e": [3]}}
    case = Case(
        ["x", "--more", "--flag"], {"x.json": json.dumps(tree).encode(), "y": bytes(999) + b"needle" + bytes(99)}
    )

    def fails(case: Case) -> bool:
        return "--flag" in case.arguments and all(b"needle" in each for each in case.files.values())

    found = shrunk(case, fails, tries=5_000)
    assert found == Case(["x", "--flag"], {"x.json": b"needle", "y": b"needle"})
    assert shrunk(found, fails) == found
    assert shrunk(case, lambda case: False) == case
    assert fails(shrunk(case, fails, tries=3)), "however little it may try"


def test_stored_case_fails_in_the_same_way(world: World, tmp_path: Path) -> None:
    case = read_by("absent", b"x" * 50)  # no reader of that name: a defect of the harness will do
    with Driver(world, SEED) as driver:
        failure = driver.run_case("observe/3", case)
        assert failure is not None
        assert failure.why == "exit 70"
        smaller = driver.smaller(failure)
        assert len(smaller.files["record"]) < 50
        command = keep(smaller, tmp_path, failure)
        assert command == f"make fuzz ARGS='--again {tmp_path / 'observe-3'}'"
        assert kept(tmp_path / "observe-3") == smaller
        again = driver.run_case("observe/3", smaller)
    assert again is not None
    assert again.kind == failure.kind


# What the conversations' judges find


class Broken:
    """Pages with a defect, and one that tells everyone a secret."""

    lanes: ClassVar = {"own": 1}

    def route(self, request: Request) -> Route:
        return Route("own", is_open=True)

    def answer(self, request: Request) -> PageResponse:
        if request.path == "/fails":
            raise ZeroDivisionError
        if request.path == "/secret":
            return json_answer(200, {"state": 1})
        return json_answer(200 if request.path == "/health" else 404, {"healthy": True})


def test_page_that_fails_or_leaks_is_found() -> None:
    web = WebServer("127.0.0.1", 0)
    web.serve(Broken())
    with closing(web):
        served.converse(web.url, [b"GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n"], has_token=True)
        with pytest.raises(AssertionError, match="the page failed"):
            served.converse(web.url, [b"GET /fails HTTP/1.1\r\nHost: localhost\r\n\r\n"])
        with pytest.raises(AssertionError, match="state"):
            served.converse(web.url, [b"GET /secret HTTP/1.1\r\nHost: localhost\r\n\r\n"], has_token=True)


def test_owner_that_fails_or_stores_what_it_refused_is_found(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(world.folder)
    try:
        question = cbor2.dumps([framing.encode(["flush", None])])
        served.owner(question)
        with monkeypatch.context() as patch:
            patch.setattr(Owner, "answer", lambda *_: 1 / 0)
            with pytest.raises(AssertionError, match="ZeroDivisionError"):
                served.owner(question)

        def stores(log: Owner, op: str, payload: object) -> object:
            if op == "mark":
                owned.log.mark("again")
                raise InputError("refused")
            return None

        owned = served._owner()
        monkeypatch.setattr(Owner, "answer", stores)
        with pytest.raises(AssertionError, match="the log is changed"):
            served.owner(cbor2.dumps([framing.encode(["mark", None])]))
    finally:
        served.close()


def test_case_is_deterministic(world: World) -> None:
    for entrance, make in ENTRANCES.items():
        one, other = (make(random.Random(f"{SEED}/{entrance}/7"), world) for _ in range(2))
        assert one == other, entrance


def test_target_reports_how_a_command_ended() -> None:
    assert target.ran(["types", "nope"])[0] == 2
    status, out, _ = target.ran(["types", "--json"])
    assert status == 0
    assert "tool_config" in out
