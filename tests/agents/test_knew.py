"""What an agent knew: exactly what it had read by a moment, compared with what the log held then; stale reads are
reported."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.agents.compare.provenance import RunInLog as Compared
from refold.agents.compare.provenance import provenance
from refold.agents.knew import KnownEntity, ReceivedAnswer
from refold.agents.log import AgentLog, open_log
from refold.avro.times import time_text
from refold.streams.runtime_context import RuntimeContext
from refold_tests.brokers import SharedKafka
from refold_tests.command import refold_command

START = 1_700_000_000_000_000
SECOND = 1_000_000


class Clock:
    """A clock that does not move until it is set."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> int:
        return self.now

    def to(self, seconds: float) -> str:
        """Set it to this many seconds after the start; return that time as text."""
        self.now = START + int(seconds * SECOND)
        return time_text(self.now)


@contextmanager
def opened(folder: Path) -> Iterator[tuple[AgentLog, Clock]]:
    clock = Clock()
    ids = (f"id-{number}" for number in itertools.count())
    with open_log(f"file:{folder / 'log'}", runtime=RuntimeContext(clock, lambda: next(ids), "tester")) as log:
        yield log, clock


def observe_now(log: AgentLog, entity: str, fields: dict[str, Any], **more: Any) -> str:
    """Observe an entity, and make the log apply it now."""
    found = log.observe(entity, {"fields": fields}, **more)
    log.flush()
    return found


def summary(known: KnownEntity) -> tuple[str, int, int | None, int, int]:
    held = None if known.held is None else known.held.version
    return known.read.entity, known.known.version, held, known.newer_then, known.newer_by


def status(view: Any) -> str:
    return str(view.fields["fields"]["status"])


def read_in(log: AgentLog, run: str, *entities: str, agent: str = "reader", then: Callable[[], object] = int) -> None:
    """Make a run of one step that reads some entities; `then` is called before the step ends."""
    with log.run(agent, id=run) as at_work, at_work.step("look"):
        for entity in entities:
            at_work.read(entity)
        then()


def test_knew_returns_reads_by_a_time_next_to_the_logs_state(tmp_path: Path) -> None:
    with opened(tmp_path) as (log, clock):
        order, mail = "document/order", "document/mail"
        observe_now(log, order, {"status": "sent"})
        observe_now(log, mail, {"status": "open"})
        before = clock.to(1)
        clock.to(2)
        read_in(log, "r1", order, then=lambda: clock.to(3))
        between = clock.to(4)
        clock.to(5)
        log.observe(
            order, {"fields": {"status": "lost"}}, observed_at=START + SECOND
        )  # late: it describes a time before the read
        clock.to(6)
        read_in(log, "r2", mail)
        after = clock.to(10)
        log.flush()

        assert log.knew("reader", before).reads == ()
        (known,) = log.knew("reader", between).reads
        assert summary(known) == (order, 1, 1, 0, 0)
        assert (known.is_stale, known.differing, status(known.known)) == (False, (), "sent")
        both = log.knew("reader", after).reads
        assert [summary(each) for each in both] == [(order, 1, 2, 0, 1), (mail, 1, 1, 0, 0)]
        late = both[0]
        assert (late.is_stale, late.newer_then) == (True, 0)
        assert [(each.path, each.left, each.right) for each in late.differing] == [("fields.status", "sent", "lost")]
        assert (status(late.known), status(late.held)) == ("sent", "lost")
        assert late.read.observations == tuple(late.known.tree["by"]["fields"][key].hex() for key in ["status"])


def test_read_counts_from_its_time_or_from_its_offset(tmp_path: Path) -> None:
    with opened(tmp_path) as (log, clock):
        observe_now(log, "document/a", {"status": "x"})
        clock.to(1)
        with log.run("reader", id="r") as at_work, at_work.step("look"):
            at_work.read("document/a")
            while not log.states(["step/r#1"], log.point().cut):  # its begin is written in parallel with the agent
                time.sleep(0.01)
            pending = log.point().cut
            during = clock.to(2)
            clock.to(3)
        log.flush()
        clock.to(20)
        assert [summary(each) for each in log.knew("reader", during).reads] == [("document/a", 1, 1, 0, 0)]
        assert log.knew("reader", pending).reads == ()
        assert len(log.knew("reader", "run:r#1").reads) == 1
        assert len(log.knew("reader").reads) == 1


def test_correction_after_the_read_makes_it_stale(tmp_path: Path) -> None:
    with opened(tmp_path) as (log, clock):
        wrong = observe_now(log, "document/a", {"status": "wrong", "size": 1})
        clock.to(1)
        read_in(log, "r", "document/a")
        clock.to(2)
        observe_now(log, "document/a", {"status": "right"}, retracts=[wrong])
        clock.to(20)
        (known,) = log.knew("reader").reads
        assert summary(known) == ("document/a", 1, 2, 0, 1)
        assert {each.path for each in known.differing} == {"fields.status", "fields.size"}
        assert status(known.known) == "wrong"


