"""Traces of the OpenAI Agents SDK become runs: real agents of the SDK, against a stand-in for the model's provider."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import agents
import pytest

import refold
from refold.agents.journal.chain import broken
from refold.agents.journal.record import Call, Recording
from refold.agents.log import AgentLog
from refold.agents.recorder.run import Run
from refold.openai_agents import RefoldTracingProcessor
from refold_tests.model_server import ModelServer, Reply, model_server
from refold_tests.sdk_agents import ASKED, DONE, ask, asked, client, desk, find_order, mind, processing

pytestmark = pytest.mark.outside


@pytest.fixture(scope="module")
def running() -> Iterator[ModelServer]:
    with model_server() as server:
        yield server


@pytest.fixture
def server(running: ModelServer) -> ModelServer:
    running.reset()
    running.mind = mind
    return running


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentLog]:
    with refold.open(f"file:{tmp_path_factory.mktemp('traces') / 'log'}") as log:
        yield log


@pytest.fixture
def processor(shared: AgentLog) -> Iterator[RefoldTracingProcessor]:
    made = RefoldTracingProcessor(shared)
    with processing(made):
        yield made
    made.shutdown(60)


def runs_of(log: AgentLog, before: set[str]) -> list[Recording]:
    """Return the runs that are new in the log, oldest first."""
    return [log.recording(each.run) for each in reversed(log.runs()) if each.run not in before]


def known(log: AgentLog) -> set[str]:
    return {each.run for each in log.runs()}


def called(calls: tuple[Call, ...]) -> list[str]:
    return sorted(call.asked.name or call.asked.request["choice"] for call in calls)


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
def test_trace_becomes_a_run(
    server: ModelServer, shared: AgentLog, processor: RefoldTracingProcessor, is_streamed: bool
) -> None:
    before = known(shared)
    assert ask(server, is_streamed=is_streamed) == DONE
    processor.force_flush()
    (run,) = runs_of(shared, before)
    assert (run.agent, run.kind, run.title, run.outcome) == ("desk", "openai-agents", "Agent workflow", "succeeded")
    assert run.output == DONE
    assert run.input[-1] == {"role": "user", "content": ASKED}
    assert [*broken(run)] == []
    turns = [step for step in run.steps if any(call.asked.kind == "model" for call in step.calls)]
    assert [step.name for step in turns] == ["helper", "desk", "desk", "refunds"], "a nested turn ends before its own"
    helper, first, second, last = turns
    assert "function help" in helper.result["within"]
    names = called(tuple(call for call in first.calls if call.asked.kind != "decide"))
    assert names == ["find_order", "gpt-5-mini", "help", "pay"]
    by_name = {call.asked.name: call for call in first.calls}
    assert by_name["find_order"].asked.request == {"args": [], "kwargs": {"order": "o-7"}}
    assert by_name["find_order"].answer == {"order": "o-7", "eur": 42}
    assert by_name["pay"].failure is not None
    assert first.outcome == "succeeded", "a tool that failed is an answer to the model"
    assert called(second.calls) == ["gpt-5-mini", "handoff to refunds"]
    model = last.calls[0]
    assert model.asked.request["kwargs"]["model"] == "gpt-5-mini"
    assert model.asked.request["kwargs"]["input"][0] == {"content": "You refund.", "role": "system"}
    assert DONE in str(model.answer["output"][0]["content"])
    guards = [call.asked.request["choice"] for step in run.steps for call in step.calls if "guard" in str(call.asked)]
    assert guards == ["guardrail polite let it pass"]


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
def test_calls_of_the_responses_api_are_recorded(
    server: ModelServer, shared: AgentLog, processor: RefoldTracingProcessor, is_streamed: bool
) -> None:
    """Their spans hold the provider's own answer: the model, the tokens, what was asked and said, and the tools."""

    def deciding(body: Any) -> Reply:
        is_done = any(each.get("type") == "function_call_output" for each in body["input"])
        return Reply([DONE]) if is_done else Reply(tools=[("find_order", {"order": "o-7"})])

    async def whole() -> Any:
        async with client(server) as sdk:
            model = agents.OpenAIResponsesModel(model="gpt-5-mini", openai_client=sdk)
            desk = agents.Agent(name="desk", instructions="You decide.", model=model, tools=[find_order])
            return await asked(desk, is_streamed=is_streamed)

    server.mind = deciding
    before = known(shared)
    assert asyncio.run(whole()) == DONE
    assert {path for path, *_ in server.requests} == {"/v1/responses"}
    processor.force_flush()
    (run,) = runs_of(shared, before)
    assert (run.outcome, run.output, [step.name for step in run.steps]) == ("succeeded", DONE, ["desk", "desk"])
    first, last = run.steps
    assert called(first.calls) == ["find_order", "gpt-5-mini"]
    model = next(call for call in first.calls if call.asked.kind == "model")
    given = model.asked.request["kwargs"]
    assert (given["model"], given["instructions"]) == ("gpt-5-mini", "You decide.")
    assert given["input"] == [{"content": ASKED, "role": "user"}]
    assert [each["name"] for each in given["tools"]] == ["find_order"]
    (asking,) = model.answer["output"]
    assert (asking["type"], asking["name"], asking["arguments"]) == ("function_call", "find_order", '{"order": "o-7"}')
    tool = next(call for call in first.calls if call.asked.kind == "tool")
    assert (tool.asked.request["kwargs"], tool.answer) == ({"order": "o-7"}, {"order": "o-7", "eur": 42})
    (second,) = last.calls
    assert [each.get("type", "message") for each in second.asked.request["kwargs"]["input"]] == [
        "message", "function_call", "function_call_output",
    ]  # fmt: skip
    assert second.answer["output"][0]["content"][0]["text"] == DONE
    for step in run.steps:
        (usage,) = shared.state(f"step/{run.run}#{step.number}").fields["model_calls"]
        assert (usage["input_tokens"], usage["output_tokens"], usage["cached_tokens"]) == (7, 5, 3)
    assert [*broken(run)] == []


