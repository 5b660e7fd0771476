"""Imported conversations as recordings: each equals itself step by step, and one change is reported in its step."""

from __future__ import annotations

import copy
import gzip
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import refold
from refold.agents.compare.compare import compare
from refold.agents.importers import chat, tau_bench
from refold.agents.importers.conversation import import_conversation
from refold.agents.importers.file import ImportFile, run_id
from refold.agents.importers.messages import ToolCall as AssertionEnvelope
from refold.agents.importers.messages import parse_messages
from refold.agents.journal.chain import broken, state_hash
from refold.agents.journal.record import Call, Recording, Step
from refold.agents.journal.self_replay import chained, states
from refold.agents.recordings.imported import UNANSWERED
from refold.agents.recordings.load import load, recordings
from refold.agents.vault import ClearVault

pytestmark = pytest.mark.outside

Line = dict[str, Any]
KINDS = ("argument", "result", "order", "dropped last step")


def call_line(*calls: tuple[str, Any]) -> Line:
    made = [{"id": str(n), "function": {"name": tool, "arguments": given}} for n, (tool, given) in enumerate(calls)]
    return {"role": "assistant", "content": None, "tool_calls": made}


def result_line(call_id: str, content: str) -> Line:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def imported(folder: Path, messages: list[Line]) -> Recording:
    """Return one conversation's recording, which is the same by look-ups and from a view."""
    path = folder / "chat.jsonl"
    path.write_text(json.dumps(messages) + "\n", encoding="utf-8")
    with refold.open(f"file:{folder / 'log'}") as log:
        for conversation in chat.conversations(ImportFile(path)):
            import_conversation(conversation, log.observe)
        found = load(log, run_id(messages), ClearVault(log))
        assert list(recordings(log, None, ClearVault(log))) == [found]
    assert list(broken(found)) == []
    assert chained(found) == found
    return found


def test_each_reply_is_a_step_with_its_calls_and_text(tmp_path: Path) -> None:
    messages = [
        {"role": "user", "content": "hello"},
        call_line(("look", '{"id": 7}'), ("look", "no json")),
        result_line("1", "Error: no such thing"),
        result_line("0", '{"a": 1}'),
        {"role": "assistant", "content": "It is 1.", "reasoning": "a says so"},
        {"role": "user", "content": "thanks"},
        call_line(("mail", {"to": "mia"})),
    ]
    found = imported(tmp_path, messages)
    assert (found.has_code, found.agent, found.outcome, found.status) == (False, "chat", "unknown", "ended")
    assert (found.input, found.output) == ("hello", "It is 1.")
    assert [step.number for step in found.steps] == [1, 2, 3]
    first, second, third = found.steps
    assert [(call.asked.kind, call.asked.name) for call in first.calls] == [
        ("tool", "look"), ("tool", "look"), ("decide", "")]  # fmt: skip
    assert first.calls[0].asked.request == {"args": [], "kwargs": {"id": 7}}
    assert first.calls[1].asked.request == {"args": ["no json"], "kwargs": {}}
    assert [call.answer for call in first.calls] == ['{"a": 1}', "Error: no such thing", None]
    assert first.calls[1].failure is not None
    assert (first.outcome, second.outcome, third.outcome) == ("failed", "succeeded", "unknown")
    assert second.calls[0].asked.request == {"choice": "reply", "why": "a says so", "options": None}
    assert (first.result, second.result) == (None, "It is 1.")
    assert third.calls[0].failure is not None
    assert third.calls[0].failure.exception == UNANSWERED
    assert (third.is_committed, third.hash) == (False, "")
    started, *held = (state["messages"] for state in states(found))
    assert started == messages[:1]
    assert [len(each) for each in held] == [4, 6, 7]
    assert [each["content"] for each in held[1]] == [each["content"] for each in messages[:6]]
    assert [step.state_after for step in found.steps[:2]] == [state_hash({"messages": each}) for each in held[:2]]
    assert second.state_before == first.state_after