def test_read_of_an_older_point_was_stale_from_the_start(tmp_path: Path) -> None:
    with opened(tmp_path) as (log, clock):
        observe_now(log, "document/a", {"status": "old"})
        log.mark("before")
        clock.to(1)
        observe_now(log, "document/a", {"status": "new"})
        clock.to(2)
        with log.run("reader", id="r") as at_work, at_work.step("look"):
            at_work.read("document/a", "@before")
        clock.to(20)
        (known,) = log.knew("reader").reads
        assert summary(known) == ("document/a", 1, 2, 1, 1)


def test_latest_or_all_reads_are_filtered_by_run_or_agent(tmp_path: Path) -> None:
    with opened(tmp_path) as (log, clock):
        for number, run in enumerate(("r1", "r2"), 1):
            log.observe("document/a", {"fields": {"status": f"{number}"}})
            clock.to(number)
            read_in(log, run, "document/a")
        clock.to(5)
        read_in(log, "r3", "document/a", agent="other")
        clock.to(20)
        assert [each.read.run for each in log.knew("reader").reads] == ["r2"]
        assert [each.read.run for each in log.knew("reader", every=True).reads] == ["r1", "r2"]
        (first,) = log.knew("reader", run="r1").reads
        assert (first.read.run, summary(first)) == ("r1", ("document/a", 1, 2, 0, 1))
        assert log.knew("reader", run="r3").reads == ()
        with pytest.raises(refold.UnknownEntity, match="steps of other, reader"):
            log.knew("nobody")
        with pytest.raises(refold.UnknownEntity, match="run/r9"):
            log.knew("reader", run="r9")


def test_reads_of_a_failed_attempt_are_known(tmp_path: Path) -> None:
    with opened(tmp_path) as (log, clock):
        observe_now(log, "document/a", {"status": "x"})
        observe_now(log, "document/b", {"status": "y"})
        clock.to(1)
        tried = iter(["document/a", "document/b"])

        def look(run: Any) -> None:
            entity = next(tried)
            run.read(entity)
            if entity == "document/a":
                raise TimeoutError

        with log.run("reader", id="r") as at_work:
            at_work.step("look", lambda: look(at_work), attempts_max=2, backoff_ms=0)
        clock.to(20)
        assert {each.read.entity for each in log.knew("reader").reads} == {"document/a", "document/b"}


def test_answers_of_tools_and_models_are_known_from_their_arrival(tmp_path: Path) -> None:
    with opened(tmp_path) as (log, clock):

        @refold.tool
        def look_up(order: int) -> dict[str, Any]:
            if order == 9:
                raise LookupError("no such order")
            return {"order": order}

        def chat(prompt: str) -> str:
            return prompt.upper()

        with log.run("reader", id="r") as at_work, at_work.step("look"):
            look_up(7)
            before = clock.to(3)
            clock.to(4)
            with pytest.raises(LookupError):
                look_up(9)
            clock.to(5)
            at_work.model(chat, prompt="refund?")
            clock.to(6)
            look_up(7)
        first = str(log.point().cut)
        clock.to(20)
        with log.run("reader", id="r2") as at_work:
            at_work.model(chat, prompt="sent?")
        with log.run("other", id="o") as at_work:
            at_work.model(chat, prompt="mine?")
        clock.to(60)

        def said(each: ReceivedAnswer) -> tuple[str, int, Any]:
            request = each.call.asked.request["kwargs"]
            failure = each.call.failure
            return each.call.asked.name.rpartition(".")[2], *request.values(), (
                each.call.answer if failure is None else failure.exception
            )  # fmt: skip

        found = log.knew("reader")
        assert (found.reads, found.unread) == ((), ())
        assert [said(each) for each in found.answers] == [
            ("look_up", 9, "builtins.LookupError"), ("chat", "refund?", "REFUND?"),
            ("look_up", 7, {"order": 7}), ("chat", "sent?", "SENT?"),
        ]  # fmt: skip
        assert [(each.run, each.step, each.attempt) for each in found.answers] == [("r", 1, 1)] * 3 + [("r2", 1, 1)]
        every = log.knew("reader", every=True).answers
        assert len(every) == 5
        assert [said(each)[:2] for each in log.knew("reader", before).answers] == [("look_up", 7)]
        assert [said(each)[:2] for each in log.knew("reader", first, every=True).answers] == [
            each[:2] for each in map(said, every[:4])
        ]
        assert {said(each)[1] for each in log.knew("reader", run="r").answers} == {7, 9, "refund?"}
        assert log.knew("other").answers[0].call.answer == "MINE?"


