"""`refold run compare`: two runs, every run with itself, and the observations that caused a difference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from refold.agents.compare.compare import compare
from refold.agents.compare.provenance import RunInLog, provenance
from refold.agents.importers.file import run_id
from refold.agents.journal.record import Recording
from refold.agents.log import open_log
from refold_tests.command import refold_command

QUESTION = {"role": "user", "content": "Where is order 7?"}


def conversation(order: str, answer: dict[str, str], *more: dict[str, Any]) -> list[dict[str, Any]]:
    function = {"name": "get_order", "arguments": json.dumps({"order_id": order})}
    return [
        QUESTION,
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "c1", "name": "get_order", "content": json.dumps(answer)},
        {"role": "assistant", "content": "It was sent."},
        *more,
    ]


def imported(folder: Path, *conversations: list[dict[str, Any]]) -> list[str]:
    path = folder / "chats.jsonl"
    path.write_text("".join(f"{json.dumps(each)}\n" for each in conversations), encoding="utf-8")
    assert refold_command("import", path, "--format", "chat", log=f"file:{folder / 'log'}").status == 0
    return [run_id(each) for each in conversations]


def test_conversations_diverge_at_the_different_answer(tmp_path: Path) -> None:
    log = f"file:{tmp_path / 'log'}"
    a, b, c, d = imported(
        tmp_path,
        conversation("7", {"status": "sent"}),
        conversation("7", {"status": "lost"}),
        conversation("7", {"status": "sent"}, {"role": "assistant", "content": "I said so."}),
        conversation("7", {"status": "sent"}, QUESTION),
    )
    done = refold_command("run", "compare", a, b[:12], "--json", log=log)
    found = done.json
    assert (done.status, found["equal"], found["a"]["run"], found["b"]["run"]) == (1, False, a, b)
    parted = found["divergence"]
    assert (parted["step"], parted["what"], parted["why"]) == (1, "answer", "answered")
    assert parted["differences"] == [{"path": "#.status", "op": "set", "a": "sent", "b": "lost"}]
    behind = [(each["side"], each["entity"], each["field"]) for each in found["provenance"]]
    assert behind == [("a", f"action/{a}#1.1", "output"), ("b", f"action/{b}#1.1", "output")]
    nearest = found["provenance"][1]["chain"][0]
    assert nearest["source"]["step"] == "1"
    assert "lost" in nearest["patch"]["output"]
    assert max(link["depth"] for link in found["provenance"][1]["chain"]) == 2

    text = refold_command("run", "compare", a, c, log=log)
    assert text.status == 1
    assert "first divergence at step 3: B goes on" in text.out
    assert "why: one goes on where the other stops" in text.out
    assert "provenance in B: step/" in text.out
    more = refold_command("run", "compare", a, d, "--json", log=log).json["divergence"]
    assert (more["step"], more["what"], more["why"]) == (2, "kept", "answered")
    assert [(each["path"], each["op"]) for each in more["differences"]] == [("messages[4]", "add")]


def test_equal_runs_are_equal_across_logs_and_with_themselves(tmp_path: Path) -> None:
    runs = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        runs += imported(tmp_path / name, conversation("7", {"status": "sent"}), conversation("8", {"status": "sent"}))
    run = runs[0]
    log, other = (f"file:{tmp_path / name / 'log'}" for name in ("one", "other"))
    done = refold_command("run", "compare", run, run, "--other", other, "--exact", log=log)
    assert (done.status, "no difference" in done.out) == (0, True)
    every = refold_command("run", "compare", "--all", log=log)
    assert (every.status, every.out) == (0, "2 runs, 4 steps replayed and compared: each equal to itself\n")
    assert refold_command("run", "compare", "--all", "--json", log=log).json == {
        "runs": 2, "steps": 4, "equal": 2, "different": []}  # fmt: skip


def test_incomparable_runs_are_refused(tmp_path: Path) -> None:
    log = f"file:{tmp_path / 'log'}"
    (run,) = imported(tmp_path, conversation("7", {"status": "sent"}))
    assert "no run nowhere" in refold_command("run", "compare", run, "nowhere", log=log).refused()
    assert "name two runs" in refold_command("run", "compare", run, log=log).refused()
    assert "leave out A" in refold_command("run", "compare", run, "--all", log=log).refused()


def test_different_read_links_to_the_observations_on_both_sides(tmp_path: Path) -> None:
    with open_log(f"file:{tmp_path / 'log'}") as log:

        def answered(run: str) -> Recording:
            with log.run("refunder", id=run, input={"order": 7}) as at_work, at_work.step("look"):
                view = at_work.read("document/order-7")
                at_work.decide("refund" if view.fields["fields"]["status"] == "lost" else "wait")
            log.flush()
            return log.recording(run)

        log.observe("document/order-7", {"fields": {"status": "sent", "lines": 2}}, source="importer")
        first = answered("first")
        again = answered("again")
        assert compare(first, again) is None
        cause = log.observe("document/mail-1", {"fields": {"text": "never came"}}, source="mailbox")
        log.observe("document/order-7", {"fields": {"status": "lost"}}, source="carrier", causes=[cause])
        second = answered("second")
        found = log.compare("first", "second")
        assert found is not None
        assert (found.step, found.what, found.why, found.a.call, found.b.call) == (1, "answer", "answered", 1, 1)
        assert found.also == ("decision",)
        behind = provenance(found, RunInLog(first, log), RunInLog(second, log))
        assert [(each.side, each.entity, each.field) for each in behind] == [
            ("a", "document/order-7", "fields"), ("b", "document/order-7", "fields")]  # fmt: skip
        said = [[link.observation.source.agent for link in each.chain if link.observation] for each in behind]
        assert said[0] == ["importer"]
        assert set(said[1]) == {"importer", "carrier", "mailbox"}
        assert [(link.depth, link.observation_id) for link in behind[1].chain][-1] == (1, cause)
    done = refold_command("run", "compare", "first", "second", log=f"file:{tmp_path / 'log'}")
    assert done.status == 1
    assert "provenance in B: document/order-7.fields" in done.out
    assert "because of document/mail-1" in done.out
    answer, first_run, second_run, *_ = done.out.splitlines()
    assert answer == "first divergence at step 1: another answer"
    assert (first_run[:7], second_run[:8]) == ("A first", "B second")
    in_b = done.out.partition("provenance in B")[2]
    assert "by importer" not in in_b
    assert "and 1 observation that both sides depend on" in in_b
    whole = refold_command("run", "compare", "first", "second", "--full", log=f"file:{tmp_path / 'log'}").out
    assert "by importer" in whole.partition("provenance in B")[2]
    assert "depend on" not in whole


def test_recorded_step_links_to_its_position(tmp_path: Path) -> None:
    with open_log(f"file:{tmp_path / 'log'}") as log:
        for run, to in (("first", "mia"), ("second", "leo")):
            with log.run("mailer", id=run, seed=1) as at_work, at_work.step("act"):
                at_work.model(lambda **given: "ok", to=to)
        log.flush()
        a, b = (log.recording(run) for run in ("first", "second"))
        found = compare(a, b)
        assert found is not None
        assert (found.step, found.what, found.why) == (1, "arguments", "asked")
        behind = provenance(found, RunInLog(a, log), RunInLog(b, log))
        assert [(each.entity, each.field, each.key) for each in behind] == [
            ("step/first#1", "journal", "1"), ("step/second#1", "journal", "1")]  # fmt: skip