def test_queries_about_a_run_are_answered(
    server: ModelServer, shared: AgentLog, processor: RefoldTracingProcessor
) -> None:
    before = known(shared)
    ask(server)
    processor.force_flush()
    (run,) = runs_of(shared, before)
    row = next(each for each in shared.runs(usage=True) if each.run == run.run)
    assert row.steps == len(run.steps)
    actions = {
        name: shared.state(name).fields for step in run.steps for k, _ in enumerate(step.calls, 1)
        if (name := f"action/{run.run}#{step.number}.{k}") in shared.states([name])
    }  # fmt: skip
    assert sorted(each["tool"] for each in actions.values()) == ["find_order", "help", "pay"]
    assert {each["tool"]: each["status"] for each in actions.values()}["pay"] == "failed"
    step = shared.state(f"step/{run.run}#1").fields
    assert step["model_calls"][0]["input_tokens"] == 7
    assert step["model_calls"][0]["output_tokens"] == 5
    assert shared.verify().mismatches == []


def test_concurrent_runs_in_one_trace_are_one_run(
    server: ModelServer, shared: AgentLog, processor: RefoldTracingProcessor
) -> None:
    async def both() -> None:
        async with client(server) as sdk:
            with agents.trace("two desks", trace_id="trace_two", group_id="chat-1", metadata={"customer": "c-1"}):
                await asyncio.gather(asked(desk(sdk)), asked(desk(sdk), is_streamed=True))

    asyncio.run(both())
    processor.force_flush()
    run = shared.recording("trace_two")
    assert run.title == "two desks"
    assert run.metadata == {"openai_agents": {"trace": "trace_two", "group": "chat-1", "metadata": {"customer": "c-1"}}}
    models = [call for step in run.steps for call in step.calls if call.asked.kind == "model"]
    assert len(models) == 8
    assert [*broken(run)] == []


