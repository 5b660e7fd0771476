"""Memory holds few sessions. One that was idle for long leaves it, and continues its run when it comes back."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

from refold.agents.capture.captured_session import CapturedSession
from refold.agents.capture.sessions import SessionLimits, Sessions
from refold.agents.capture.spool import Spool, SpooledExchange
from refold.agents.journal.chain import broken
from refold.agents.log import AgentLog, open_log
from refold.agents.redaction.redactor import Redactor
from refold.streams.open import process_context
from refold_tests.transcripts import captured_turn

LIVE = 4
FEW = SessionLimits(live=LIVE)


class Conversation:
    """A conversation, turn by turn. Each turn but those told otherwise calls a tool, whose result the next one has."""

    number = 0

    def __init__(self, name: str) -> None:
        self.name = name
        self.messages: list[Any] = [{"role": "user", "content": f"begin {name}"}]
        self.turns = 0

    def next(self, *, calls: bool = False) -> SpooledExchange:
        Conversation.number += 1
        self.turns += 1
        asked = [*self.messages]
        identity = f"toolu_{self.name}_{self.turns}"
        content: list[Any] = [{"type": "text", "text": f"{self.name} {self.turns}"}]
        content += [{"type": "tool_use", "id": identity, "name": "look", "input": {}}] if calls else []
        said: Any = [{"type": "tool_result", "tool_use_id": identity, "content": "seen"}] if calls else "go on"
        self.messages += [{"role": "assistant", "content": content}, {"role": "user", "content": said}]
        return captured_turn(Conversation.number, asked, content, f"msg_{self.name}_{self.turns}")


def sessions(log: AgentLog, spool: Spool, redact: Any = None, limits: SessionLimits = FEW) -> Sessions:
    return Sessions(
        log, log.capturing(redact), "agent", [spool.name], {}, is_redacting=redact is not None,
        key_of=lambda name, make: spool.key(make=make), limits=limits,
    )  # fmt: skip


def live() -> int:
    gc.collect()
    return sum(isinstance(each, CapturedSession) for each in gc.get_objects())


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(tmp_path / "spool", process_context())


def test_memory_does_not_grow_with_the_conversations(tmp_path: Path, spool: Spool) -> None:
    """Neither the sessions, nor what finds them, nor the runs that wait for a tool."""
    gc.freeze()  # or `live` would go through millions of objects of other tests, thirty times
    with open_log(f"file:{tmp_path / 'log'}") as log:
        made = sessions(log, spool)
        for number in range(30):
            made.store(Conversation(f"c{number}").next(), spool.name)
            assert live() <= LIVE + 1
        held = (made._live, made._by_end, made._by_response, made._waiting)
        assert [len(each) for each in held] == [LIVE, LIVE, 0, 0]
        ended = made.end()
        assert (ended.total, len(ended.runs)) == (30, 30)
        assert {row.outcome for row in log.runs()} == {"succeeded"}
        assert len(log.runs()) == 30


def test_memory_is_bounded_by_bytes_too(tmp_path: Path, spool: Spool) -> None:
    with open_log(f"file:{tmp_path / 'log'}") as log:
        made = sessions(log, spool, limits=SessionLimits(live=LIVE, live_bytes=1))
        one, two = Conversation("one"), Conversation("two")
        for each in (one, two, one, two):
            made.store(each.next(), spool.name)
            assert len(made._live) == 1
        made.end()
        assert [row.steps for row in log.runs()] == [2, 2]


@pytest.mark.parametrize("redact", [None, Redactor()], ids=["in clear", "redacted"])
@pytest.mark.parametrize("calls", [False, True], ids=["answered", "calls a tool"])
def test_resumed_conversation_continues_its_run(tmp_path: Path, spool: Spool, calls: bool, redact: Any) -> None:
    """The others are many enough to push it out of memory between its turns. It is as if it had stayed."""
    with open_log(f"file:{tmp_path / 'log'}") as log:
        made = sessions(log, spool, redact)
        one = Conversation("one")
        for round_number in range(3):
            made.store(one.next(calls=calls), spool.name)
            for number in range(LIVE + 1):
                made.store(Conversation(f"o{round_number}.{number}").next(), spool.name)
            assert all(each.run not in made._live for each in log.runs() if each.title == "begin one")
        made.store(one.next(), spool.name)
        made.end()
        (row,) = (each for each in log.runs() if each.title == "begin one")
        recording = log.recording(row.run)
        assert (row.steps, row.outcome, recording.output) == (4, "succeeded", "one 4")
        assert list(broken(recording)) == []
        found = [[call.answer for call in step.calls if call.asked.kind == "tool"] for step in recording.steps]
        assert found == ([["seen"]] * 3 + [[]] if calls else [[]] * 4)
        assert len(log.runs()) == 3 * (LIVE + 1) + 1


def test_run_awaiting_a_tool_ends_with_the_proxy(tmp_path: Path, spool: Spool) -> None:
    with open_log(f"file:{tmp_path / 'log'}") as log:
        made = sessions(log, spool)
        made.store(Conversation("one").next(calls=True), spool.name)
        for number in range(LIVE):
            made.store(Conversation(f"o{number}").next(), spool.name)
        assert len(made._waiting) == 1
        (run,) = (row.run for row in log.runs(outcome="running") if row.title == "begin one")
        assert run in made.end().runs
        assert not log.runs(outcome="running")
        (row,) = (row for row in log.runs() if row.run == run)
        assert row.outcome == "unknown"


@pytest.mark.parametrize("calls", [False, True], ids=["answered", "calls a tool"])
def test_restarted_proxy_finds_it_too(tmp_path: Path, spool: Spool, calls: bool) -> None:
    """The first one is gone without an end, as by a kill; the next takes its spool over, with its key."""
    one = Conversation("one")
    with open_log(f"file:{tmp_path / 'log'}") as log:
        made = sessions(log, spool)
        made.store(one.next(calls=calls), spool.name)
        for number in range(LIVE):
            made.store(Conversation(f"o{number}").next(), spool.name)
    (spool.folder / "1.open").touch()  # as a killed proxy leaves it, so that the folder stays
    spool.close()
    again = Spool(tmp_path / "spool", process_context(), folder=spool.folder)
    with open_log(f"file:{tmp_path / 'log'}") as log:
        made = sessions(log, again)
        assert len(made._live) <= LIVE
        made.store(one.next(), again.name)
        made.end()
        (row,) = (row for row in log.runs() if row.title == "begin one")
        assert (row.steps, row.outcome) == (2, "succeeded")
        assert not log.runs(outcome="running")


def test_branch_and_unrelated_conversation_start_their_own_runs(tmp_path: Path, spool: Spool) -> None:
    """The session continued from there, so an earlier end of it is not where it continues. Nor is another's key."""
    with open_log(f"file:{tmp_path / 'log'}") as log:
        made = sessions(log, spool)
        one = Conversation("one")
        made.store(one.next(), spool.name)
        early = [*one.messages]
        made.store(one.next(), spool.name)
        for number in range(LIVE):
            made.store(Conversation(f"o{number}").next(), spool.name)
        branch = Conversation("one")
        branch.messages, branch.turns = [*early[:-1], {"role": "user", "content": "elsewhere"}], 7
        made.store(branch.next(), spool.name)
        made.end()
        assert sorted(row.steps for row in log.runs() if row.title == "begin one") == [1, 2]
    stranger = Spool(tmp_path / "other", process_context())
    with open_log(f"file:{tmp_path / 'log'}") as log:
        made = sessions(log, stranger)
        made.store(one.next(), stranger.name)
        made.end()
        assert sorted(row.steps for row in log.runs() if row.title == "begin one") == [1, 1, 2]


def test_calls_that_are_no_turn_are_of_runs_of_a_bounded_length(tmp_path: Path, spool: Spool) -> None:
    with open_log(f"file:{tmp_path / 'log'}") as log:
        made = sessions(log, spool, limits=SessionLimits(loose_steps=2))
        for number in range(5):
            exchange = captured_turn(number + 1, [{"role": "user", "content": "x"}], [])
            made.store(exchange._replace(request={**exchange.request, "url": "http://h/v1/other"}), spool.name)
        made.end()
        assert sorted(row.steps for row in log.runs()) == [1, 2, 2]
