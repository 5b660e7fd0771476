"""The answers of a fork, and what it may not do."""

from __future__ import annotations

from typing import Any

import pytest

from refold.agents.journal.delta import applied
from refold.agents.journal.record import Call, Failure, RecordedRequest, Recording, to_tree
from refold.agents.recorder.answers import CallSite
from refold.agents.replay.forked import ForkAnswers, NotAllowed
from refold.agents.replay.patch import Patch, patch_of, read_patch
from refold.agents.replay.player import Differs
from refold.agents.replay.unrecorded import Unrecorded
from refold.avro.errors import InputError
from refold_tests.handmade_runs import made, model, run_of, step, tool

LOOK, SEND, LATER = CallSite(1, "look", 1), CallSite(2, "send", 1), CallSite(3, "later", 1)
MAIL = tool("mail", "sent-1", effect="write", to="ann")


@pytest.fixture
def parent() -> Recording:
    look = step("look", tool("find", ["a"], q="x"), delta=(["set", ["found"], ["a"]],))
    return run_of(look, step("send", model("yes", prompt="send?"), MAIL, made("now", 5)), step("later"))


def answer(call: Call | None) -> Any:
    assert call is not None
    assert call.source == "recorded" or call.answer is not None
    return call.answer


def test_parents_steps_are_replayed_from_the_recording(parent: Recording) -> None:
    fork = ForkAnswers(parent, 1, Patch())
    assert fork.step(1, "look") == parent.steps[0]
    assert fork.step(2, "send") is None
    assert answer(fork.call(LOOK, tool("find", q="x").asked)) == ["a"]
    with pytest.raises(Differs):
        ForkAnswers(parent, 1, Patch()).step(1, "seek")
    with pytest.raises(Unrecorded):
        ForkAnswers(parent, 1, Patch()).call(LOOK, tool("find", q="y").asked)


def test_live_policy_calls_the_world_except_for_writes(parent: Recording) -> None:
    fork = ForkAnswers(parent, 1, Patch())
    assert fork.call(SEND, model("", prompt="send?").asked) is None
    assert fork.call(SEND, made("now").asked) is None
    assert answer(fork.call(SEND, MAIL.asked)) == "sent-1"  # recorded: returned, not sent
    with pytest.raises(NotAllowed, match="--allow mail") as raised:
        fork.call(SEND, MAIL.asked)
    assert fork.departure is raised.value
    with pytest.raises(NotAllowed):  # for any later request
        fork.call(SEND, model("", prompt="send?").asked)


@pytest.mark.parametrize("asked", [MAIL.asked, made("observe", name="a/1", request={}).asked])
def test_write_tool_runs_when_allowed_by_name(parent: Recording, asked: RecordedRequest) -> None:
    assert ForkAnswers(parent, 1, Patch(), allow=["mail", "observe"]).call(SEND, asked) is None
    other = ForkAnswers(parent, 1, Patch(), allow=["other"])
    if asked.kind == "observe":
        with pytest.raises(NotAllowed, match="--allow observe"):
            other.call(SEND, asked)
    else:
        assert other.call(SEND, asked) is not None


def test_tool_of_unknown_effect_counts_as_a_write_tool(parent: Recording) -> None:
    with pytest.raises(NotAllowed):
        ForkAnswers(parent, 1, Patch()).call(SEND, tool("rare", effect="").asked)


def test_effect_before_the_fork_does_not_answer_one_after_it(parent: Recording) -> None:
    with pytest.raises(NotAllowed):
        ForkAnswers(parent, 2, Patch()).call(LATER, MAIL.asked)


def test_recorded_policy_serves_only_recorded_answers(parent: Recording) -> None:
    fork = ForkAnswers(parent, 1, Patch(), "recorded")
    assert answer(fork.call(LATER, model("", prompt="send?").asked)) == "yes"
    assert answer(fork.call(LATER, made("now").asked)) == 5
    assert fork.call(LATER, made("now").asked) is None
    with pytest.raises(Unrecorded, match="prompt"):
        fork.call(LATER, model("", prompt="sent?").asked)


def test_ask_policy_prompts_for_unrecorded_answers(parent: Recording) -> None:
    met: list[str] = []

    def ask(site: CallSite, asked: RecordedRequest, why: Unrecorded) -> Call | None:
        met.append(asked.name)
        assert why.site == site
        return Call(asked=asked, answer="told", source="recorded") if asked.request["kwargs"] else None

    fork = ForkAnswers(parent, 1, Patch(), "asked", ask=ask)
    assert answer(fork.call(SEND, model("", prompt="send?").asked)) == "yes"
    assert answer(fork.call(SEND, model("", prompt="now?").asked)) == "told"
    assert fork.call(SEND, model("").asked) is None
    assert answer(fork.call(SEND, tool("mail", effect="write", to="bob").asked)) == "told"
    assert met == ["chat", "chat", "mail"]
    with pytest.raises(NotAllowed):  # the user answered "make the call", which a user may not decide here
        fork.call(SEND, tool("mail", effect="write").asked)


def test_patched_results_take_precedence(parent: Recording) -> None:
    patch = patch_of({}, results={"2/mail": "other", "2/chat#2": Failure(exception="builtins.TimeoutError")})
    fork = ForkAnswers(parent, 1, patch)
    assert answer(fork.call(SEND, tool("mail", effect="write", to="bob").asked)) == "other"
    assert fork.call(SEND, model("").asked) is None
    second = fork.call(SEND, model("").asked)
    assert second is not None
    assert second.failure is not None
    assert fork.call(LATER, model("").asked) is None
    for key in ("1/find", "find", "2/", "x/find"):
        with pytest.raises(InputError, match="STEP/NAME"):
            ForkAnswers(parent, 1, patch_of({}, results={key: 1}))


def test_patched_arguments_apply_after_the_fork(parent: Recording) -> None:
    fork = ForkAnswers(parent, 1, patch_of({}, arguments={"model": {"model": "b"}, "find": {"limit": 1}}))
    assert fork.arguments(1, "model", "chat") == {}
    assert fork.arguments(2, "model", "chat") == {"model": "b"}
    assert fork.arguments(2, "tool", "find") == {"limit": 1}
    assert fork.arguments(2, "tool", "other") == {}


def test_patch_edits_the_state_by_paths_or_by_a_function() -> None:
    before = {"order": {"items": [1, 2]}, "x": 1}
    patch = patch_of(before, state={"order.items[1]": 5, "order.items[2]": 6, "order.new": True}, drop=["x"])
    assert applied(before, patch.state) == {"order": {"items": [1, 5, 6], "new": True}}
    assert before == {"order": {"items": [1, 2]}, "x": 1}
    in_place = patch_of(before, state=lambda state: state["order"].pop("items") and None)
    assert applied(before, in_place.state) == {"order": {}, "x": 1}
    assert applied(before, patch_of(before, state=lambda _: {"y": 1}).state) == {"y": 1}
    for path in ("no.such", "order.items[7]", "order.items.x", "x.y", ""):
        with pytest.raises(InputError, match="keys and indexes"):
            patch_of(before, drop=[path])


def test_patch_round_trips_through_the_record() -> None:
    patch = patch_of({}, state={"a": 1}, input=None, results={"2/x": None}, arguments={"chat": {"model": "b"}})
    assert read_patch(patch.tree) == patch
    assert read_patch(None) == Patch()
    assert to_tree(Patch()) == {}


@pytest.mark.parametrize("at", [-1, 4])
def test_fork_starts_after_a_committed_step(parent: Recording, at: int) -> None:
    with pytest.raises(InputError, match="committed steps end at 3"):
        ForkAnswers(parent, at, Patch())
