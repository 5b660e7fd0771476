"""RefoldStore: graphs that use it, what it does where LangGraph's stores differ, and what only a log can."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypedDict

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from langgraph.store.base import (
    BaseStore,
    PutOp,
)

import refold
from refold.agents.adapters.langgraph.items import ItemReader
from refold.errors import InputError
from refold.langgraph import RefoldSaver, RefoldStore
from refold.streams.table.keys import position_key
from refold_tests.command import refold_command
from refold_tests.damaged import Damaged
from refold_tests.store_items import keys, named, value_of

pytestmark = pytest.mark.outside


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file:{tmp_path / 'log'}"


@pytest.fixture
def store(url: str) -> Iterator[RefoldStore]:
    with RefoldStore(url) as opened:
        yield opened


def test_item_has_created_and_updated_times(store: RefoldStore) -> None:
    """As in LangGraph's stores on databases: a put of an item that exists keeps the time when it was created."""
    store.put(("m",), "k", {"n": 1})
    first = store.get(("m",), "k")
    store.put(("m",), "k", {"n": 2})
    second = store.get(("m",), "k")
    store.delete(("m",), "k")
    store.put(("m",), "k", {"n": 3})
    third = store.get(("m",), "k")
    assert first is not None
    assert second is not None
    assert third is not None
    assert first.created_at == first.updated_at == second.created_at
    assert second.created_at < second.updated_at < third.created_at == third.updated_at


def test_search_ranks_matches_first_then_newest(store: RefoldStore) -> None:
    for key, text in (("a", "Green TEA, please"), ("b", "black tea"), ("c", "coffee"), ("d", "water")):
        store.put(("m",), key, {"deep": [{"text": text}], "n": 7})
    store.put(("m",), "c", {"text": "coffee with milk"})
    store.batch([PutOp(("batch",), key, {}) for key in "zxy"])
    assert [each.key for each in store.search(("batch",))] == ["y", "x", "z"]
    assert [each.key for each in store.search(("m",))] == ["c", "d", "b", "a"]
    found = store.search(("m",), query="Does she drink green tea?")
    assert [(each.key, each.score) for each in found] == [("a", 0.4), ("b", 0.2), ("c", 0.0), ("d", 0.0)]
    assert [each.key for each in store.search(("m",), query="tea", limit=1, offset=1)] == ["a"]


