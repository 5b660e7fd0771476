"""Volatile parts of requests: a request that differs only there is answered, one that differs elsewhere departs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import refold
from refold.agents.compare.compare import compare, uncompared
from refold.agents.golden.add import golden_of_run
from refold.agents.golden.file import golden_of, text_of
from refold.agents.golden.runner import judged_run
from refold.agents.journal.matching import asks_same
from refold.agents.journal.record import Plain, RecordedRequest
from refold.agents.journal.volatile import without
from refold.agents.log import AgentLog
from refold.agents.recorder.run import Run
from refold.agents.replay.unrecorded import Unrecorded
from refold.avro.errors import InputError

NUMBERS = iter(range(10**6))
SENT: list[Any] = []

# Paths


@pytest.mark.parametrize(
    ("path", "left"),
    [
        ("id", {"at": {"x": 1, "a b": 2}, "of": [{"id": 1, "n": 1}, {"id": 2}]}),
        ("at.x", {"id": 5, "at": {"a b": 2}, "of": [{"id": 1, "n": 1}, {"id": 2}]}),
        ('at["a b"]', {"id": 5, "at": {"x": 1}, "of": [{"id": 1, "n": 1}, {"id": 2}]}),
        ("of[0].id", {"id": 5, "at": {"x": 1, "a b": 2}, "of": [{"n": 1}, {"id": 2}]}),
        ("of[*].id", {"id": 5, "at": {"x": 1, "a b": 2}, "of": [{"n": 1}, {}]}),
        ("of[1]", {"id": 5, "at": {"x": 1, "a b": 2}, "of": [{"id": 1, "n": 1}, None]}),
        ("none.at[7].all", None),
    ],
)
def test_path_removes_exactly_what_it_names(path: str, left: Plain) -> None:
    given = {"id": 5, "at": {"x": 1, "a b": 2}, "of": [{"id": 1, "n": 1}, {"id": 2}]}
    whole = json.dumps(given)
    assert without({"kwargs": given}, [path]) == {"kwargs": given if left is None else left}
    assert json.dumps(given) == whole


def test_positional_arguments_and_exchange_bodies() -> None:
    assert without({"args": [1, {"id": 2}], "kwargs": {"a": 1}}, ["args[1].id"]) == {
        "args": [1, {}],
        "kwargs": {"a": 1},
    }
    exchange = {"exchange": 1, "method": "POST", "url": "u", "type": "t", "body": '{"a": 1, "id": 2}'}
    assert without(exchange, ["id"]) == {**exchange, "body": {"a": 1}}
    for odd in (None, 5, [1], {"choice": 1}, {"args": 7, "kwargs": [1]}, {"exchange": 1}):
        without(odd, ["a.b", "args[0].c"])
    for body in ("no JSON", {"base64": "eA=="}, "5"):
        assert without({**exchange, "body": body}, ["id"])["body"] == (5 if body == "5" else body)


@pytest.mark.parametrize("path", ["", ".a", "a.", "[0]", "a[", "a[-1]", "a[x]", 'a["b]', "a..b"])
def test_invalid_path_is_refused_at_its_definition(path: str) -> None:
    with pytest.raises(InputError, match="not a path"):
        refold.tool(ignore=[path])


def test_contradictory_settings_are_refused() -> None:
    options: list[Any] = [{"ignore": "id"}, {"ignore": ["id"], "key": len}, {"key": 5}]
    for each in options:
        with pytest.raises(InputError):
            refold.tool(**each)


# The law

TREES: Any = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2) | st.sampled_from(["", "x"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)
PATHS = st.lists(st.sampled_from(["a", "b.a", "a[0]", "c[*].b", "b.c.a", "c[1].a"]), max_size=2)


@given(st.dictionaries(st.sampled_from("abc"), TREES, max_size=3),
       st.dictionaries(st.sampled_from("abc"), TREES, max_size=3), PATHS)  # fmt: skip
@example({"a": 1, "b": {"c": 1}}, {"a": 2, "b": {"c": True}}, ["a"])
@example({"a": 1}, {}, ["a"])
def test_requests_are_equal_exactly_when_only_ignored_parts_differ(
    one: dict[str, Any], other: dict[str, Any], paths: list[str]
) -> None:
    now, recorded = (
        RecordedRequest(kind="tool", name="t", request={"kwargs": each}, ignored=tuple(paths)) for each in (one, other)
    )
    same = json.dumps(without(now.request, paths), sort_keys=True) == json.dumps(
        without(recorded.request, paths), sort_keys=True
    )
    assert asks_same(now, recorded) == asks_same(recorded, now) == same == (now.hash == recorded.hash)
    if not paths:
        assert same == (json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True))


def test_stored_hashes_do_not_change() -> None:
    whole = RecordedRequest(kind="tool", name="t", request={"kwargs": {"a": 1}})
    assert whole.hash == "13db1806d39afaeff28bf98aba3774c25445ed49862d61358a77c564c261d6bd"


# In runs


@refold.tool(ignore=["request_id", "options.at"])
def find(order: str, request_id: int, options: Any) -> str:
    SENT.append(order)
    return f"found {order}"


@refold.tool(effect="write", ignore=["request_id"])
def refund(order: str, request_id: int, *, idempotency_key: str = "") -> str:
    SENT.append((order, idempotency_key))
    return f"refunded {order}"


@refold.tool(key=lambda asked: asked["order"].lower())
def look(order: str) -> str:
    SENT.append(order)
    return "seen"


def chat(prompt: str, *, order: str) -> str:
    SENT.append(prompt)
    return f"about {order}"


class Wire(httpx2.BaseTransport):
    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        SENT.append(request.content)
        return httpx2.Response(200, text="over the wire")


def agent(run: Run, order: str = "O-7", options: Any = None) -> Any:
    number = next(NUMBERS)  # a value that no run records
    client = run.client(httpx2.Client(transport=Wire()), ignore=["metadata.id"])
    return [
        find(order, number, {"at": number, **(options or {})}),
        run.model(chat, f"prompt {number}", order=order, ignore=["args[0]"]),
        client.post("http://x.example/v1", json={"order": order, "metadata": {"id": number}}).text,
        look(order if number % 2 else order.lower()),
        refund(order, request_id=number),
    ]


@pytest.fixture(autouse=True)
def nothing_sent() -> None:
    SENT.clear()


def test_replay_golden_and_compare_agree_on_equality(log: AgentLog) -> None:
    run = log.run("a")
    answers = run.drive(agent)
    recording = log.recording(run.id)
    calls = [call.asked for step in recording.steps for call in step.calls]
    first = calls[0].request["kwargs"]["request_id"]
    assert calls[0].request == {"kwargs": {"order": "O-7", "request_id": first, "options": {"at": first}}}
    assert [each.ignored for each in calls] == [
        ("request_id", "options.at"), ("args[0]",), ("metadata.id",), (), ("request_id",)
    ]  # fmt: skip
    assert calls[3].found_by == "o-7"
    SENT.clear()
    for _ in range(2):
        replayed = log.replay(run.id, agent)
        assert (replayed.is_same, replayed.now.output, replayed.unused) == (True, answers, ())
    golden = golden_of(text_of(golden_of_run(recording, lambda entity, answer: {}, name="g", entry="x:agent")), "g")
    verdict = judged_run(golden, agent, "agent", Path())
    assert verdict.passed
    assert "  not compared  tool find: matched without request_id, options.at" in str(verdict).splitlines()
    assert verdict.tree["uncompared"][-1] == "tool refund: matched without request_id"
    assert SENT == []

    other = log.run("a")
    other.drive(agent)
    again = log.recording(other.id)
    assert compare(recording, again) is None
    assert compare(recording, again, exact=True) is not None
    assert "tool find: matched without request_id, options.at" in uncompared(recording, again)


@pytest.mark.parametrize("changed", [{"order": "O-8"}, {"options": {"deep": 1}}])
def test_difference_in_another_part_is_a_departure(log: AgentLog, changed: Any) -> None:
    run = log.run("a")
    run.drive(agent)
    SENT.clear()
    with pytest.raises(Unrecorded, match="compared  matched without request_id") as raised:
        log.replay(run.id, lambda run: agent(run, **changed))
    assert not [each for each in raised.value.differences if "request_id" in each.path]
    assert SENT == []


def test_recording_without_ignored_parts_is_replayed_by_code_with_them(log: AgentLog) -> None:
    @refold.tool(name="get")
    def before(order: str, at: int) -> str:
        return order

    @refold.tool(name="get", ignore=["at"])
    def now(order: str, at: int) -> str:
        raise AssertionError

    run = log.run("a")
    run.drive(lambda run: before("x", next(NUMBERS)))
    assert log.replay(run.id, lambda run: now("x", next(NUMBERS))).is_same
    with pytest.raises(Unrecorded):
        log.replay(run.id, lambda run: now("y", next(NUMBERS)))


def test_invalid_key_is_refused(log: AgentLog) -> None:
    @refold.tool(key=lambda asked: None)
    def get(order: str) -> str:
        return order

    with pytest.raises(InputError, match="None"):
        log.run("a").drive(lambda run: get("x"))


PROGRAM = """\
import os, signal, sys
import refold

