"""`refold runs` and `refold run`: what they list and show, as text and as JSON."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import refold
from refold.agents.journal.record import Attempt, Call, Failure, RecordedRequest, Recording, Retry, Step
from refold.agents.vault import Vault, run_key
from refold.avro.times import time_text
from refold.explorer.cli.main import run
from refold.explorer.cli.runs.runs import LISTED
from refold_tests.recorded_runs import BEGIN, SECOND, call, chained, forked, random_run, write

Ask = Callable[..., Any]


@pytest.fixture
def refund(log_path: Path) -> Recording:
    """A run of two steps that decides, retries and fails; a child run; and a run that waits."""
    decided = Call(
        asked=RecordedRequest(kind="decide", request={"choice": "refund", "why": "small", "options": ["refund", "ask"]})
    )
    timeout = Failure(exception="builtins.TimeoutError", message="no answer")
    paid = call("payments.refund", {"id": "p-1"}, 7, given={"amount": 50.0}, key="k",
                retries=(Retry(attempt=1, failure=timeout, backoff_ms=200),))  # fmt: skip
    first = Step(number=1, name="decide", attempts=(Attempt(calls=(decided, paid)),), outcome="succeeded", result="ok")
    failure = Failure(exception="builtins.ValueError", message="no such order", traceback="Traceback")
    second = Step(number=2, name="notify", attempts=(Attempt(number=1), Attempt(number=2, failure=failure)),
                  outcome="failed")  # fmt: skip
    given = Recording(
        run="refund-1", agent="refund-agent", version="1.4", title="Order 7", user="u-7", input={"order": 7}, seed=7,
        state={"paid": []}, steps=(first, second), status="ended", outcome="failed", failure=failure,
        started_at=BEGIN, ended_at=BEGIN + SECOND,
    )  # fmt: skip
    states = [{"paid": ["p-1"], "left": 0}, {"paid": ["p-1"], "left": 0}]
    found = chained(given, states)
    waiting = msgspec.structs.replace(
        random_run(random.Random(1), "waits-1", 1, ended=False), started_at=BEGIN + SECOND
    )
    own = msgspec.structs.replace(first, number=2, name="ask")
    with refold.open() as log:
        for each in (found, waiting, forked(found, "refund-1-b", 1, own)):
            write(log, each)
    return found


@pytest.fixture
def ask(log_path: Path, capsys: pytest.CaptureFixture[str]) -> Ask:
    """Run a command in this process. Return its JSON with --json, else its text."""

    def run_it(*arguments: object, status: int = 0) -> Any:
        found = run([str(each) for each in arguments])
        out, err = capsys.readouterr()
        assert found == status, (out, err)
        if status == 2:
            return err
        assert err == ""
        return json.loads(out) if "--json" in arguments else out

    return run_it


def test_runs_are_listed_with_exactly_these_keys(refund: Recording, ask: Ask) -> None:
    rows = {each["run"]: each for each in ask("runs", "--json")}
    assert rows["refund-1"] == {
        "run": "refund-1", "agent": "refund-agent", "version": "1.4", "started": time_text(BEGIN),
        "ended": time_text(BEGIN + SECOND), "outcome": "failed", "steps": 2, "parent": None, "title": "Order 7",
            "flagged": False, "input_tokens": None, "output_tokens": None,
    }  # fmt: skip
    assert (rows["refund-1-b"]["parent"], rows["refund-1-b"]["steps"]) == ("refund-1", 2)
    assert (rows["waits-1"]["ended"], rows["waits-1"]["outcome"], rows["waits-1"]["steps"]) == (None, None, 2)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--outcome", "failed"], ["refund-1"]),
        (["--outcome", "running"], ["waits-1"]),
        (["--tool", "payments.refund", "--parent", "refund-1"], ["refund-1-b"]),
        (["--error", "no such order"], ["refund-1"]),
        (["--text", "P-1", "--user", "u-7"], ["refund-1", "refund-1-b"]),
        (["--since", "2023-11-14T22:13:21Z", "--until", "2023-11-14T22:13:21Z"], ["waits-1"]),
        (["--limit", 1], ["waits-1"]),
        (["--agent", "nobody"], []),
    ],
    ids=str,
)
def test_run_filters(refund: Recording, ask: Ask, options: list[str], expected: list[str]) -> None:
    assert [each["run"] for each in ask("runs", "--json", *options)] == expected


def test_list_of_runs_is_readable(refund: Recording, ask: Ask) -> None:
    text = ask("runs")
    assert "refund-1    refund-agent  1.4      2023-11-14 22:13:20  1.0 s   failed     2      -         Order 7" in text
    assert "no run matches" in ask("runs", "--agent", "nobody")
    assert "the newest 1; 2 older runs not shown: --limit 3 shows them, --json all of them" in ask("runs", "--limit", 1)
    searched = ask("runs", "--text", "p-1", "--limit", 1)
    assert "the newest 1; 1 older run not searched: --limit 2 shows them" in searched
    assert "older" not in ask("runs", "--limit", 3)


def test_json_has_every_run_and_text_counts_the_omitted(log_path: Path, ask: Ask) -> None:
    with refold.open() as log:
        for number in range(LISTED + 3):
            name = f"run-{number:03}"
            given = random_run(random.Random(1), name, 0)
            write(log, msgspec.structs.replace(given, started_at=BEGIN + number * SECOND))
    assert [each["run"] for each in ask("runs", "--json")] == [f"run-{n:03}" for n in reversed(range(LISTED + 3))]
    assert len(ask("runs", "--json", "--limit", LISTED)) == LISTED
    text = ask("runs")
    assert f"the newest {LISTED}; 3 older runs not shown: --limit {LISTED + 3} shows them, --json all of them" in text
    assert ("run-003" in text, "run-002" in text) == (True, False)


def test_run_is_shown_with_its_layers(refund: Recording, ask: Ask) -> None:
    text = ask("run", "show", "refund-1")
    for line in (
        "run refund-1 of refund-agent 1.4: Order 7",
        "  outcome   failed: ValueError: no such order",
        "  started   2023-11-14T22:13:20Z, took 1.0 s",
        "  position  step 2 notify: committed, failed, attempt 2",
        '  input     {"order": 7}',
        f"  hash      {refund.hash}",
    ):
        assert line in text.splitlines()
    assert "decide  succeeded  refund   payments.refund  1        -" in text
    found = ask("run", "show", "refund-1", "--json")
    assert found["position"] == {"step": 2, "name": "notify", "status": "committed", "attempt": 2}
    assert (found["steps"], found["hash"], found["chain"]) == (2, refund.hash, None)
    layers = found["layers"]
    assert [each["decision"] for each in layers] == ["refund", None]
    [paid] = [each for each in layers[0]["calls"] if each["kind"] == "tool"]
    assert (paid["name"], paid["edge"], paid["key"]) == ("payments.refund", "recorded", "k")
    assert (paid["request"], paid["answer"]) == ({"args": [7], "kwargs": {"amount": 50.0}}, {"id": "p-1"})
    assert paid["retries"][0]["failure"]["exception"] == "builtins.TimeoutError"
    assert layers[0]["calls"][0]["edge"] == "deterministic"
    assert layers[1]["failure"]["traceback"] == "Traceback"


def test_steps_of_a_run_show_what_was_done(refund: Recording, ask: Ask) -> None:
    text = ask("run", "steps", "refund-1")
    assert text.splitlines()[2:] == [
        "step 1 decide: committed, succeeded",
        '  decided   refund: small, of ["refund", "ask"]',
        "  tool      payments.refund(7, amount=50.0)",
        "            try 1 failed: TimeoutError: no answer; again after 200 ms",
        '            -> {"id": "p-1"}  [recorded]',
        '  returned  "ok"',
        '  state     paid[0]: new "p-1"',
        "  state     left = 0",
        f"  hash      {refund.steps[0].hash}",
        "",
        "step 2 notify: committed, failed, attempt 2",
        "  attempt   1 was cut short, or continues: what it did is not recorded  [unknown]",
        "  failed    ValueError: no such order",
        f"  hash      {refund.steps[1].hash}",
    ]
    [second] = ask("run", "steps", "refund-1", "--step", 2, "--json")
    assert (second["step"], second["status"], len(second["attempts"])) == (2, "committed", 2)
    assert "run refund-1 has 2 steps" in ask("run", "steps", "refund-1", "--step", 3)


def test_decision_follows_the_call_it_came_from(log_path: Path, ask: Ask) -> None:
    with refold.open(f"file:{log_path}") as log, log.run("desk", id="ordered") as run, run.step("decide"):
        answer = run.model(str.upper, "refund?")
        run.decide(answer, why="it said so")
        run.decide("wait", why="it is late")
        run.model(str.lower, "SENT?")
    lines = [line[:12].strip() for line in ask("run", "steps", "ordered").splitlines() if line.startswith("  ")]
    assert [line for line in lines if line in ("model", "decided")] == ["model", "decided", "decided", "model"]
    [step] = ask("run", "steps", "ordered", "--json")
    assert [each["kind"] for each in step["calls"]] == ["model", "decide", "decide", "model"]
    assert step["decision"] == "wait"


def test_run_is_found_by_an_id_prefix(refund: Recording, ask: Ask) -> None:
    assert ask("run", "show", "waits", "--json")["run"] == "waits-1"
    assert ask("run", "show", "run/refund-1", "--json")["run"] == "refund-1"
    assert "refu: 2 runs begin with it; give more of the id: refund-1" in ask("run", "show", "refu", status=2)
    assert "no run nope is in this log; `refold runs` lists those" in ask("run", "show", "nope", status=2)


def test_broken_chain_is_named(refund: Recording, ask: Ask) -> None:
    assert "the chain holds: 2 steps" in ask("run", "show", "refund-1-b", "--verify")
    changed = msgspec.structs.replace(refund.steps[0], result="other")
    with refold.open() as log:
        write(log, msgspec.structs.replace(refund, run="changed", steps=(changed, refund.steps[1])))
        write(log, msgspec.structs.replace(refund, run="other-end", output="other"))
    assert "the chain is broken at the end" in ask("run", "show", "other-end", "--verify", status=1)
    assert "the chain is broken at step 1" in ask("run", "show", "changed", "--verify", status=1)
    assert ask("run", "show", "changed", "--verify", "--json", status=1)["chain"] == {"ok": False, "broken": [1]}
    assert "run refund-1-b: the chain holds: 2 steps" in ask("run", "verify", "refund-1-b")
    assert "the chain is broken at step 1" in ask("run", "verify", "changed", status=1)
    said = {name: ask("run", "verify", name, "--json", status=1) for name in ("other-end", "changed")}
    assert [(each["ok"], each["broken"], each["is_end_whole"]) for each in said.values()] == [
        (False, [], False), (False, [1], True),
    ]  # fmt: skip
    assert ask("run", "verify", "refund-1", "--json")["hash"] == refund.hash
    assert "no run nope is in this log" in ask("run", "verify", "nope", status=2)


def test_run_is_opened_at_a_hash(refund: Recording, ask: Ask) -> None:
    first, second = refund.steps
    found = ask("checkout", first.hash[:12], "--json")
    assert (found["step"], found["what"], found["hash"], found["others"]) == (1, "step", first.hash, 0)
    assert (found["run"], found["state_hash"]) == ("refund-1", first.state_after)
    assert found["state"] == ask("checkout", refund.hash, "--json")["state"] == {"paid": ["p-1"], "left": 0}
    assert json.loads(ask("checkout", second.hash, "--state")) == found["state"]
    by_state = ask("checkout", first.state_after, "--json")
    assert (by_state["run"], by_state["step"], by_state["what"], by_state["others"]) == ("refund-1", 2, "state", 1)
    text = ask("checkout", refund.hash.upper())
    assert "run refund-1 of refund-agent, after step 2 of 2" in text
    assert '    paid = ["p-1"]' in text
    assert "  refold run fork refund-1 --at 2 --set NAME=VALUE" in text


def test_forks_state_starts_with_its_patch(refund: Recording, ask: Ask) -> None:
    [_, own] = ask("run", "steps", "refund-1-b", "--json")
    assert ask("checkout", own["hash"], "--json")["state"] == {"paid": ["p-1"], "left": 0, "x": 1}


def test_invalid_hash_is_refused(refund: Recording, ask: Ask) -> None:
    assert "give at least 6 of its hexadecimal digits" in ask("checkout", "abc", status=2)
    assert "'xyzxyz' is not a hash" in ask("checkout", "xyzxyz", status=2)
    assert "no step, run or state with a hash like 00000000 is in this log" in ask("checkout", "0" * 8, status=2)


def test_plaintext_of_expired_content_is_shown(log_path: Path, ask: Ask, seed: int) -> None:
    given = random_run(random.Random(seed), "gone", 2)
    with refold.open() as log:
        write(log, given, log.vault)
        assert isinstance(log.vault, Vault)
        log.vault.ring.destroy(run_key("gone"))
    text = ask("run", "show", "gone")
    assert f"run gone of {given.agent} {given.version}: its content cannot be read" in text
    assert "expired: there is no key run:gone" in text
    assert given.steps[1].hash in text
    found = ask("run", "show", "gone", "--json")
    assert (found["outcome"], found["steps"], found["hash"]) == (given.outcome, 2, given.hash)
    assert [each["hash"] for each in found["layers"]] == [each.hash for each in given.steps]
    assert "Still known: " in ask("run", "steps", "gone", status=2)
    assert "expired" in ask("run", "show", "gone", "--verify", status=2)
    [row] = ask("runs", "--json")
    assert (row["run"], row["steps"]) == ("gone", 2)


def test_imported_conversation_is_a_run_too(tmp_path: Path, ask: Ask) -> None:
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "Where is order 7?"},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "get_order", "arguments": '{"order": 7}'}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "Error: no such order"},
        {"role": "assistant", "content": "There is none."},
    ]  # fmt: skip
    path = tmp_path / "chat.jsonl"
    path.write_text(json.dumps(messages) + "\n", encoding="utf-8")
    assert run(["import", str(path), "--format", "chat"]) == 0
    ask("types")
    [row] = ask("runs", "--json")
    for option in (("--text", "where is ORDER 7"), ("--tool", "get_order"), ("--error", "no such order")):
        assert ask("runs", *option, "--json") == [row]
    assert ask("runs", "--error", "timeout", "--json") == []
    [first, _] = ask("run", "steps", row["run"], "--json")
    assert [each["edge"] for each in first["calls"]] == ["recorded", "recorded"]
    assert "the chain holds: 2 steps" in ask("run", "show", row["run"], "--verify")
    assert "every hash matches its content" in ask("run", "replay", row["run"])
    for command in (("fork", "--at", 1), ("resume",), ("replay", "--agent", "x:y")):
        name, *options = command
        assert "was imported: there is no code" in ask("run", name, row["run"], *options, status=2)
    text = ask("checkout", first["hash"])
    assert "after step 1 of 2" in text
    assert "run fork" not in text


def test_nested_runs_are_a_tree(log_path: Path, ask: Ask) -> None:
    def inner(run: refold.Run) -> str:
        return run.step("say", lambda: f"said {run.input}")

    def middle(run: refold.Run) -> str:
        with run.step("ask"):
            return str(run.child("inner", input="x").drive(inner))

    def outer(run: refold.Run) -> list[str]:
        with run.step("first"):
            run.state["said"] = True
        with run.step("both"):
            return [str(run.child("middle").drive(middle)), str(run.child("inner", input="y").drive(inner))]

    with refold.open() as log:
        log.run("before", id="earlier").drive(lambda run: None)
        log.run("outer", id="r1").drive(outer)
        recording = log.recording("r1")
    first, second = recording.children.values()
    third = first.children.popitem()[1]
    lines = [line.split("  ") for line in ask("runs").splitlines()]
    assert [line for line in ask("runs").splitlines() if "before" not in line][1:] == [
        line for run_id in ("r1", first.run, third.run, second.run) for line in ask("runs").splitlines()
        if line.split()[0] == run_id
    ]  # fmt: skip
    assert any(line[:3] == ["", "", third.run] for line in lines), "two levels are indented by two spaces each"
    rows = {each["run"]: each for each in ask("runs", "--json")}
    assert (rows[third.run]["caller"], rows[third.run]["caller_step"]) == (first.run, 1)
    assert (rows[second.run]["caller"], rows[second.run]["caller_step"]) == ("r1", 2)
    assert "caller" not in rows["r1"]

    shown = ask("run", "show", "r1")
    assert f"  runs      middle {first.run}: succeeded, in step 2\n" in shown
    assert f"              inner {third.run}: succeeded, in step 1\n" in shown
    assert f"            inner {second.run}: succeeded, in step 2\n" in shown
    assert f"  within    {first.run}, in its step 1\n" in ask("run", "show", third.run)
    (child, other) = ask("run", "show", "r1", "--json")["children"]
    assert (child["run"], child["children"][0]["run"], other["children"]) == (first.run, third.run, [])
    steps = ask("run", "steps", "r1")
    assert "  run       middle " in steps
    assert f"-> succeeded, run {first.run}  [deterministic]" in steps
    assert f"-> succeeded, run {second.run}" in ask("knew", "outer")