def test_blob_contents_and_messages_past_the_limit_are_present(tmp_path: Path) -> None:
    large = "x" * 40_000
    messages: list[Line] = [{"role": "system", "content": large}, {"role": "user", "content": large}]
    for number in range(40):
        messages += [{"role": "assistant", "content": f"{number}"}, *[{"role": "user", "content": "go on"}] * 26]
    messages[2] = call_line(("put", json.dumps({"text": large})))
    messages[3] = result_line("0", large)
    found = imported(tmp_path, messages)
    assert found.input == large
    assert found.steps[0].calls[0].asked.request["kwargs"] == {"text": large}
    assert found.steps[0].calls[0].answer == large
    *_, state = states(found)
    assert found.steps[-1].number == len(found.steps) == 40
    assert [each["content"] for each in state["messages"]] == [each["content"] for each in messages]


def test_partial_import_is_refused_naming_what_is_missing(tmp_path: Path) -> None:
    with refold.open(f"file:{tmp_path / 'log'}") as log:
        assert list(recordings(log, None, ClearVault(log))) == []
        log.observe("run/x", {"agent": "a", "imported_from": "chat", "step_count": 1})
        with pytest.raises(refold.NotAnswerable, match="agent_session/x is missing"):
            load(log, "x", ClearVault(log))


def changed(line: Line, kind: str, rng: random.Random) -> tuple[Line, int, str] | None:
    """Return a copy of a conversation with one change, the step of the change, and the name that compare gives it."""
    line = copy.deepcopy(line)
    traj: list[Line] = line["traj"]
    replies = [index for index, each in enumerate(traj) if each["role"] == "assistant"]
    calling = [index for index in replies if traj[index].get("tool_calls")]
    if kind == "dropped last step":
        del traj[replies[-1] :]
        return line, len(replies), "step"
    if kind == "order":
        pairs = [(at, at + 2) for at in calling if at + 2 in calling and envelopes(traj[at]) != envelopes(traj[at + 2])]
        if not pairs:
            return None
        at, following = rng.choice(pairs)
        traj[at : following + 2] = traj[following : following + 2] + traj[at:following]
        return line, replies.index(at) + 1, "order"
    if not calling:
        return None
    at = rng.choice(calling)
    if kind == "argument":
        function = rng.choice(traj[at]["tool_calls"])["function"]
        arguments = json.loads(function["arguments"])
        name = rng.choice([*arguments, "one_more"])
        function["arguments"] = json.dumps(arguments | {name: f"seeded {rng.random()}"})
        return line, replies.index(at) + 1, "arguments"
    traj[at + 1]["content"] = f"seeded {rng.random()}"
    return line, replies.index(at) + 1, "answer"


def envelopes(message: Line) -> list[AssertionEnvelope]:
    return [AssertionEnvelope(call.tool, call.inputs) for call in parse_messages([message], "")[0].calls]


