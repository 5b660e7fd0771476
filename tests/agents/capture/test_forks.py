"""Conversations that continue from a recorded turn: forks, also after their process has ended, and forks of forks.

So do branches of a conversation that is captured now.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import refold
from refold.agents.capture.exchange import request_of
from refold.agents.capture.sessions import Sessions
from refold.agents.capture.spool import SpooledExchange
from refold.agents.journal.chain import broken
from refold.agents.journal.record import Recording
from refold.agents.journal.self_replay import chained, state_at
from refold.agents.log import AgentLog

BEGIN = 1_700_000_000_000_000


@pytest.fixture
def log(tmp_path: Path) -> Iterator[AgentLog]:
    with refold.open(f"file:{tmp_path / 'log'}") as log:
        yield log


def sessions_of(log: AgentLog, spool: str, *parents: Recording) -> Sessions:
    return Sessions(log, log.capturing(None), "talker", [spool], {}, parents=parents)


def exchange(at: int, *said: str) -> SpooledExchange:
    """Return a turn of a conversation, in which the model repeats what it gets."""
    messages = []
    for each in said:
        messages += [{"role": "user", "content": each}, {"role": "assistant", "content": f"re: {each}"}]
    reply = messages.pop()
    body = json.dumps({"model": "m", "messages": messages}).encode()
    request = request_of("POST", "http://h/v1/chat/completions", "application/json", body)
    answer = {
        "sent": [], "http": "HTTP/1.1", "status": 200, "headers": [], "end": "whole",
        "chunks": [[0, json.dumps({"id": f"c{at}", "choices": [{"message": reply}]})]],
    }  # fmt: skip
    return SpooledExchange(Path("none"), BEGIN + at, "POST h/v1/chat/completions", request, answer, None, 1.0)


def recorded(log: AgentLog) -> Recording:
    """Return a run of three turns."""
    sessions = sessions_of(log, "first")
    for count in range(1, 4):
        sessions.store(exchange(count, *("one", "two", "three")[:count]), "first")
    (run,) = sessions.end().runs
    return log.recording(run)


def users(recording: Recording) -> list[str]:
    messages = state_at(recording, len(recording.steps))["messages"]
    return [each["content"] for each in messages if each["role"] == "user"]


def test_fork_continues_where_its_process_left_it(log: AgentLog) -> None:
    parent = recorded(log)
    left = sessions_of(log, "second", parent)
    left.store(exchange(11, "one", "two", "other"), "second")
    again = sessions_of(log, "second")  # as another process, which knows of no parents
    again.store(exchange(11, "one", "two", "other"), "second")
    again.store(exchange(12, "one", "two", "other", "end"), "second")
    (run,) = again.end().runs
    child = log.recording(run)
    assert (child.parent, child.forked_at, len(child.steps), child.outcome) == (parent.run, 2, 4, "succeeded")
    assert child.steps[:2] == parent.steps[:2]
    assert users(child) == ["one", "two", "other", "end"]
    assert (list(broken(child)), chained(child).hash) == ([], child.hash)

    deeper = sessions_of(log, "third", child, parent)
    deeper.store(exchange(21, "one", "two", "other", "more"), "third")
    (run,) = deeper.end().runs
    grandchild = log.recording(run)
    assert (grandchild.parent, grandchild.forked_at, [each.at for each in grandchild.parted]) == (child.run, 3, [2, 3])
    assert users(grandchild) == ["one", "two", "other", "more"]
    assert (list(broken(grandchild)), chained(grandchild).hash) == ([], grandchild.hash)


def test_only_the_first_conversation_diverges_before_the_first_turn(log: AgentLog) -> None:
    parent = recorded(log)
    sessions = sessions_of(log, "second", parent)
    for at, said in ((11, "else"), (12, "of another session")):
        sessions.store(exchange(at, said), "second")
    first, second = (log.recording(run) for run in sessions.end().runs)
    assert (first.parent, first.forked_at, users(first)) == (parent.run, 0, ["else"])
    assert first.given == {"messages": [{"role": "user", "content": "else"}]}
    assert (second.parent, users(second)) == ("", ["of another session"])
    assert [list(broken(each)) for each in (first, second)] == [[], []]


def test_branch_of_a_conversation_is_a_fork_of_its_run(log: AgentLog) -> None:
    """Each of them continues: the conversation, its branch, and a branch of that. An equal beginning is no branch."""
    sessions = sessions_of(log, "first")
    said = [
        ("one",), ("one", "two"), ("one", "two", "three"), ("one", "other"), ("one", "other", "more"),
        ("one", "two", "three", "four"), ("one", "other", "again"), ("one", "two"), ("one",),
    ]  # fmt: skip
    for at, each in enumerate(said, start=1):
        sessions.store(exchange(at, *each), "first")
    runs = [log.recording(run) for run in sessions.end().runs]
    main, other, again, repeated, unrelated = sorted(runs, key=lambda each: each.started_at)
    assert [users(each) for each in (main, other, again, repeated, unrelated)] == [
        ["one", "two", "three", "four"], ["one", "other", "more"], ["one", "other", "again"], ["one", "two"], ["one"],
    ]  # fmt: skip
    assert [(each.parent, each.forked_at) for each in (main, other, again, repeated, unrelated)] == [
        ("", 0), (main.run, 1), (other.run, 2), (main.run, 1), ("", 0),
    ]  # fmt: skip
    assert other.steps[0] == main.steps[0]
    assert [list(broken(each)) for each in runs] == [[]] * 5
    assert {each.outcome for each in runs} == {"succeeded"}


def of_responses(at: int, follows: str, said: str) -> SpooledExchange:
    """Return a turn of OpenAI's responses, which names the response that it follows."""
    body = json.dumps({"model": "m", "input": said, **({"previous_response_id": follows} if follows else {})})
    content = [{"type": "output_text", "text": f"re: {said}"}]
    answer = {"id": f"resp_{at}", "output": [{"type": "message", "role": "assistant", "content": content}]}
    made = exchange(at, said)
    url = "http://h/v1/responses"
    request = request_of("POST", url, "application/json", body.encode())
    return made._replace(request=request, answer={**made.answer, "chunks": [[0, json.dumps(answer)]]})


def test_branch_by_the_id_of_an_earlier_response_is_a_fork(log: AgentLog) -> None:
    sessions = sessions_of(log, "first")
    for at, follows, said in ((1, "", "one"), (2, "resp_1", "two"), (3, "resp_1", "other"), (4, "resp_2", "three")):
        sessions.store(of_responses(at, follows, said), "first")
    main, other = sorted((log.recording(run) for run in sessions.end().runs), key=lambda each: each.started_at)
    assert (other.parent, other.forked_at) == (main.run, 1)
    assert [len(each.steps) for each in (main, other)] == [3, 2]
    assert "two" not in str(state_at(other, 2))
    assert "other" not in str(state_at(main, 3))
