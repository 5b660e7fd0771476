"""RefoldSaver with graphs of LangGraph: what other checkpointers can do, and what only a log can."""

from __future__ import annotations

import asyncio
import operator
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import INTERRUPT
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command, Send, StateSnapshot, interrupt

import refold
from refold.langgraph import RefoldSaver

pytestmark = pytest.mark.outside

Compiled = CompiledStateGraph[Any, Any, Any, Any]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file:{tmp_path / 'log'}"


@pytest.fixture
def saver(url: str) -> Iterator[RefoldSaver]:
    with RefoldSaver(url) as opened:
        yield opened


def on(thread: str, checkpoint: str = "") -> RunnableConfig:
    more = {"checkpoint_id": checkpoint, "checkpoint_ns": ""} if checkpoint else {}
    return {"configurable": {"thread_id": thread, **more}}


class Chat(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    turns: int


def chat(saver: RefoldSaver) -> Compiled:
    def answer(state: Chat) -> dict[str, Any]:
        said = state["messages"][-1].content
        return {"messages": [AIMessage(f"You said {said}. {'So it is. ' * 60}")], "turns": state.get("turns", 0) + 1}

    graph = StateGraph(Chat)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    return graph.compile(checkpointer=saver)


def invoke(graph: Compiled, thread: str, text: str) -> Any:
    return graph.invoke({"messages": [HumanMessage(text)]}, on(thread))


def texts(state: Any) -> list[str]:
    return [each.content.partition(".")[0] for each in state.values["messages"]]


def test_thread_continues_in_another_process_or_a_recompiled_graph(url: str) -> None:
    with RefoldSaver(url) as saver:
        invoke(chat(saver), "t", "one")
    with RefoldSaver(url) as saver:
        invoke(chat(saver), "t", "two")
        state = chat(saver).get_state(on("t"))
        assert texts(state) == ["one", "You said one", "two", "You said two"]
        assert state.values["turns"] == 2
        assert saver.log.verify().ok


def test_log_answers_for_the_past_of_a_thread(saver: RefoldSaver) -> None:
    graph = chat(saver)
    invoke(graph, "t", "one")
    saver.log.mark("before two")
    invoke(graph, "t", "two")
    now, then = (saver.log.state("langgraph_thread/t", at) for at in (None, "@before two"))
    assert (then.fields["values"]["turns"], now.fields["values"]["turns"]) == (1, 2)
    assert [each["content"][:3] for each in now.fields["values"]["messages"][-2:]] == ["two", "You"]
    fields = {row.field for row in saver.log.diff("@before two", None, "langgraph_thread/t")}
    assert fields >= {"values", "checkpoint", "step"}
    [holder] = now.observations_of("values", "turns")
    chain = now.why("values", "turns")
    assert chain[0].observation_id == holder.hex()
    head = graph.get_state(on("t")).config["configurable"]["checkpoint_id"]
    entities = {each.observation.entity for each in chain if each.observation is not None}
    assert f"langgraph_checkpoint/t#{head}" in entities


def test_time_travel_and_a_fork(saver: RefoldSaver) -> None:
    graph = chat(saver)
    for text in ("one", "two", "three"):
        invoke(graph, "t", text)
    history = [*graph.get_state_history(on("t"))]
    after_two = next(each for each in history if len(texts(each)) == 4 and not each.next)
    forked = graph.update_state(after_two.config, {"messages": [HumanMessage("other")]})
    assert texts(graph.get_state(forked)) == ["one", "You said one", "two", "You said two", "other"]
    graph.invoke({"messages": [HumanMessage("four")]}, forked)
    assert texts(graph.get_state(on("t")))[4:] == ["other", "four", "You said four"]
    shown = saver.log.state("langgraph_thread/t").fields
    assert shown["values"]["turns"] == 3
    assert "three" not in str(shown["values"]["messages"])
    still = graph.get_state(next(each.config for each in history if "three" in texts(each)))
    assert "three" in texts(still)


def test_fork_shows_the_checkpoint_it_started_from_in_the_thread(saver: RefoldSaver) -> None:
    """A channel that the fork does not write has the value from the point where the fork begins."""
    graph = chat(saver)
    invoke(graph, "t", "one")
    old = graph.get_state(on("t"))
    invoke(graph, "t", "two")
    assert saver.log.state("langgraph_thread/t").fields["values"]["turns"] == 2
    graph.update_state(old.config, {"messages": [HumanMessage("other")]})
    assert saver.log.state("langgraph_thread/t").fields["values"]["turns"] == 1


class Asked(TypedDict):
    name: str
    answers: Annotated[list[str], operator.add]


def asking(saver: RefoldSaver, *, is_async: bool = False) -> Compiled:
    def ask(state: Asked) -> dict[str, Any]:
        return {"answers": [interrupt({"to": state["name"]})]}

    graph = StateGraph(Asked)
    graph.add_node("ask", ask)
    graph.add_edge(START, "ask")
    return graph.compile(checkpointer=saver)


def test_interrupt_stays_in_the_log_until_answered(url: str) -> None:
    with RefoldSaver(url) as saver:
        asking(saver).invoke({"name": "ann"}, on("t"))
        waits = saver.log.state("langgraph_thread/t").fields["interrupts"]
        assert [each["value"] for one in waits.values() for each in one] == [{"to": "ann"}]
    with RefoldSaver(url) as saver:
        graph = asking(saver)
        assert [each.value for each in graph.get_state(on("t")).interrupts] == [{"to": "ann"}]
        assert graph.invoke(Command(resume="yes"), on("t"))["answers"] == ["yes"]
        assert "interrupts" not in saver.log.state("langgraph_thread/t").fields


class SlowPuts(RefoldSaver):
    """Puts no checkpoint before an interrupt is recorded. LangGraph puts checkpoints in a thread, in their order, and
    writes of tasks in others: so may any graph whose step takes less time than a put."""

    recorded = threading.Event()

    def put(self, *args: Any) -> RunnableConfig:
        assert self.recorded.wait(60)
        return super().put(*args)

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        super().put_writes(config, writes, task_id, task_path)
        if any(channel == INTERRUPT for channel, _ in writes):
            self.recorded.set()


def test_interrupts_recorded_before_their_checkpoints_are_those_that_the_graph_waits_for(url: str) -> None:
    def waits(log: refold.Log) -> list[Any]:
        shown = log.state("langgraph_thread/t").fields.get("interrupts", {})
        return [each["value"] for one in shown.values() for each in one]

    graph = StateGraph(Asked)
    graph.add_node("first", lambda state: {"answers": [interrupt("first?")]})
    graph.add_node("second", lambda state: {"answers": [interrupt("second?")]})
    graph.add_edge(START, "first")
    graph.add_edge("first", "second")
    with SlowPuts(url) as saver:
        compiled: Compiled = graph.compile(checkpointer=saver)
        compiled.invoke({"name": "ann"}, on("t"))
        assert waits(saver.log) == ["first?"]
        saver.recorded.clear()
        compiled.invoke(Command(resume="yes"), on("t"))
        assert waits(saver.log) == ["second?"]
        assert compiled.invoke(Command(resume="no"), on("t"))["answers"] == ["yes", "no"]
        assert waits(saver.log) == []


def test_subgraphs_have_their_own_checkpoints(saver: RefoldSaver) -> None:
    inner = StateGraph(Asked)
    inner.add_node("ask", lambda state: {"answers": [interrupt(state["name"])]})
    inner.add_edge(START, "ask")
    outer = StateGraph(Asked)
    outer.add_node("inner", inner.compile())
    outer.add_edge(START, "inner")
    graph: Compiled = outer.compile(checkpointer=saver)
    graph.invoke({"name": "ann"}, on("t"))
    state = graph.get_state(on("t"), subgraphs=True)
    [task] = state.tasks
    assert isinstance(task.state, StateSnapshot)
    assert task.state.values["name"] == "ann"
    namespaces = {each.config["configurable"]["checkpoint_ns"] for each in saver.list(on("t"))}
    assert len(namespaces) == 2
    assert graph.invoke(Command(resume="hello"), on("t"))["answers"] == ["hello"]
    assert saver.log.verify().ok


def test_concurrent_tasks_write_in_their_order(saver: RefoldSaver) -> None:
    graph = StateGraph(Asked)
    graph.add_node("go", lambda state: {})
    graph.add_node("each", lambda state: {"answers": [state["name"]]})
    graph.add_edge(START, "go")
    graph.add_conditional_edges("go", lambda state: [Send("each", {"name": f"n{n}"}) for n in range(40)], ["each"])
    compiled: Compiled = graph.compile(checkpointer=saver)
    done = compiled.invoke({"name": ""}, on("t"))
    assert done["answers"] == [f"n{n}" for n in range(40)]


def test_async_graph_shares_a_thread_with_a_sync_graph(saver: RefoldSaver) -> None:
    async def talk() -> list[int]:
        graph = chat(saver)
        for text in ("one", "two"):
            await graph.ainvoke({"messages": [HumanMessage(text)]}, on("t"))
        state = await graph.aget_state(on("t"))
        return [len(state.values["messages"]), len([each async for each in saver.alist(on("t"))])]

    assert asyncio.run(talk()) == [4, 6]
    assert len(texts(chat(saver).get_state(on("t")))) == 4


def appended(state: Sequence[str], writes: Sequence[Sequence[str]]) -> list[str]:
    return [*(state or ()), *(each for write in writes for each in write)]


class Log(TypedDict):
    lines: Annotated[list[str], DeltaChannel(appended, snapshot_frequency=5)]
    turn: int


def logging(saver: RefoldSaver) -> Compiled:
    graph = StateGraph(Log)
    graph.add_node("note", lambda state: {"lines": [f"turn {state['turn']}"]})
    graph.add_edge(START, "note")
    return graph.compile(checkpointer=saver)


def turns(saver: RefoldSaver, thread: str, some: range) -> None:
    for turn in some:
        logging(saver).invoke({"turn": turn}, on(thread))


def lines(saver: RefoldSaver, thread: str) -> list[str]:
    found: list[str] = logging(saver).get_state(on(thread)).values["lines"]
    return found


def expected(count: int) -> list[str]:
    return [f"turn {turn}" for turn in range(count)]


def test_delta_channels(url: str) -> None:
    for count in range(1, 14):
        with RefoldSaver(url) as saver:
            turns(saver, "t", range(count - 1, count))
            assert lines(saver, "t") == expected(count)
    with RefoldSaver(url) as saver:
        for state in logging(saver).get_state_history(on("t")):
            assert state.values.get("lines", []) == expected(len(state.values.get("lines", [])))


@pytest.mark.parametrize("count", [1, 5, 6, 12])
def test_prune_keeps_what_the_last_checkpoint_needs(url: str, count: int) -> None:
    with RefoldSaver(url) as saver:
        turns(saver, "t", range(count))
        saver.prune(["t"])
        assert len([*saver.list(on("t"))]) == 1
        assert lines(saver, "t") == expected(count)
    with RefoldSaver(url) as saver:
        turns(saver, "t", range(count, count + 2))
        assert lines(saver, "t") == expected(count + 2)
        saver.prune(["t"])
        assert lines(saver, "t") == expected(count + 2)


def test_deleting_a_run_keeps_what_later_runs_need(saver: RefoldSaver) -> None:
    graph = logging(saver)
    for turn in range(4):
        graph.invoke({"turn": turn}, {**on("t"), "metadata": {"run_id": f"r{turn}"}})
    before = len([*saver.list(on("t"))])
    saver.delete_for_runs(["r1", "r2"])
    left = [each.metadata.get("run_id") for each in saver.list(on("t"))]
    assert 0 < len(left) < before
    assert {*left} == {"r0", "r3"}
    assert lines(saver, "t") == expected(4)


@pytest.mark.parametrize("is_pruned", [False, True])
def test_copied_thread_has_everything_it_needs(saver: RefoldSaver, is_pruned: bool) -> None:
    turns(saver, "t", range(7))
    if is_pruned:
        saver.prune(["t"])
    saver.copy_thread("t", "copy")
    count = len([*saver.list(on("t"))])
    saver.delete_thread("t")
    assert lines(saver, "copy") == expected(7)
    assert len([*saver.list(on("copy"))]) == count
    turns(saver, "copy", range(7, 9))
    assert lines(saver, "copy") == expected(9)
    assert [*saver.list(on("t"))] == []
    assert saver.log.verify().ok


def test_copied_chat_is_independent(saver: RefoldSaver) -> None:
    graph = chat(saver)
    invoke(graph, "t", "one")
    saver.copy_thread("t", "copy")
    invoke(graph, "copy", "two")
    assert texts(graph.get_state(on("t"))) == ["one", "You said one"]
    assert texts(graph.get_state(on("copy"))) == ["one", "You said one", "two", "You said two"]
    assert saver.log.state("langgraph_thread/copy").fields["values"]["turns"] == 2


def test_deleted_thread_is_gone_now_but_known_in_the_past(saver: RefoldSaver) -> None:
    graph = chat(saver)
    invoke(graph, "t", "one")
    head = graph.get_state(on("t")).config["configurable"]["checkpoint_id"]
    saver.log.mark("before")
    saver.delete_thread("t")
    assert saver.get_tuple(on("t")) is None
    assert saver.get_tuple(on("t", head)) is None
    assert "values" not in saver.log.state("langgraph_thread/t").fields
    assert "body" not in saver.log.state(f"langgraph_checkpoint/t#{head}").fields
    assert saver.log.state("langgraph_thread/t", "@before").fields["values"]["turns"] == 1
    invoke(graph, "t", "again")
    assert texts(graph.get_state(on("t"))) == ["again", "You said again"]
    assert "deleted_at" not in saver.log.state("langgraph_thread/t").fields


def test_copying_back_does_not_restore_old_writes(saver: RefoldSaver) -> None:
    """After the thread was deleted, the same checkpoint ids are written again."""
    graph = asking(saver)
    graph.invoke({"name": "ann"}, on("t"))
    saver.copy_thread("t", "copy")
    head = graph.get_state(on("t")).config
    saver.put_writes(head, [("answers", ["late"])], "another task")
    saver.delete_thread("t")
    saver.copy_thread("copy", "t")
    found, copy = saver.get_tuple(on("t")), saver.get_tuple(on("copy"))
    assert found is not None
    assert copy is not None
    assert found.pending_writes == copy.pending_writes
    assert "another task" not in str(found.pending_writes)
    assert graph.invoke(Command(resume="yes"), on("t"))["answers"] == ["yes"]


def test_two_processes_alternate_on_a_thread(url: str) -> None:
    """One process owns the log, the other writes through it. Each reads at once what the other wrote."""
    with RefoldSaver(url) as one, RefoldSaver(url) as other:
        for turn in range(6):
            invoke(chat((one, other)[turn % 2]), "t", f"m{turn}")
        for saver in (one, other):
            assert texts(chat(saver).get_state(on("t")))[::2] == [f"m{turn}" for turn in range(6)]


def test_first_of_two_writes_of_a_task_wins_for_every_reader(url: str) -> None:
    with RefoldSaver(url) as one, RefoldSaver(url) as other:
        head = one.put(on("t"), empty_checkpoint(), {"source": "input", "step": -1}, {})
        one.put_writes(head, [("x", "first")], "task")
        other.put_writes(head, [("x", "second"), ("y", "new")], "task")
        for saver in (one, other):
            found = saver.get_tuple(on("t"))
            assert found is not None
            assert found.pending_writes == [("task", "x", "first"), ("task", "y", "new")]


STRANGE = ["", "a#b", "a%23b", "100%", "tab\there", "zoë/ünï", "a" * 300, "#", "%"]


def test_thread_names_of_any_form_are_kept_apart(saver: RefoldSaver) -> None:
    for name in STRANGE:
        for namespace in ("", "node:1|inner:2", "#"):
            config: RunnableConfig = {"configurable": {"thread_id": name, "checkpoint_ns": namespace}}
            checkpoint = {**empty_checkpoint(), "channel_values": {"name": [name, namespace]}}
            saver.put(config, checkpoint, {"source": "input", "step": -1}, {})  # type: ignore[arg-type]
    for name in STRANGE:
        for namespace in ("", "node:1|inner:2", "#"):
            found = saver.get_tuple({"configurable": {"thread_id": name, "checkpoint_ns": namespace}})
            assert found is not None
            assert found.checkpoint["channel_values"] == {"name": [name, namespace]}
    assert len([*saver.list(None)]) == 3 * len(STRANGE)


class Cipher:
    """Like LangGraph's own cipher, which needs a further package."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        nonce = os.urandom(12)
        return "aes", nonce + AESGCM(b"0123456789abcdef").encrypt(nonce, plaintext, None)

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        return AESGCM(b"0123456789abcdef").decrypt(ciphertext[:12], ciphertext[12:], None)


def test_encrypting_serializer_leaves_no_plaintext(url: str, tmp_path: Path) -> None:
    secret = "the word is xylophone"

    def opened() -> RefoldSaver:
        return RefoldSaver(url, serde=EncryptedSerializer(Cipher(), JsonPlusSerializer()))

    with opened() as saver:
        invoke(chat(saver), "t", secret)
        assert secret in texts(chat(saver).get_state(on("t")))
    with opened() as saver:
        assert secret in texts(chat(saver).get_state(on("t")))
        held = [each.data for p in range(saver.log.port.partitions)
                for each in saver.log.port.read(p, 0, saver.log.port.ends()[p])]  # fmt: skip
        assert not any(secret.encode() in each for each in held)
    assert not any(secret.encode() in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_large_and_non_json_values_round_trip(saver: RefoldSaver) -> None:
    values = {
        "bytes": b"\x00\xff" * 200_000, "none": None, "text": "x" * 1_000_000, "float": 1.0, "int": -(2**63),
        "nan": float("inf"), "set": {1, 2}, "nested": {"a": [{"b": [1, 2]}] * 30},
    }  # fmt: skip
    checkpoint = {**empty_checkpoint(), "channel_values": values, "channel_versions": dict.fromkeys(values, 1)}
    saver.put(on("t"), checkpoint, {"source": "input", "step": -1}, dict.fromkeys(values, 1))  # type: ignore[arg-type]
    found = saver.get_tuple(on("t"))
    assert found is not None
    assert found.checkpoint["channel_values"] == values
    assert type(found.checkpoint["channel_values"]["float"]) is float


def test_saver_leaves_an_open_log_open(url: str) -> None:
    with refold.open(url) as log:
        with RefoldSaver(log) as saver:
            invoke(chat(saver), "t", "one")
        assert log.state("langgraph_thread/t").fields["values"]["turns"] == 1


@pytest.mark.parametrize("missing", ["langgraph", "langchain_core"])
def test_missing_langgraph_names_what_to_install(missing: str) -> None:
    code = f"import sys; sys.modules['{missing}'] = None; import refold; import refold.langgraph"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'refold[langgraph]'" in done.stderr.splitlines()[-1]


def test_growing_thread_stores_only_what_is_new(tmp_path: Path) -> None:
    """Ten times as many turns need about ten times the space, not a hundred times."""

    def written(count: int, name: str) -> int:
        with RefoldSaver(f"file:{tmp_path / name}") as saver:
            for turn in range(count):
                invoke(chat(saver), "t", f"m{turn}")
            port = saver.log.port
            return sum(len(each.data) for p in range(port.partitions) for each in port.read(p, 0, port.ends()[p]))

    assert written(60, "long") < 14 * written(6, "short")
