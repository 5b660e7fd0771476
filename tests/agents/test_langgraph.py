"""Graphs of LangGraph without an enclosing step: concurrent nodes, and ToolNode."""

from __future__ import annotations

import asyncio
import operator
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, AnyMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode

import refold
from refold.agents.golden.add import golden_of_run
from refold.agents.golden.runner import judged_run
from refold.agents.journal.chain import broken
from refold.agents.log import AgentLog
from refold.agents.recorder.run import Run
from refold.agents.replay.forked import NotAllowed

REPLAYS, REPLAYS_SOAK = 20, 100
TOPICS = ["policy", "stock", "weather"]
sent: list[str] = []


def dawdle() -> None:
    time.sleep(random.random() / 200)


@refold.tool
def look_up(topic: str) -> str:
    """Look a topic up."""
    dawdle()
    return f"all about {topic}"


@refold.tool(effect="write")
def send(to: str, *, idempotency_key: str = "") -> str:
    """Send a letter."""
    dawdle()
    sent.append(to)
    return f"sent to {to}"


def chat(prompt: str) -> str:
    dawdle()
    return prompt.upper()


class State(TypedDict):
    facts: Annotated[list[str], operator.add]
    messages: Annotated[list[AnyMessage], add_messages]


def graph_of(run: Run) -> Any:
    def topic(name: str) -> Any:
        def node(state: State) -> Any:
            dawdle()
            found = look_up(topic=name)
            return {"facts": [run.model(chat, prompt=found)]}

        return node

    def ask(state: State) -> Any:
        run.model(chat, prompt=str(state["facts"]))
        calls = [{"name": "send", "args": {"to": to}, "id": to} for to in ("ada", "bo", "cy")]
        calls.append({"name": "look_up", "args": {"topic": "letters"}, "id": "letters"})
        return {"messages": [AIMessage("", tool_calls=calls)]}

    graph = StateGraph(State)
    for name in TOPICS:
        graph.add_node(name, topic(name))
        graph.add_edge(START, name)
        graph.add_edge(name, "ask")
    graph.add_node("ask", ask)
    graph.add_edge("ask", "tools")
    graph.add_node("tools", ToolNode([send, look_up]))
    graph.add_edge("tools", END)
    return graph.compile()


def state_summary(state: Any) -> Any:
    return [state["facts"], [str(message.content) for message in state["messages"]]]


GIVEN: Any = {"facts": [], "messages": []}


def by_invoke(run: Run) -> Any:
    return state_summary(graph_of(run).invoke(GIVEN))


def by_stream(run: Run) -> Any:
    """With "custom", even a node that runs alone runs in a thread."""
    values = [
        value for mode, value in graph_of(run).stream(GIVEN, stream_mode=["custom", "values"]) if mode == "values"
    ]
    return state_summary(values[-1])


async def by_ainvoke(run: Run) -> Any:
    """Nodes that are plain functions run in threads."""
    return state_summary(await graph_of(run).ainvoke(GIVEN))


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentLog]:
    with refold.open(f"file:{tmp_path_factory.mktemp('langgraph') / 'log'}") as log:
        yield log


def driven(run: Run, agent: Callable[[Run], Any]) -> Any:
    return asyncio.run(run.drive_async(agent))


@pytest.mark.parametrize("agent", [by_invoke, by_stream, by_ainvoke], ids=lambda agent: agent.__name__)
def test_graph_is_recorded_in_an_order_independent_of_timing(
    log: AgentLog, agent: Callable[[Run], Any], is_soak: bool
) -> None:
    sent.clear()
    run = log.run("graph")
    output = driven(run, agent)
    assert output[1][1:] == ["sent to ada", "sent to bo", "sent to cy", "all about letters"]
    recording = log.recording(run.id)
    assert list(broken(recording)) == []
    called = [[call.asked.name for call in step.calls] for step in recording.steps]
    fanned = ["look_up", "chat"] * 3
    tools = ["send"] * 3 + ["look_up"]
    assert called == ([fanned, ["chat"], tools] if agent is by_invoke else [[*fanned, "chat", *tools]])
    assert sorted(sent) == ["ada", "bo", "cy"]

    hashes = set()
    for _ in range(REPLAYS_SOAK if is_soak else REPLAYS):
        found = asyncio.run(log.replay_async(run.id, agent))
        assert found.is_same, found.parting
        hashes.add(found.hash)
    assert len(hashes) == 1
    again = log.run("graph")
    assert driven(again, agent) == output
    assert log.compare(run.id, again.id) is None
    assert len(sent) == 6


def test_model_does_not_see_the_key_of_a_write() -> None:
    node = ToolNode([send])
    assert list(node.tools_by_name["send"].args) == ["to"]


def test_no_mail_is_sent_in_a_fork_or_a_golden_run(log: AgentLog) -> None:
    sent.clear()
    run = log.run("graph")
    output = driven(run, by_invoke)
    assert len(sent) == 3
    fork = log.fork(run.id, at=0, results={"1/look_up": "nothing"}, policy="recorded")
    with pytest.raises(Exception, match="what the recording"):
        driven(fork, by_invoke)
    fork = log.fork(run.id, at=2)
    assert driven(fork, by_invoke) == output
    changed = log.fork(run.id, at=1, arguments={"send": {"to": "dee"}})
    with pytest.raises(NotAllowed):
        driven(changed, by_invoke)
    golden = golden_of_run(log.recording(run.id), log._fields, entry="agents:agent")
    assert judged_run(golden, by_invoke, "agent", Path()).passed
    assert len(sent) == 3
