"""Today's agents against golden traces: nothing outside changes, differences are reported, unrecorded requests fail."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

import refold
from refold.agents.golden.add import golden_of_run, name_of
from refold.agents.golden.file import DefaultAnswer, Golden, golden_of, text_of
from refold.agents.golden.result import CheckResult, admitted
from refold.agents.golden.runner import judged_run
from refold.agents.recorder.log_backend import read_again
from refold.avro.errors import InputError
from refold_tests.golden_runs import SENT, agent, chat, golden_run, price, recorded, refund, without_mail
from refold_tests.tree import ROOT


def judged(golden: Golden, changed: Any) -> CheckResult:
    """Return the result for an agent. It is run twice, from the file's own text; nothing may be sent."""
    SENT.clear()
    again = golden_of(text_of(golden), "x")
    verdict = judged_run(again, changed, "desk:changed", ROOT)
    assert judged_run(again, changed, "desk:changed", ROOT).did.hash == verdict.did.hash
    assert SENT == []
    return verdict


def test_same_code_passes_without_the_log(tmp_path: Path) -> None:
    golden = golden_run(tmp_path, agent)
    (tmp_path / "log").rename(tmp_path / "away")
    verdict = judged(golden, agent)
    assert verdict.passed
    assert verdict.parting is None
    assert verdict.did.hash == golden.run.hash
    assert verdict.did.state["seen"]["kind"] == "gift"
    assert str(verdict) == "desk-r-1: desk:changed does what is expected"


def test_hash_equals_the_runs_except_for_reads(tmp_path: Path) -> None:
    def reads_nothing(run: refold.Run) -> int:
        return price("7")

    golden = golden_run(tmp_path, reads_nothing)
    assert golden.run.hash == golden.recorded.hash


def test_changed_line_is_reported(tmp_path: Path) -> None:
    def changed(run: refold.Run) -> Any:
        output = agent(run)
        output["refund"] = 49
        return output

    verdict = judged(golden_run(tmp_path, agent), changed)
    assert not verdict.passed
    assert "parts from the recording at the end" in str(verdict)
    assert "refund: 49 now, 50 recorded" in str(verdict)


def test_fixed_code_gets_its_answers_in_any_order(tmp_path: Path) -> None:
    def mended(run: refold.Run) -> dict[str, Any]:
        with run.step("all in one"):
            given = refund("7", 50)["refunded"]
            prices = [price("7"), price("7")]
            run.decide(run.model(chat, messages=["refund?"]))
            run.observe("document/order-7", {"fields": {"note": "another"}})
            moments = [run.now(), run.now(), run.now()]
            run.random(), run.random(), run.uuid(), run.uuid()
            assert moments == sorted(set(moments))
            run.state["kind"] = run.read("document/order-7").fields["fields"]["kind"]
        return {"refund": given, "prices": prices}

    golden = golden_run(tmp_path, agent, expect=["outcome=succeeded", "refund<=1", "output.refund=50"])
    verdict = judged(golden, mended)
    assert verdict.passed, str(verdict)
    assert verdict.did.output["prices"] == [50, 50]
    assert verdict.did.state_at(1) == {"kind": "gift"}
    assert verdict.parting is not None


def test_unrecorded_request_fails_and_is_not_sent(tmp_path: Path) -> None:
    def other(run: refold.Run) -> Any:
        with run.step("act"):
            try:
                return refund("7", 51)
            except Exception:
                return "caught"

    golden = golden_run(tmp_path, agent, expect=["outcome=succeeded"])
    verdict = judged(golden, other)
    assert not verdict.passed
    assert 'tool refund(order="7", amount=51)' in verdict.stopped
    assert "amount: 51 asked, 50 recorded" in verdict.stopped
    assert "--answer refund=JSON" in str(verdict)

    told = golden_run(tmp_path / "b", agent, expect=["output.refunded=51"], known_bad="too little",
                      answers={"refund": {"refunded": 51}})  # fmt: skip
    assert judged(told, other).passed