def test_concurrent_traces_are_separate_runs(
    server: ModelServer, shared: AgentLog, processor: RefoldTracingProcessor
) -> None:
    before = known(shared)
    threads = [threading.Thread(target=ask, args=(server,)) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    processor.force_flush()
    runs = runs_of(shared, before)
    assert len(runs) == 3
    assert all(run.outcome == "succeeded" for run in runs)
    assert all(sum(call.asked.kind == "model" for step in run.steps for call in step.calls) == 4 for run in runs)


def test_run_fails_when_its_outermost_agent_fails(
    server: ModelServer, shared: AgentLog, processor: RefoldTracingProcessor
) -> None:
    before = known(shared)
    with pytest.raises(agents.InputGuardrailTripwireTriggered):
        ask(server, "A rude text.")
    server.failing = 1
    with pytest.raises(Exception, match="slow down"):
        ask(server)
    processor.force_flush()
    stopped, refused = runs_of(shared, before)
    assert (stopped.outcome, refused.outcome) == ("failed", "failed")
    assert stopped.failure is not None
    assert "uardrail" in stopped.failure.message
    decided = [call.asked.request["choice"] for step in stopped.steps for call in step.calls
               if call.asked.kind == "decide"]  # fmt: skip
    assert "guardrail polite stopped it" in decided
    failed = next(step for step in refused.steps if step.outcome == "failed")
    assert failed.failure is not None
    assert "slow down" in failed.failure.message


def test_span_that_ends_after_its_trace_belongs_to_its_run(shared: AgentLog, processor: RefoldTracingProcessor) -> None:
    trace = agents.trace("late", trace_id="trace_late")
    trace.start(mark_as_current=True)
    late = agents.custom_span("cleanup", {"files": 3})
    late.start()
    trace.finish(reset_current=True)
    processor.force_flush()
    assert not shared.states(["run/trace_late"])
    late.finish()
    processor.force_flush()
    run = shared.recording("trace_late")
    assert run.outcome == "succeeded"
    assert [each["data"] for each in run.steps[0].result["spans"]] == [{"files": 3}]
    again = agents.custom_span("another", {}, parent=trace)
    again.start()
    again.finish()
    processor.force_flush()
    assert shared.recording("trace_late").hash == run.hash
    assert shared.recording("trace_late.2").steps[0].result["spans"][0]["name"] == "another"


def test_two_traces_of_the_same_compare_as_equal(
    server: ModelServer, shared: AgentLog, processor: RefoldTracingProcessor
) -> None:
    """Ids of spans and times differ in every trace."""
    before = known(shared)
    for _ in range(2):
        with agents.trace("clean and ask"):
            with agents.custom_span("cleanup", {"files": 3}):
                pass
            assert ask(server) == DONE
    processor.force_flush()
    one, other = runs_of(shared, before)
    assert one.run != other.run
    assert shared.compare(one.run, other.run) is None
    clock = [call.answer for step in one.steps for call in step.calls if call.asked.kind == "now"]
    assert len(clock) == 2
    assert one.started_at <= clock[0] <= clock[1] <= one.ended_at


def test_each_model_call_is_a_step_when_there_are_no_turns(
    server: ModelServer, shared: AgentLog, processor: RefoldTracingProcessor
) -> None:
    before = known(shared)

    async def whole() -> None:
        async with client(server) as sdk:
            config = agents.RunConfig(tracing={"include_task_and_turn_spans": False})
            await asked(desk(sdk), run_config=config)

    asyncio.run(whole())
    processor.force_flush()
    (run,) = runs_of(shared, before)
    kinds = [[call.asked.kind for call in step.calls].count("model") for step in run.steps]
    assert max(kinds) == 1
    assert sum(kinds) == 4


@pytest.mark.parametrize(
    "value", [float("nan"), "\ud800", {1: object()}, b"\xff", 1 << 90, [[[]]] * 3],
    ids=["nan", "surrogate", "object", "bytes", "large", "nested"],
)  # fmt: skip
def test_non_json_values_are_recorded(shared: AgentLog, processor: RefoldTracingProcessor, value: Any) -> None:
    before = known(shared)
    with agents.trace("odd"), agents.agent_span("odd"):
        with agents.function_span("odd", "not { json", output=value) as span:
            span.set_error({"message": "odd", "data": {"value": value}})
        with agents.custom_span("odd", {"value": value}):
            pass
    processor.force_flush()
    (run,) = runs_of(shared, before)
    assert run.steps[0].calls[0].asked.request == {"args": ["not { json"], "kwargs": {}}
    assert run.steps[0].calls[0].failure is not None
    assert [*broken(run)] == []


def test_redactor_applies_to_everything_written(server: ModelServer, tmp_path: Path) -> None:
    def hide(tree: Any) -> Any:
        if isinstance(tree, dict):
            return {key: hide(each) for key, each in tree.items()}
        if isinstance(tree, list):
            return [hide(each) for each in tree]
        return tree.replace("o-7", "XXX") if isinstance(tree, str) else tree

    processor = RefoldTracingProcessor(f"file:{tmp_path / 'log'}", redact=hide)
    with processing(processor):
        ask(server)
    processor.shutdown(60)
    with refold.open(f"file:{tmp_path / 'log'}") as log:
        (run,) = runs_of(log, set())
        assert run.redacted
        assert "o-7" not in str(run)
        view = log.rebuild()
        assert not any("o-7" in str(view[name].shown()) for name in view)


def test_model_calls_in_a_refold_run_are_recorded_by_the_run(server: ModelServer, shared: AgentLog) -> None:
    processor = RefoldTracingProcessor(shared)

    async def agent(run: Run) -> Any:
        async with client(server) as sdk:
            with run.step("ask"):
                return await asked(desk(run.client(sdk)))

    before = known(shared)
    with processing(processor):
        run = shared.run("desk", input=ASKED)
        asyncio.run(run.drive_async(agent))
        processor.force_flush()
        (traced,) = [each for each in runs_of(shared, before) if each.run != run.id]
        replayed = shared.replay(run.id, agent)
        processor.force_flush()
        assert known(shared) == {*before, run.id, traced.run}, "a replay is not recorded"
    assert replayed.is_same
    assert len(server.requests) == 4, "a replay sends nothing"
    own = [call for step in shared.recording(run.id).steps for call in step.calls]
    assert sum(call.asked.kind == "model" for call in own) == 4
    calls = [call for step in traced.steps for call in step.calls if call.asked.kind != "decide"]
    assert len(calls) == 7
    assert all(call.asked.request == {"args": [], "kwargs": {"recorded_in": f"run/{run.id}"}} for call in calls)
    assert all(call.answer is None for call in calls)
    assert "o-7" not in str(traced)
    links = [(each["relation"], each["target"]) for each in shared.state(f"run/{traced.run}").links]
    assert links == [("recorded_by", f"run/{run.id}")]
    processor.shutdown(60)