def test_clock_set_back_keeps_the_order(store: RefoldStore, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = count(time.time_ns(), -1_000_000_000)
    monkeypatch.setattr("refold.agents.adapters.langgraph.store.time", SimpleNamespace(time_ns=lambda: next(clock)))
    for key in "zxy":
        store.put(("m",), key, {})
    assert [each.key for each in store.search(())] == ["y", "x", "z"]


def test_empty_namespaces_are_not_listed(store: RefoldStore) -> None:
    store.get(("asked",), "k")
    store.put(("m", "a"), "k", {})
    store.put(("m", "b"), "k", {})
    store.delete(("m", "a"), "k")
    assert store.list_namespaces() == [("m", "b")]


@pytest.mark.parametrize(
    "value",
    [
        pytest.param({"at": {1, 2}}, id="set"),
        pytest.param({"data": b"x"}, id="bytes"),
        pytest.param({1: "x"}, id="key that is no text"),
        pytest.param({"n": float("nan")}, id="nan"),
        pytest.param({"text": "\ud800"}, id="lone surrogate"),
        pytest.param([1], id="list"),
    ],
)
def test_non_json_value_refuses_its_whole_batch(store: RefoldStore, value: Any) -> None:
    with pytest.raises(InputError, match=r"langgraph_item/m#bad"):
        store.batch([PutOp(("m",), "good", {"n": 1}), PutOp(("m",), "bad", value)])
    assert store.search(()) == []


def test_name_over_the_length_limit_is_refused(store: RefoldStore) -> None:
    with pytest.raises(InputError, match="at most"):
        store.batch([PutOp(("m",), "good", {"n": 1}), PutOp(("m",), "k" * 10_000, {})])
    assert store.search(()) == []


def test_large_value_is_stored_as_a_blob(url: str) -> None:
    value = {"text": "x" * 2_000_000, "list": [*range(1000)]}
    with RefoldStore(url) as store:
        store.put(("m",), "k", value)
        assert isinstance(store.log.state("langgraph_item/m#k").fields["value"], refold.Blob)
    with RefoldStore(url) as store:
        assert value_of(store.get(("m",), "k")) == value
        assert keys(store.search(("m",), filter={"list": [*range(1000)]})) == ["k"]


def test_log_answers_for_the_past_of_an_item(store: RefoldStore) -> None:
    store.put(("users", "ann"), "drink", {"likes": "tea"})
    store.log.mark("before")
    store.put(("users", "ann"), "drink", {"likes": "coffee"})
    store.delete(("users", "ann"), "drink")
    entity = "langgraph_item/users#ann#drink"
    assert store.log.state(entity, "@before").fields["value"] == {"likes": "tea"}
    now = store.log.state(entity).fields
    assert "value" not in now
    assert now["key"] == "drink"
    assert now["deleted_at"]
    values = [row.new for row in store.log.history(entity) if row.field == "value"]
    assert values[:2] == [{"likes": "tea"}, {"likes": "coffee"}]


def test_retracted_put_restores_the_previous_value(store: RefoldStore) -> None:
    store.put(("m",), "k", {"n": 1})
    store.put(("m",), "k", {"n": 2})
    wrong = store.log.state("langgraph_item/m#k").why("value")[0].observation_id
    store.log.retract("langgraph_item/m#k", wrong)
    assert value_of(store.get(("m",), "k")) == {"n": 1}
    [found] = store.search(("m",))
    assert found.value == {"n": 1}


def test_foreign_records_do_not_stop_the_store(store: RefoldStore) -> None:
    store.put(("m",), "k", {"n": 1})
    long = "x" * 10_000
    entries: list[Any] = [{"a": 1}, 1, "text", [1], [[]], [["m", 5]], [[["m"], "k"]], [["m", long]], [["ok", "k"]]]
    for entry in entries:
        store.log.observe("langgraph_store/items", {"entry": entry})
    content = store.log.put_blob(b"{not json", "application/json")
    for key, value in (("list", [1]), ("text", "x"), ("content", content)):
        store.put(("m",), key, {})
        store.log.observe(f"langgraph_item/m#{key}", {"value": value})
    store.log.observe("langgraph_item/ok#k", {"value": {"n": 2}})
    assert [(each.namespace, each.value) for each in store.search(())] == [(("ok",), {"n": 2}), (("m",), {"n": 1})]
    assert store.list_namespaces() == [("m",), ("ok",)]
    assert [store.get(("m",), key) for key in ("list", "text", "content")] == [None, None, None]
    store.put(("m",), "list", {"n": 3})
    assert value_of(store.get(("m",), "list")) == {"n": 3}


def test_put_after_one_from_a_fast_clock_wins(store: RefoldStore) -> None:
    store.put(("m",), "k", {"n": 1})
    ahead = store.log.observe(
        "langgraph_item/m#k", {"value": {"n": 2}}, observed_at="2199-01-01T00:00:00Z", allow_future=True
    )
    assert value_of(store.get(("m",), "k")) == {"n": 2}
    store.put(("m",), "k", {"n": 3})
    assert value_of(store.get(("m",), "k")) == {"n": 3}
    assert store.log.state("langgraph_item/m#k").why("value")[0].observation_id != ahead
    store.delete(("m",), "k")
    assert store.get(("m",), "k") is None


def test_write_of_another_handle_is_read_at_once(url: str) -> None:
    """Also by one that has more to catch up with than it reads in a pass."""
    with RefoldStore(url) as one, RefoldStore(url) as other:
        other._items = ItemReader(other.log, pass_records=5)
        for count in (1, 2, 9):
            for number in range(count):
                one.put(("m",), "k", {"n": [count, number]})
                one.put(("m",), f"{count} {number}", {})
            assert value_of(other.get(("m",), "k")) == {"n": [count, count - 1]}
            assert named(other.search(())) == named(one.search(()))


def test_all_handles_agree_on_the_last_of_simultaneous_puts(url: str) -> None:
    """It is the last one of a thread, since each put is later than what its thread had put before."""
    with RefoldStore(url) as one, RefoldStore(url) as other, ThreadPoolExecutor(4) as threads:

        def put(thread: int) -> None:
            for number in range(8):
                (one, other)[thread % 2].put(("m",), "k", {"thread": thread, "number": number})
                (one, other)[thread % 2].put(("m", f"{thread}"), f"{number}", {})

        assert len([*threads.map(put, range(4))]) == 4
        last = value_of(one.get(("m",), "k"))
        assert last["number"] == 7
        assert value_of(other.get(("m",), "k")) == last
        assert other.log.state("langgraph_item/m#k").fields["value"] == last
        assert len(one.search((), limit=100)) == len(other.search((), limit=100)) == 1 + 4 * 8


def test_more_items_than_the_cache_holds(store: RefoldStore) -> None:
    store._items = ItemReader(store.log, items_kept=3)
    store.batch([PutOp(("m",), f"{number}", {"n": number}) for number in range(9)])
    assert len(store.search((), limit=100)) == 9
    assert [value_of(store.get(("m",), f"{number}")) for number in range(9)] == [{"n": n} for n in range(9)]


class Chat(TypedDict):
    said: str
    answer: str


def graph(store: RefoldStore, saver: RefoldSaver | None = None) -> Any:
    def answer(state: Chat, *, store: BaseStore, config: RunnableConfig) -> dict[str, Any]:
        user = config["configurable"]["user"]
        known = store.get(("users", user), "last")
        store.put(("users", user), "last", {"said": state["said"]})
        return {"answer": "new" if known is None else known.value["said"]}

    async def answer_async(state: Chat, *, store: BaseStore, config: RunnableConfig) -> dict[str, Any]:
        user = config["configurable"]["user"]
        known = await store.asearch(("users", user))
        await store.aput(("users", user), "last", {"said": state["said"]})
        return {"answer": known[0].value["said"] if known else "new"}

    builder = StateGraph(Chat)
    builder.add_node("answer", answer if saver is not None else answer_async)
    builder.add_edge(START, "answer")
    return builder.compile(store=store, checkpointer=saver)


def test_graph_shares_memory_across_threads_and_the_log_names_each_writer(url: str) -> None:
    with RefoldSaver(url) as saver, RefoldStore(saver.log) as store:
        compiled = graph(store, saver)
        for thread, user, said, expected in (
            ("t-1", "ann", "tea", "new"), ("t-2", "ann", "milk", "tea"), ("t-3", "bob", "hi", "new")
        ):  # fmt: skip
            config = {"configurable": {"thread_id": thread, "user": user}}
            assert compiled.invoke({"said": said}, config)["answer"] == expected
    shown = refold_command("state", "langgraph_item/users#ann#last", "--json", log=url).json
    values = {name: each["value"] for name, each in shown["fields"].items()}
    assert values["value"] == {"said": "milk"}
    assert (values["thread"], values["node"]) == ("t-2", "answer")
    [set_by] = refold_command("why", "langgraph_item/users#ann#last.value", "--json", log=url).json
    assert set_by["observation"] == shown["fields"]["value"]["observation"]
    assert set_by["source"]["agent"] == "langgraph"
    changed = refold_command("diff", "v1", "v2", "langgraph_item/users#ann#last", "--json", log=url).json
    assert {each["field"] for each in changed} == {"value", "thread", "updated_at"}
    with RefoldStore(url) as store:
        config = {"configurable": {"thread_id": "t-4", "user": "ann"}}
        assert asyncio.run(graph(store).ainvoke({"said": "more"}, config))["answer"] == "milk"
        assert store.log.state("langgraph_item/users#ann#last").fields["thread"] == "t-4"
        store.put(("users", "ann"), "last", {"said": "by no graph"})
        assert "thread" not in store.log.state("langgraph_item/users#ann#last").fields


def test_store_leaves_an_open_log_open(url: str) -> None:
    with refold.open(url) as log:
        with RefoldStore(log) as store:
            store.put(("m",), "k", {"n": 1})
        assert log.state("langgraph_item/m#k").fields["value"] == {"n": 1}


def test_item_with_missing_blob_is_named_and_can_be_deleted(store: RefoldStore) -> None:
    store.put(("m",), "k", {"n": 1})
    store.log.observe("langgraph_item/m#k", {"value": refold.Blob(b"\0" * 32, 5, "application/json")})
    for read in (lambda: store.get(("m",), "k"), lambda: store.search(())):
        with pytest.raises(InputError, match=r"langgraph_item/m#k: 0{64}: no such content"):
            read()
    store.delete(("m",), "k")
    assert store.search(()) == []


def test_damaged_item_record_does_not_affect_other_items(url: str) -> None:
    with RefoldStore(url) as one, RefoldStore(url) as other:
        one.batch([PutOp(("m",), "bad", {"n": 1}), PutOp(("m",), "good", {"n": 1})])
        assert len(other.search(("m",))) == 2
        wrong = one.log.observe("langgraph_item/m#bad", {"value": {"n": 2}})
        one.put(("m",), "good", {"n": 2})
        record = one.log.port.find(bytes.fromhex(wrong))
        assert record is not None
        key = position_key(record.partition, record.offset)
        Damaged(one.log).change("observations", key, lambda row: row.replace(record.data, b"\xff" * len(record.data)))
        assert value_of(other.get(("m",), "good")) == {"n": 2}
