"""The answers of a replay and of a resumed run."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from refold.agents.journal.record import Attempt, Call, Failure, RecordedRequest, Recording
from refold.agents.recorder.answers import CallSite
from refold.agents.replay.player import Differs, Replayer, Resumer
from refold.agents.replay.unrecorded import Unrecorded
from refold.avro.errors import InputError
from refold_tests.handmade_runs import made, model, run_of, step, tool

LOOK, TELL = CallSite(1, "look", 1), CallSite(2, "tell", 1)


@pytest.fixture
def recording() -> Recording:
    look = step("look", tool("find", ["a"], q="x"), made("now", 5), tool("find", ["b"], q="x"), tool("find", 0, q="y"))
    return run_of(look, step("tell", model("done", messages=[{"role": "user", "content": "go"}]), made("decide")))


def find(q: str) -> RecordedRequest:
    return tool("find", q=q).asked


def answer_of(answers: Replayer | Resumer, site: CallSite, asked: RecordedRequest) -> Any:
    call = answers.call(site, asked)
    assert call is not None
    return call.answer


def test_equal_requests_are_answered_in_order_and_different_ones_in_any_order(recording: Recording) -> None:
    player = Replayer(recording)
    assert answer_of(player, LOOK, find("y")) == 0
    assert answer_of(player, LOOK, find("x")) == ["a"]
    assert answer_of(player, LOOK, find("x")) == ["b"]
    assert [at.call.asked.kind for at in player.unused()] == ["now", "model"]
    assert answer_of(player, LOOK, RecordedRequest(kind="now")) == 5
    assert player.call(TELL, RecordedRequest(kind="decide", request={"choice": "other"})) is None


def test_unrecorded_request_raises_and_keeps_raising(recording: Recording) -> None:
    player = Replayer(recording)
    with pytest.raises(Unrecorded) as raised:
        player.call(LOOK, find("z"))
    assert str(raised.value).splitlines()[:4] == [
        "step 1 (look) asked for what the recording of run run-1 does not hold",
        '  asked     tool find(q="z")',
        '  nearest   tool find(q="x"), in step 1 (look)',
        '  differs   kwargs.q: "z" asked, "x" recorded',
    ]
    with pytest.raises(Unrecorded, match='"z"'):  # code that caught the first error cannot continue
        player.call(LOOK, find("x"))
    assert player.departure is raised.value


def test_request_recorded_elsewhere_or_used_up_says_so(recording: Recording) -> None:
    with pytest.raises(Unrecorded, match=r"recorded  the same in step 1 \(look\)\n") as raised:
        Replayer(recording).call(TELL, find("y"))
    assert [at.site for at in raised.value.elsewhere] == [LOOK]
    player = Replayer(recording)
    player.call(LOOK, find("y"))
    with pytest.raises(Unrecorded, match=r"the same in step 1 \(look\), served already"):
        player.call(LOOK, find("y"))


@pytest.mark.parametrize(
    ("asked", "nearest", "path"),
    [
        (tool("find", q="x", limit=3).asked, "find", "kwargs.limit"),
        (tool("fund", q="y").asked, "find", "name"),
        (model(0, messages=[{"role": "user", "content": "go on"}]).asked, "chat", "kwargs.messages[0].content"),
        (model(0, messages=[{"role": "user", "content": "go"}], model="m").asked, "chat", "kwargs.model"),
    ],
)
def test_nearest_request_has_the_same_kind_and_its_differing_paths_are_named(
    recording: Recording, asked: RecordedRequest, nearest: str, path: str
) -> None:
    with pytest.raises(Unrecorded) as raised:
        Replayer(recording).call(LOOK, asked)
    found = raised.value.nearest
    assert found is not None
    assert found.call.asked.name == nearest
    assert path in [each.path for each in raised.value.differences]


def test_most_similar_text_is_nearest() -> None:
    texts = ["refund order 17 of Ann", "list the open tickets", "refund order 18 of Bob"]
    recording = run_of(step("ask", *(model("", prompt=text) for text in texts)))
    with pytest.raises(Unrecorded) as raised:
        Replayer(recording).call(CallSite(1, "ask", 1), model("", prompt="list all open tickets").asked)
    assert raised.value.nearest is not None
    assert raised.value.nearest.position == 2


def test_true_is_not_one_and_an_integral_float_is_its_integer() -> None:
    recording = run_of(step("look", tool("find", 1, n=1)))
    with pytest.raises(Unrecorded):
        Replayer(recording).call(LOOK, tool("find", n=True).asked)
    assert answer_of(Replayer(recording), LOOK, tool("find", n=1.0).asked) == 1


def test_whole_run_mode_answers_from_any_step(recording: Recording) -> None:
    player = Replayer(recording, "run")
    assert answer_of(player, TELL, find("y")) == 0
    assert answer_of(player, TELL, find("x")) == ["a"]
    assert answer_of(player, LOOK, find("x")) == ["b"]
    with pytest.raises(Unrecorded):
        player.call(LOOK, find("x"))


def test_whole_run_mode_never_runs_out_of_clock_readings(recording: Recording) -> None:
    def asked() -> list[Any]:
        player = Replayer(recording, "run")
        kinds: list[Any] = ["now", "now", "now", "random", "random", "uuid"]
        return [answer_of(player, LOOK, RecordedRequest(kind=kind)) for kind in kinds]

    found = asked()
    assert found == asked()
    assert found[:3] == [5, 6, 7]
    assert 0 <= found[3] < 1
    assert found[3] != found[4]


def test_interrupted_attempts_are_replayed_as_recorded() -> None:
    failed = Attempt(number=1, calls=(tool("find", 1),), failure=Failure(exception="E"))
    recording = run_of(step("look", tool("find", 2), before=(failed, Attempt(number=2))))
    player = Replayer(recording)
    assert [each.number for each in player.begun(1)] == [1, 2]
    assert answer_of(player, CallSite(1, "look", 3), tool("find").asked) == 2
    assert player.unused() == ()
    assert Replayer(run_of(step("look", before=(failed,)))).begun(1) == ()  # the code is run again, and fails again


def test_resume_replays_committed_steps_and_then_runs_live(recording: Recording) -> None:
    pending = step("send", outcome="", before=(Attempt(number=1, failure=Failure(exception="E")),))
    steps = recording.steps
    recording = run_of(*steps, pending)
    resumer = Resumer(recording)
    assert resumer.step(1, "look") == recording.steps[0]
    assert resumer.step(3, "send") is None
    assert [each.number for each in resumer.begun(3)] == [1, 2]
    assert answer_of(resumer, LOOK, find("x")) == ["a"]
    assert resumer.call(CallSite(3, "send", 3), find("x")) is None
    assert resumer.step(4, "more") is None
    assert resumer.begun(4) == ()


def test_resume_by_other_code_is_refused(recording: Recording) -> None:
    with pytest.raises(Differs, match=r'name: "seek" now, "look" recorded'):
        Resumer(recording).step(1, "seek")
    with pytest.raises(Unrecorded, match="step 1"):
        Resumer(recording).call(LOOK, find("z"))
    resumer = Resumer(recording)
    with pytest.raises(Differs) as raised:
        resumer.step(1, "seek")
    assert resumer.departure is raised.value
    with pytest.raises(Differs):  # for any later request
        resumer.call(CallSite(3, "more", 1), find("x"))


def test_fork_is_not_resumed(recording: Recording) -> None:
    child = msgspec.structs.replace(recording, parent="run-0", forked_at=1)
    with pytest.raises(InputError, match="fork run run-0 again at 1"):
        Resumer(child)


def test_forks_parent_steps_are_replayed_and_its_arguments_apply() -> None:
    patch = {"arguments": {"model": {"model": "b"}}}
    child = msgspec.structs.replace(
        run_of(step("look", tool("find", 1)), step("ask", model("", model="b"))),
        parent="run-0",
        forked_at=1,
        patch=patch,
    )
    player = Replayer(child)
    assert player.step(1, "look") == child.steps[0]
    assert player.step(2, "ask") is None
    assert player.arguments(1, "model", "chat") == {}
    assert player.arguments(2, "model", "chat") == {"model": "b"}
    assert [at.call.asked.kind for at in player.unused()] == ["model"]


def test_threads_get_each_recorded_call_once() -> None:
    calls = [tool("find", number, q="x") for number in range(400)]
    player = Replayer(run_of(step("look", *calls)))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: answer_of(player, LOOK, find("x")), range(400)))
    assert sorted(found) == list(range(400))


def test_call_is_served_once_and_as_recorded() -> None:
    call: Call = tool("find", {"deep": [1.5, None]})
    assert Replayer(run_of(step("look", call))).call(LOOK, call.asked) == call