@pytest.fixture(scope="module")
def lines(tau_bench_file: Path) -> list[Line]:
    with gzip.open(tau_bench_file, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


@pytest.fixture(scope="module")
def copies(lines: list[Line], seed: int) -> list[tuple[Line, int, str]]:
    """Return for each conversation a copy with one change, with the kinds of change in turn."""
    rng = random.Random(seed)
    made = []
    for number, line in enumerate(lines):
        tried = (changed(line, KINDS[(number + turn) % len(KINDS)], rng) for turn in range(len(KINDS)))
        made.append(next(each for each in tried if each is not None))
    return made


@pytest.fixture(scope="module")
def runs(
    lines: list[Line], copies: list[tuple[Line, int, str]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Recording]]:
    """Yield the recordings of all conversations and of their copies, by run."""
    folder = tmp_path_factory.mktemp("tau")
    path = folder / "tau.jsonl"
    path.write_text("".join(f"{json.dumps(each)}\n" for each in [*lines, *(copied for copied, _, _ in copies)]))
    with refold.open(f"file:{folder / 'log'}") as log:
        for conversation in tau_bench.conversations(ImportFile(path)):
            import_conversation(conversation, log.observe)
        found = {each.run: each for each in recordings(log, None, ClearVault(log))}
        assert len(found) == 2 * len(lines)
        for line in lines[:3]:
            run = run_id(line["traj"])
            assert load(log, run, ClearVault(log)) == found[run]
        yield found


def test_every_imported_run_equals_its_own_replay(lines: list[Line], runs: dict[str, Recording]) -> None:
    for line in lines:
        whole = runs[run_id(line["traj"])]
        assert len(whole.steps) == sum(message["role"] == "assistant" for message in line["traj"])
        assert list(broken(whole)) == []
        again = chained(whole)
        assert compare(whole, again, exact=True) is None
        assert again.hash == whole.hash


def test_changed_conversation_is_named_by_its_step(
    lines: list[Line], copies: list[tuple[Line, int, str]], runs: dict[str, Recording], seed: int
) -> None:
    kinds = set()
    for line, (copied, number, what) in zip(lines, copies, strict=True):
        a, b = runs[run_id(line["traj"])], runs[run_id(copied["traj"])]
        found, back = compare(a, b), compare(b, a)
        context = f"task {line['task_id']} with a seeded change ({what}) at step {number}, REFOLD_SEED={seed}: {found}"
        assert found is not None, context
        assert back is not None, context
        assert found.step == back.step == number, context
        # If an error became a result, or a result an error, the difference is in the failure.
        assert found.what == what or (what, found.what) == ("answer", "failure"), context
        kinds.add(what)
        if what == "step":
            assert (found.only, found.why, back.only) == ("a", "longer", "b")
    assert kinds == {"arguments", "answer", "order", "step"}


@pytest.mark.parametrize("kind", KINDS)
def test_changed_recording_is_named_by_its_step(
    lines: list[Line], runs: dict[str, Recording], kind: str, seed: int
) -> None:
    rng, tried = random.Random(f"{seed} {kind}"), 0
    for line in lines:
        whole = runs[run_id(line["traj"])]
        made = changed_recording(whole, kind, rng)
        if made is None:
            continue
        tried += 1
        other, number, what = made
        found = compare(whole, other)
        assert found is not None, (whole.run, kind, number, seed)
        assert (found.step, found.what) == (number, what), (whole.run, kind, found, seed)
    assert tried > len(lines) // 2


def changed_recording(whole: Recording, kind: str, rng: random.Random) -> tuple[Recording, int, str] | None:
    steps = list(whole.steps)
    if kind == "dropped last step":
        return msgspec.structs.replace(whole, steps=tuple(steps[:-1])), len(steps), "step"
    if kind == "order":
        at = [n for n in range(len(steps) - 1) if requests(steps[n]) != requests(steps[n + 1])]
        if not at:
            return None
        first = rng.choice(at)
        steps[first : first + 2] = steps[first + 1], steps[first]
        return msgspec.structs.replace(whole, steps=tuple(steps)), first + 1, "order"
    places = [(n, k) for n, step in enumerate(steps) for k, call in enumerate(step.calls) if call.asked.kind == "tool"]
    if not places:
        return None
    n, k = rng.choice(places)
    call = steps[n].calls[k]
    if kind == "argument":
        request = copy.deepcopy(call.asked.request)
        request["kwargs"][rng.choice([*request["kwargs"], "one_more"])] = rng.random()
        call = msgspec.structs.replace(call, asked=msgspec.structs.replace(call.asked, request=request))
    else:
        call = msgspec.structs.replace(call, answer=f"seeded {rng.random()}")
    steps[n] = with_call(steps[n], k, call)
    changed = msgspec.structs.replace(whole, steps=tuple(steps))
    return changed, n + 1, "arguments" if kind == "argument" else "answer"


def with_call(step: Step, k: int, call: Call) -> Step:
    calls = (*step.calls[:k], call, *step.calls[k + 1 :])
    return msgspec.structs.replace(step, attempts=(msgspec.structs.replace(step.attempts[0], calls=calls),))


def requests(step: Step) -> list[Any]:
    """Return the requests of a step, and its message if it has none."""
    asked_for = [call.asked for call in step.calls if call.asked.kind == "tool"]
    return [asked_for, [call.asked.request for call in step.calls], asked_for or step.result]