def test_exception_of_the_agent_is_the_outcome(tmp_path: Path) -> None:
    def fails(run: refold.Run) -> float:
        return price("7") / 0

    golden = golden_run(tmp_path, fails, known_bad="it divides", expect=["outcome=succeeded"])
    verdict = judged(golden, fails)
    assert 'outcome is "failed"; it failed with builtins.ZeroDivisionError: "division by zero"' in str(verdict)
    assert judged(golden, lambda run: price("7")).passed
    assert judged(golden_run(tmp_path / "b", fails), fails).passed, "exactly as it failed"


def test_agent_that_exits_ends_its_run_but_not_the_test(tmp_path: Path) -> None:
    def leaves(run: refold.Run) -> None:
        price("7")
        sys.exit(0)

    golden = golden_run(tmp_path, lambda run: price("7"), expect=["outcome=succeeded"])
    assert 'outcome is "cancelled"' in str(judged(golden, leaves))


def test_coroutine_functions_are_agents(tmp_path: Path) -> None:
    golden = golden_run(tmp_path, agent)

    async def later(run: refold.Run) -> Any:
        await asyncio.sleep(0)
        return agent(run)

    assert judged(golden, later).passed

    async def within() -> bool:
        return judged(golden, later).passed

    assert asyncio.run(within()), "also where a loop runs already"


def test_new_text_is_redacted_as_the_trace_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests" / "support"))

    def writes(run: refold.Run) -> Any:
        with run.step("tell"):
            run.state["to"] = "ann@example.com"
            return refund(f"7 for {run.state['to']}", 50)

    golden = golden_run(tmp_path, writes, redact=without_mail, redactor="refold_tests.golden_runs:without_mail")
    assert "ann@" not in text_of(golden)
    assert judged(golden, writes).passed


def test_unfinished_run_is_run_to_its_end(tmp_path: Path) -> None:
    def goes_on(run: refold.Run) -> int:
        with run.step("look"):
            return price("7")

    whole = golden_run(tmp_path, goes_on)
    broken_off = msgspec.structs.replace(whole.run, steps=(), status="running", outcome="", output=None, hash="")
    with pytest.raises(InputError, match="did not end"):
        admitted(msgspec.structs.replace(whole, run=broken_off))
    given = {
        "expect": ("output=50",),
        "known_bad": "its process died",
        "answers": (DefaultAnswer(name="price", answer=50),),
    }
    assert judged(admitted(msgspec.structs.replace(whole, run=broken_off, **given)), goes_on).passed


def test_fork_is_run_from_its_fork_point(tmp_path: Path) -> None:
    recorded(tmp_path, agent)
    with refold.open(f"file:{tmp_path / 'log'}") as log:
        child = log.fork("r-1", at=1, state={"seen.kind": "loan"}, results={"2/refund": {"refunded": 7}},
                         allow=["observe"])  # fmt: skip
        child.drive(agent)
        run = log.recording(child.id)
        golden, mended = (
            golden_of_run(run, lambda entity, answer: read_again(log, entity, answer).shown(), entry="x:y", expect=each)
            for each in ([], ["output.refund=7", "state.seen.kind=loan"])
        )
    assert judged(golden, agent).passed
    assert judged(mended, agent).passed


def test_must_fail_inverts_the_result(tmp_path: Path) -> None:
    golden = golden_run(tmp_path, agent, expect=["refund=0"], known_bad="it refunds gifts", must_fail="issue 7")
    verdict = judged(golden, agent)
    assert verdict.passed
    assert not verdict.meets
    mended = judged(golden, lambda run: price("7"))
    assert not mended.passed
    assert "take must_fail out" in str(mended)


def test_only_necessary_parts_are_kept(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--known-bad WHY"):
        golden_run(tmp_path / "a", agent, expect=["refund=0"])
    with pytest.raises(InputError, match="satisfies every expectation"):
        golden_run(tmp_path / "b", agent, known_bad="it refunds gifts")
    with pytest.raises(InputError, match="refund<=3"):
        golden_run(tmp_path / "c", agent, expect=["refund=many"])
    with pytest.raises(InputError, match="--entry"):
        golden_run(tmp_path / "d", agent, entry="")


def test_name_is_derived_from_the_run(tmp_path: Path) -> None:
    run = recorded(tmp_path, lambda run: None, "4f1c0a5e-77aa-4b32-8c1e-aaaaaaaaaaaa")
    assert name_of(run) == "desk-4f1c0a5e-77a"