def test_answers_in_a_failed_attempt_are_known(tmp_path: Path) -> None:
    with opened(tmp_path) as (log, clock):
        answers = iter(["no", "yes"])

        def ask(run: Any) -> None:
            if run.model(lambda prompt: next(answers), prompt="ready?") == "no":
                raise TimeoutError

        with log.run("reader", id="r") as at_work:
            at_work.step("ask", ask, at_work, attempts_max=2)
        clock.to(20)
        found = log.knew("reader", every=True).answers
        assert {(each.attempt, each.call.answer) for each in found} == {(1, "no"), (2, "yes")}


def test_answer_sealed_under_a_missing_key_is_named(tmp_path: Path) -> None:
    log_url, others = f"file:{tmp_path / 'log'}", {"REFOLD_KEYS": f"file:{tmp_path / 'others'}"}
    with opened(tmp_path) as (log, _), log.run("reader", id="r") as at_work:
        at_work.model(str.upper, "secret 4711")
    found = refold_command("knew", "reader", "--json", log=log_url).json
    assert ([each["answer"] for each in found["answers"]], found["unread"]) == (["SECRET 4711"], [])
    assert "SECRET 4711" in refold_command("knew", "reader", log=log_url).out
    for more in (others, {"REFOLD_KEYS": "none"}):
        away = refold_command("knew", "reader", "--json", log=log_url, more=more).json
        assert (away["answers"], [(each["run"], each["step"]) for each in away["unread"]]) == ([], [("r", 1)])
        assert "key" in away["unread"][0]["why"]
        assert "step 1 of run r: " in refold_command("knew", "reader", log=log_url, more=more).out


def test_imported_conversation_knew_its_tool_results(tmp_path: Path) -> None:
    messages = [
        {"role": "user", "content": "refund 7"},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": '{"order": 7}'}},
        ]},
        {"role": "tool", "tool_call_id": "c1", "content": "sent on Monday"},
        {"role": "assistant", "content": "it was sent"},
    ]  # fmt: skip
    file, log_url = tmp_path / "chat.jsonl", f"file:{tmp_path / 'log'}"
    file.write_text(json.dumps({"messages": messages}) + "\n")
    refold_command("import", "--format", "chat", str(file), log=log_url)
    (run,) = refold_command("runs", "--json", log=log_url).json
    found = refold_command("knew", run["agent"], "--json", log=log_url).json
    assert [(each["name"], each["request"]["kwargs"], each["answer"]) for each in found["answers"]] == [
        ("look_up", {"order": 7}, "sent on Monday"),
    ]


def test_log_on_kafka_answers_the_same_without_a_worker(
    kafka: SharedKafka, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFOLD_KEYS", f"file:{tmp_path / 'keys'}")
    with open_log(f"kafka://{kafka.bootstrap}/{prefix}?partitions=2&blobs=file://{tmp_path}/blobs") as log:
        observe_now(log, "document/a", {"status": "old"})
        read_in(log, "r1", "document/a")
        observe_now(log, "document/a", {"status": "new"})
        read_in(log, "r2", "document/a")
        known, latest = log.knew("reader", every=True).reads
        assert (summary(known), summary(latest)) == (("document/a", 1, 2, 0, 1), ("document/a", 2, 2, 0, 0))
        assert (status(known.known), status(latest.known)) == ("old", "new")
        parted = log.compare("r1", "r2")
        assert parted is not None
        assert (parted.step, parted.what, parted.why) == (1, "answer", "answered")
        a, b = (Compared(log.recording(run), log) for run in ("r1", "r2"))
        assert [(each.side, each.field) for each in provenance(parted, a, b)] == [("a", "fields"), ("b", "fields")]


def test_command_output(tmp_path: Path) -> None:
    log = f"file:{tmp_path / 'log'}"
    with opened(tmp_path) as (written, clock):
        observe_now(written, "document/a", {"status": "old"})
        clock.to(1)
        read_in(written, "r", "document/a")
        clock.to(2)
        observe_now(written, "document/a", {"status": "new"})
        clock.to(3)
    found = refold_command("knew", "reader", "--json", log=log).json
    (read,) = found["reads"]
    assert (read["entity"], read["version"], read["stale"], read["newer_by_then"]) == ("document/a", 1, True, 1)
    assert (read["fields"]["fields"]["status"], read["held"]["fields"]["fields"]["status"]) == ("old", "new")
    assert read["differing"] == [{"path": "fields.status", "known": "old", "held": "new"}]
    text = refold_command("knew", "reader", "--at", time_text(START + SECOND), log=log).out
    assert "1 read, 0 stale" in text
    assert "document/a v1, as step 1 read it" in text
    assert "no step of this agent" in refold_command("knew", "nobody", log=log).refused()