@refold.tool(effect="write", ignore=["request_id"])
def refund(order, request_id):
    with open("sent", "a") as file:
        file.write(f"{order}\\n")
    return request_id

def agent(run):
    with run.step("pay"):
        first = refund("o-7", os.getpid())
        if "die" in sys.argv:
            os.kill(os.getpid(), signal.SIGKILL)
        return first

with refold.open("file:log") as log:
    run = log.run("a", id="r") if "die" in sys.argv else log.run("a", resume="r")
    print(run.drive(agent))
"""


@pytest.mark.outside
def test_writes_that_differ_only_in_ignored_parts_are_sent_once(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(PROGRAM)
    given: Any = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 60}
    died = subprocess.run([sys.executable, "agent.py", "die"], check=False, **given)
    assert died.returncode == -9, died.stderr
    resumed = subprocess.run([sys.executable, "agent.py"], check=False, **given)
    assert resumed.returncode == 0, resumed.stderr
    assert (tmp_path / "sent").read_text() == "o-7\n"
    command = [sys.executable, "-m", "refold.explorer.cli.main", "--log", "file:log"]
    shown = subprocess.run([*command, "run", "steps", "r"], check=False, **given)
    assert "(matched without request_id)" in shown.stdout, shown.stdout + shown.stderr
    shown = subprocess.run([*command, "why", "step/r#1.journal"], check=False, **given)
    assert "    tool refund: matched without request_id\n" in shown.stdout, shown.stdout + shown.stderr
